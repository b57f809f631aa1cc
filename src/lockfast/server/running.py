"""Start, signals and shutdown of a server process."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import uvicorn

from lockfast.errors import StoreMisconfiguredError
from lockfast.server.app import LockServer
from lockfast.server.config import LOCAL, LOCAL_ONLY, Config, read_config
from lockfast.server.dashboard.panels import Panel
from lockfast.server.identity import Authentication
from lockfast.server.listening import (
    BACKLOG,
    HEADERS_MAX,
    Place,
    Protocol,
    bind,
    inherited,
    load_certificates,
    notify,
    place_of,
    tls_context,
)
from lockfast.server.logins import Logins, read_key
from lockfast.server.tokens import TokenFile, TokenVerifier, write_private
from lockfast.stores.private_files import check_directory, make_directories, open_private
from lockfast.stores.registry import parse_url

logger = logging.getLogger(__name__)

DRAIN_S: Final = 1.0
"""How long to keep serving after SIGTERM, while not ready, so that load balancers move on."""
GRACE_S: Final = 10
"""How long requests in progress may take after that."""
KEEP_ALIVE_S: Final = 75


class Options(NamedTuple):
    """The options of the command line."""

    store_url: str
    state_directory: str
    places: tuple[Place, ...] = (Place(),)
    config_file: str = ""
    insecure_dev: bool = False
    drain_s: float = DRAIN_S
    panels: tuple[Panel, ...] = ()
    announce: Callable[[str], None] | None = None
    """Called with the server's URL when it is ready, instead of printing the usual lines."""


def serve(options: Options) -> None:
    """Serve until SIGTERM or SIGINT. Raises StoreMisconfiguredError before anything is served."""
    config = read_config(options.config_file) if options.config_file else Config(LOCAL_ONLY)
    sockets = inherited()
    places = [place_of(bound) for bound in sockets] or list(options.places)
    _refuse_unsafe(options, config, places)
    _prepare(options.state_directory)
    with _only_server(options.store_url):
        sockets = sockets or [bind(place) for place in places]
        try:
            with asyncio.Runner() as runner:
                runner.run(_Process(options, config, sockets).run())
        finally:
            for bound in sockets:
                if bound.family == socket.AF_UNIX and bound.fileno() >= 0:
                    bound.close()
            for place in options.places:
                if place.path:
                    with contextlib.suppress(OSError):
                        os.unlink(place.path)


def token_file(state_directory: str) -> TokenFile:
    return TokenFile(os.path.join(state_directory, "tokens.json"))


def _prepare(directory: str) -> None:
    make_directories(directory)
    check_directory(directory, directory)


def _refuse_unsafe(options: Options, config: Config, places: Sequence[Place]) -> None:
    """Refuse to listen for other machines without TLS and authentication."""
    public = [place for place in places if not place.is_private]
    if not public:
        return
    if options.insecure_dev:
        raise StoreMisconfiguredError(
            str(public[0]), "is reachable from other machines", "--insecure-dev is for loopback"
        )
    if config.tls is None:
        raise StoreMisconfiguredError(
            str(public[0]),
            "is reachable from other machines, which needs TLS",
            "add [tls] to --config, or listen on 127.0.0.1 behind a proxy",
        )


@contextlib.contextmanager
def _only_server(store_url: str) -> Iterator[None]:
    """Hold a lock file, so that only one server serves an embedded file."""
    url = parse_url(store_url)
    if url.scheme != "sqlite":
        yield
        return
    path = f"{url.location}-server"
    make_directories(os.path.dirname(os.path.abspath(path)))
    descriptor = open_private(path, os.O_RDWR | os.O_CREAT, url.label)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreMisconfiguredError(
                url.label, "is served by another process", "one server per file; stop the other"
            ) from None
        yield
    finally:
        os.close(descriptor)


class _Process:
    """One run of a server."""

    def __init__(self, options: Options, config: Config, sockets: Sequence[socket.socket]) -> None:
        self._options = options
        self._config = config
        self._sockets = list(sockets)
        self._tls: ssl.SSLContext | None = tls_context(config.tls) if config.tls else None

    async def run(self) -> None:
        options, config = self._options, self._config
        fresh = self._first_token()
        self.server = LockServer(options.store_url, config, self._authentication(), options.panels)
        self._uvicorn = _Uvicorn(self._settings(), self._say_ready)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        self._fresh = fresh
        await self._uvicorn.serve(self._sockets)

    def _settings(self) -> uvicorn.Config:
        settings = uvicorn.Config(
            self.server.app,
            http=Protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            h11_max_incomplete_event_size=HEADERS_MAX,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
        )
        settings.load()
        settings.ssl = self._tls
        return settings

    def _authentication(self) -> Authentication:
        config = self._config
        verifier = None
        if config.jwt is not None:
            from lockfast.server.jwt import JwtVerifier

            verifier = JwtVerifier(config.jwt)
        return Authentication(
            TokenVerifier(token_file(self._options.state_directory)),
            verifier,
            certificates=config.tls is not None and bool(config.tls.client_ca),
            proxies=frozenset(config.proxies.peers),
            proxy_header=config.proxies.header,
            anonymous=self._options.insecure_dev,
            logins=Logins(read_key(os.path.join(self._options.state_directory, "cookie.key"))),
        )

    def _first_token(self) -> str:
        """Create a token at the first start and return the path of its file; "" if not needed."""
        directory = self._options.state_directory
        tokens = token_file(directory)
        rights = self._config.policy.rights.of(LOCAL, "")
        if self._options.insecure_dev or tokens.all() or not rights.any():
            return ""
        path = os.path.join(directory, "token")
        write_private(path, tokens.create(LOCAL) + "\n")
        return path

    def _say_ready(self) -> None:
        notify("READY=1")
        scheme = "https" if self._tls is not None else "http"
        places = [place_of(bound) for bound in self._sockets]
        urls = [str(place) if place.path else f"{scheme}://{place}" for place in places]
        if self._options.announce is not None:
            self._options.announce(urls[0])
            return
        for url in urls:
            _say(f"serving {self.server.label} at {url}")
        if self._fresh:
            with open(self._fresh, encoding="ascii") as file:
                _say(f"created a token, also in {self._fresh}: {file.read().strip()}")
        if self._options.insecure_dev:
            _say("--insecure-dev: anyone on this machine can use every lock")

    def _stop(self) -> None:
        if self.server.draining.is_set():
            self._uvicorn.force_exit = self._uvicorn.should_exit = True
            return
        notify("STOPPING=1")
        if self._options.announce is None:
            _say("shutting down; sessions stay alive in the store")
        self.server.drain()
        asyncio.get_running_loop().call_later(self._options.drain_s, self._uvicorn.stop)

    def _reload(self) -> None:
        """Reload rights, quotas and certificates; keep the old ones if the new ones are invalid."""
        try:
            if self._options.config_file:
                self.server.set_policy(read_config(self._options.config_file).policy)
            if self._tls is not None and self._config.tls is not None:
                load_certificates(self._tls, self._config.tls)
            self.server.audit.reopen()
            _say("reloaded rights, quotas and certificates")
        except StoreMisconfiguredError as error:
            _say(f"not reloaded: {error}")


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_ready: object) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: `_Process` handles signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert callable(self._on_ready)
        self._on_ready()

    def stop(self) -> None:
        self.should_exit = True


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
