"""A real PgBouncer in transaction mode: from the PATH, or unpacked from Debian's package.

There is no wheel with it, so tests with it are skipped where neither is available; those with
`tests/servers/pooler.py` always run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Final, Self

from tests.servers.ports import free_port
from tests.servers.postgresql import as_server_user, server_uid

PACKAGES: Final = ("pgbouncer", "libevent-2.1-7", "libc-ares2")
UNPACKED: Final = Path(__file__).parents[2] / ".dev" / "pgbouncer"
START_S: Final = 20.0


@cache
def program() -> str | None:
    """Return the path of a PgBouncer; None if none is available."""
    found = shutil.which("pgbouncer")
    if found is not None:
        return found
    unpacked = UNPACKED / "usr" / "sbin" / "pgbouncer"
    if not unpacked.exists() and not _unpack():
        return None
    return str(unpacked)


def _unpack() -> bool:
    """Download Debian's packages and unpack them under .dev/, which needs no root."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return False
    UNPACKED.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=UNPACKED.parent) as made:
        where = Path(made)
        try:
            subprocess.run(["apt-get", "download", *PACKAGES], cwd=where, check=True,
                           capture_output=True, timeout=60)  # fmt: skip
            for package in where.glob("*.deb"):
                subprocess.run(["dpkg", "-x", str(package), str(where / "root")], check=True,
                               capture_output=True)  # fmt: skip
            (where / "root").chmod(0o755)
            (where / "root").rename(UNPACKED)
        except (OSError, subprocess.SubprocessError):
            # Another process may have unpacked it at the same time.
            return UNPACKED.exists()
    return True


class PgBouncer:
    """PgBouncer in front of one server, with a few server connections for all clients."""

    def __init__(self, server_port: int, server_connections: int = 2) -> None:
        self._server_port = server_port
        self._server_connections = server_connections
        self.port = free_port()

    def __enter__(self) -> Self:
        path = program()
        assert path is not None
        self._directory = tempfile.TemporaryDirectory(prefix="lf-pgbouncer-")
        where = Path(self._directory.name)
        (where / "users.txt").write_text('"postgres" ""\n')
        (where / "pgbouncer.ini").write_text(
            f"""[databases]
postgres = host=127.0.0.1 port={self._server_port} dbname=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = {where / "users.txt"}
pool_mode = transaction
default_pool_size = {self._server_connections}
max_client_conn = 100
"""
        )
        os.chown(where, server_uid(), -1)
        libraries = UNPACKED / "usr" / "lib" / f"{os.uname().machine}-linux-gnu"
        with (where / "log").open("w") as log:
            self._process = subprocess.Popen(
                [path, str(where / "pgbouncer.ini")],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "LD_LIBRARY_PATH": str(libraries)},
                **as_server_user(),
            )
        give_up_s = time.monotonic() + START_S
        while "process up" not in (said := (where / "log").read_text()):
            if self._process.poll() is not None or time.monotonic() > give_up_s:
                self.__exit__()
                raise RuntimeError(f"{path} did not start:\n{said}")
            time.sleep(0.02)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._directory.cleanup()
