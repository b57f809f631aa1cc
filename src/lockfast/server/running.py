"""Start, signals and shutdown of a server process."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import uvicorn

from lockfast.core import commands as c
from lockfast.errors import LockfastError, StoreMisconfiguredError
from lockfast.server.app import LockServer
from lockfast.server.config import LOCAL, LOCAL_ONLY, Config, read_config
from lockfast.server.dashboard.panels import Panel
from lockfast.server.identity import Authentication
from lockfast.server.listening import (
    BACKLOG,
    HEADERS_MAX,
    Place,
    Protocol,
    ServerTls,
    bind,
    inherited,
    notify,
    place_of,
)
from lockfast.server.logins import Logins, read_key
from lockfast.server.node_service import NodeOptions
from lockfast.server.tokens import TokenFile, TokenVerifier, write_private
from lockfast.stores.private_files import check_directory, make_directories, open_private
from lockfast.stores.registry import parse_url

logger = logging.getLogger(__name__)

DRAIN_S: Final = 1.0
"""How long to keep serving after SIGTERM, while not ready, so that load balancers move on."""
GRACE_S: Final = 10
"""How long requests in progress may take after that."""
KEEP_ALIVE_S: Final = 75
STORE_S: Final = 5.0
"""How long the store may take to answer at the start before the operator is told."""


class Options(NamedTuple):
    """The options of the command line."""

    store_url: str
    state_directory: str
    places: tuple[Place, ...] = (Place(),)
    config_file: str = ""
    insecure_dev: bool = False
    drain_s: float = DRAIN_S
    panels: tuple[Panel, ...] = ()
    node: NodeOptions | None = None
    """Also serve a node of a majority."""
    announce: Callable[[str], None] | None = None
    """Called with the server's URL when it is ready, instead of printing the usual lines."""


def serve(options: Options) -> None:
    """Serve until SIGTERM or SIGINT. Raises StoreMisconfiguredError before anything is served."""
    config = read_config(options.config_file) if options.config_file else Config(LOCAL_ONLY)
    sockets = inherited()
    places = [place_of(bound) for bound in sockets] or list(options.places)
    _refuse_unsafe(options, config, places)
    _prepare(options.state_directory)
    _allow_many_connections()
    with _only_server(options):
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
    with _explained(directory):
        make_directories(directory)
    check_directory(directory, directory)


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Turn an error of the file system into one that names the path."""
    try:
        yield
    except OSError as error:
        why = "not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise StoreMisconfiguredError(
            path, f"cannot be used ({why})", "choose another place, or allow access"
        ) from error


def _allow_many_connections() -> None:
    """Raise the soft limit on open files to the hard one: each waiting client is a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses an unlimited number
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


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


def _hosts_of(sockets: Sequence[socket.socket]) -> Iterator[str]:
    """Yield the addresses where clients reach these sockets, as they stand in a Host header."""
    for place in map(place_of, sockets):
        if not place.path and place.host not in ("0.0.0.0", "::"):
            yield str(place).rpartition(":")[0]


@contextlib.contextmanager
def _only_server(options: Options) -> Iterator[None]:
    """Hold lock files, so that only one server serves an embedded file or a node's directory."""
    with contextlib.ExitStack() as stack:
        url = parse_url(options.store_url)
        if url.scheme == "sqlite":
            stack.enter_context(_alone(f"{url.location}-server", url.label))
        if options.node is not None:
            directory = options.node.directory
            stack.enter_context(_alone(os.path.join(directory, "node-server"), directory))
        yield


@contextlib.contextmanager
def _alone(path: str, label: str) -> Iterator[None]:
    with _explained(label):
        make_directories(os.path.dirname(os.path.abspath(path)))
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT, label)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreMisconfiguredError(
                label, "is served by another process", "one server per file; stop the other"
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
        self._tls = ServerTls(config.tls) if config.tls is not None else None

    async def run(self) -> None:
        options = self._options
        fresh = self._first_token()
        config = self._config._replace(hosts=(*self._config.hosts, *_hosts_of(self._sockets)))
        self.server = LockServer(
            options.store_url, config, self._authentication(), options.panels, options.node
        )
        self.server.service("")  # a wrong URL or a missing driver must prevent the start
        await self.server.check_node()
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
        # Its warning for each request that is not HTTP names neither peer nor reason, and anyone
        # who can connect could fill the log with it.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        settings.ssl = self._tls.context if self._tls is not None else None
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
        """Create a token at the first start and return the path of its file; "" if not needed.

        Tokens of principals without rights do not count: nobody could use the server with them.
        """
        directory = self._options.state_directory
        tokens = token_file(directory)
        rights = self._config.policy.rights
        is_usable = any(rights.of(token.principal, "").any() for token in tokens.all())
        if self._options.insecure_dev or is_usable or not rights.of(LOCAL, "").any():
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
        if self._options.node is not None:
            _say(f"also a node of a majority, with its data in {self._options.node.directory}")
        if self._fresh:
            with open(self._fresh, encoding="ascii") as file:
                _say(f"created a token, also in {self._fresh}: {file.read().strip()}")
        if self._options.insecure_dev:
            _say("--insecure-dev: anyone on this machine can use every lock")
        self._checking = asyncio.ensure_future(self._check_store())

    async def _check_store(self) -> None:
        """Tell the operator if the store does not answer; the server serves on and retries."""
        try:
            async with asyncio.timeout(STORE_S):
                await self.server.service("").send(c.Sessions("", 1))
        except (LockfastError, TimeoutError) as error:
            why = str(error) or f"{self.server.label}: did not answer within {STORE_S:g} s"
            _say(f"the store cannot be used: {why}; /readyz fails until it answers")

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
            policy = self._config.policy
            if self._options.config_file:
                policy = read_config(self._options.config_file).policy
            use_certificates = self._tls.read_again() if self._tls is not None else None
            self.server.audit.reopen()
        except (StoreMisconfiguredError, OSError) as error:
            _say(f"not reloaded: {error}")
            return
        self.server.set_policy(policy)
        if use_certificates is not None:
            use_certificates()
        _say("reloaded rights, quotas and certificates")


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
    # Whoever read standard error may be gone; a signal must still stop the server.
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
