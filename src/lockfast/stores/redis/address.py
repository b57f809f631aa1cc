"""The address of a Redis server and its credentials, parsed from a store URL.

No error of this module repeats a part of the URL other than its label: a password that was not
escaped may be anywhere in it.
"""

from __future__ import annotations

import re
import ssl
from typing import Final, NamedTuple

from lockfast.errors import StoreMisconfiguredError, UnsupportedError
from lockfast.runtimes.platform import has_unix_sockets
from lockfast.stores.passwords import Password
from lockfast.stores.registry import DEFAULT_NAMESPACE, StoreUrl
from lockfast.stores.tls import tls_context

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
OPTIONS: Final = ("namespace", "eviction", "spin", "wait", "ca", "cert", "key", "verify")
SENTINEL_OPTIONS: Final = (
    "namespace", "eviction", "spin", "wait", "sentinel_user", "sentinel_password",
)  # fmt: skip
SENTINEL_SCHEMES: Final = ("redis+sentinel", "valkey+sentinel")
REPLICAS_MAX: Final = 100


class Server(NamedTuple):
    host: str
    port: int


class Address(NamedTuple):
    """One namespace in one database of one server."""

    label: str
    host: str = "localhost"
    port: int = PORT
    path: str = ""
    """The path of a Unix socket, instead of host and port."""
    db: int = 0
    username: str = ""
    password: Password = ""
    namespace: str = DEFAULT_NAMESPACE
    tls: ssl.SSLContext | None = None
    allows_eviction: bool = False
    """Whether the operator accepts that the server may evict locks when memory is short."""
    spins: bool = True
    """Poll for a reply before blocking (blocking API only; see stores/stream.py)."""
    wait: int = 0
    """How many replicas must confirm a grant before it is handed out."""
    sentinels: tuple[Server, ...] = ()
    """The sentinels to ask for the server; host and port are then unknown."""
    service: str = ""
    """The name by which the sentinels know the server; its role is checked."""
    sentinel_username: str = ""
    sentinel_password: str = ""
    layout: int = 1
    """How the namespace is spread over shards; see `scripts.py`."""

    def __repr__(self) -> str:
        return f"<Address {self.label}>"


def parse(url: StoreUrl) -> Address:
    """Return the address in a URL; raises StoreMisconfiguredError if it is malformed."""
    is_watched = url.scheme in SENTINEL_SCHEMES
    url.refuse_other_options(*(SENTINEL_OPTIONS if is_watched else OPTIONS))
    common = common_address(url)
    if is_watched:
        return _parse_sentinels(url, common)
    if url.scheme in ("unix", "valkey+unix", "redis+unix"):
        return _parse_unix(url, common)
    return _parse_tcp(url, common)


def common_address(url: StoreUrl) -> Address:
    """Return the options that all schemes share; the server is not yet known."""
    return Address(
        url.label,
        namespace=url.namespace or DEFAULT_NAMESPACE,
        allows_eviction=_allows_eviction(url),
        spins=url.flag("spin", True),
        wait=_replicas(url),
    )


def _parse_tcp(url: StoreUrl, common: Address) -> Address:
    credentials, _, place = url.location.rpartition("@")
    text, _, db = place.partition("/")
    server = _server(text, PORT)
    if server is None:
        raise StoreMisconfiguredError(url.label, "names no server", "write redis://host:6379/0")
    username, password = credentials_in(credentials, url)
    return common._replace(
        host=server.host,
        port=server.port,
        db=_database(url, db),
        username=username,
        password=password,
        tls=tls_context(url, "rediss", "valkeys"),
    )


def _parse_sentinels(url: StoreUrl, common: Address) -> Address:
    credentials, _, place = url.location.rpartition("@")
    hosts, _, rest = place.partition("/")
    service, _, db = rest.partition("/")
    servers = servers_in(hosts, SENTINEL_PORT)
    if servers is None or not service:
        raise StoreMisconfiguredError(
            url.label,
            "does not name sentinels and a service",
            "write redis+sentinel://host1:26379,host2:26379,host3:26379/name",
        )
    username, password = credentials_in(credentials, url)
    return common._replace(
        sentinels=servers,
        service=service,
        db=_database(url, db),
        username=username,
        password=password,
        sentinel_username=url.options.get("sentinel_user", ""),
        sentinel_password=url.options.get("sentinel_password", ""),
    )


def servers_in(text: str, port: int) -> tuple[Server, ...] | None:
    """Return the servers in `host[:port],host[:port]`; None if malformed or named twice."""
    found = [_server(each, port) for each in text.split(",")]
    servers = tuple(server for server in found if server is not None)
    is_valid = bool(text) and len(set(servers)) == len(found)
    return servers if is_valid else None


def _server(text: str, port: int) -> Server | None:
    """Return the server in `host[:port]`; None if it is malformed."""
    found = re.fullmatch(r"(\[[0-9a-fA-F:.%a-z]+\]|[^:\[\]/]*)(?::(\d{1,5}))?", text)
    if found is None or int(found[2] or 1) not in range(1, 65536):
        return None
    return Server(found[1].strip("[]") or "localhost", int(found[2] or port))


def _parse_unix(url: StoreUrl, common: Address) -> Address:
    if not has_unix_sockets():
        raise UnsupportedError(
            url.label, "this platform has no Unix sockets", "use redis://host:port"
        )
    credentials, mark, path = url.location.partition("@/")
    if not mark:
        credentials, path = "", url.location.removeprefix("/")
    if not path:
        raise StoreMisconfiguredError(url.label, "names no socket", "write unix:///path/redis.sock")
    username, password = credentials_in(credentials, url)
    return common._replace(
        path=f"/{path}",
        username=username,
        password=password,
        tls=tls_context(url, "rediss", "valkeys"),
    )


def credentials_in(text: str, url: StoreUrl) -> tuple[str, Password]:
    """Split `user:password`; without a colon the text is the user, as the label shows it."""
    username, _, password = text.partition(":")
    return username, url.password or password


def _database(url: StoreUrl, text: str) -> int:
    if text and not text.isdecimal():
        raise StoreMisconfiguredError(
            url.label, "names a database that is not a number", "write redis://host/0"
        )
    return int(text or 0)


def _allows_eviction(url: StoreUrl) -> bool:
    choice = url.options.get("eviction", "refuse")
    if choice not in ("refuse", "allow"):
        raise StoreMisconfiguredError(
            url.label, "has an eviction= other than refuse or allow", "write eviction=refuse"
        )
    return choice == "allow"


def _replicas(url: StoreUrl) -> int:
    text = url.options.get("wait", "0")
    if not text.isdecimal() or int(text) > REPLICAS_MAX:
        raise StoreMisconfiguredError(
            url.label, "has a wait= that is not a number of replicas", "write wait=1"
        )
    return int(text)
