"""Lock servers for tests: in a thread of this process, or as a process that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import uvicorn

from lockfast.server.app import LockServer
from lockfast.server.config import LOCAL_ONLY, Config
from lockfast.server.dashboard.panels import Panel
from lockfast.server.identity import Authentication
from lockfast.server.listening import HEADERS_MAX, Protocol
from lockfast.server.node_service import NodeOptions
from lockfast.server.running import KEEP_ALIVE_S
from lockfast.server.tokens import TokenFile, TokenVerifier

START_S = 30.0


class ServerThread:
    """A server on loopback, in a thread of this process."""

    def __init__(
        self,
        store_url: str,
        config: Config | None = None,
        tokens: TokenFile | None = None,
        ssl: Any = None,
        authentication: Authentication | None = None,
        panels: Sequence[Panel] = (),
        node: NodeOptions | None = None,
    ) -> None:
        self._panels = panels
        self._node = node
        self._store_url = store_url
        self._config = config if config is not None else Config(LOCAL_ONLY)
        if authentication is None:
            verifier = TokenVerifier(tokens) if tokens is not None else None
            certificates = self._config.tls is not None
            authentication = Authentication(
                verifier, certificates=certificates, anonymous=tokens is None and not certificates
            )
        self._authentication = authentication
        self._ssl = ssl
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lock-server", daemon=True)
        self._error: BaseException | None = None

    @property
    def base(self) -> str:
        return f"{'https' if self._ssl else 'http'}://127.0.0.1:{self.port}"

    def url(self, **options: str) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"{self.base}?{query}" if query else self.base

    def __enter__(self) -> ServerThread:
        self._thread.start()
        assert self._ready.wait(START_S), "the server did not start"
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *about: object) -> None:
        self.loop.call_soon_threadsafe(self.server.drain)
        self._uvicorn.should_exit = True
        self._thread.join(START_S)
        assert not self._thread.is_alive(), "the server did not stop"

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
            self._ready.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.server = LockServer(
            self._store_url, self._config, self._authentication, self._panels, self._node
        )
        settings = uvicorn.Config(
            self.server.app,
            http=Protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            h11_max_incomplete_event_size=HEADERS_MAX,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=3,
        )
        settings.load()
        settings.ssl = self._ssl
        self._uvicorn = _Uvicorn(settings, self._ready)
        await self._uvicorn.serve([self._socket])


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: threading.Event) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()


class ServerProcess:
    """`lockfast serve`, as users run it."""

    def __init__(
        self,
        store_url: str,
        directory: Path,
        *options: str,
        listen: str = "127.0.0.1:0",
        program: Sequence[str] = ("-m", "lockfast"),
        store: Sequence[str] = (),
        launcher: Sequence[str] = (sys.executable,),
    ) -> None:
        self.directory = directory
        self._command = [*launcher, *program, "serve", *(store or ("--store", store_url))]
        self._command += ["--state-dir", str(directory / "state"), "--drain", "0.1", *options]
        self._listen = listen
        self.url = ""
        self.lines: list[str] = []

    def start(self, environment: dict[str, str] | None = None, fds: Sequence[int] = ()) -> None:
        """Start it, or restart it at its former address."""
        self.process = subprocess.Popen(
            [*self._command, "--listen", self._listen],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
            pass_fds=fds,
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"serving .* at (\S+)", line)
            if found:
                self.url = found[1]
                break
        else:
            self.process.wait(30)
            self.process.stderr.close()
            raise AssertionError("".join(self.lines))
        if "://127.0.0.1" in self.url:
            self._listen = self.url.partition("://")[2]
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    @property
    def token(self) -> str:
        return (self.directory / "state" / "token").read_text().strip()

    def client_url(self) -> str:
        return f"{self.url}?token_file={self.directory / 'state' / 'token'}"

    def kill(self) -> None:
        self.process.kill()
        self.ended()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Wait for its end and return the exit code."""
        code = self.process.wait(30)
        self._reader.join(5)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        else:
            self.ended()
