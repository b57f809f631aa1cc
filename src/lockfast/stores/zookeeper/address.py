"""The address of a ZooKeeper ensemble, parsed from a store URL.

    zookeeper://[user[:password]@]host[:2181][,host…][/chroot][?option=value…]

`zk` is short for `zookeeper`; `zookeepers` and `zks` use TLS. All nodes of a namespace are
below `<chroot>/lockfast/<namespace>`. The chroot is only a prefix of paths: kazoo connects without
one.
"""

from __future__ import annotations

import re
import socket
import ssl
from typing import Any, Final, NamedTuple

from lockfast.errors import StoreMisconfiguredError
from lockfast.stores.http.members import Member, parse_member
from lockfast.stores.passwords import Password, plain
from lockfast.stores.registry import DEFAULT_NAMESPACE, StoreUrl
from lockfast.stores.tls import TLS_OPTIONS, tls_context

SCHEMES: Final = ("zookeeper", "zk")
TLS_SCHEMES: Final = ("zookeepers", "zks")
PORT: Final = 2181
DIRECTORY: Final = "lockfast"
OPTIONS: Final = ("acl", "sasl", *TLS_OPTIONS)
CHROOT_LENGTH_MAX: Final = 512

PERMISSIONS: Final = {"r": 1, "w": 2, "c": 4, "d": 8, "a": 16}
"""As in zkCli: read, write, create, delete, admin."""
ALL_PERMISSIONS: Final = 31
_ACL: Final = re.compile(r"([a-z0-9]+):([^\s,]*):([rwcda]{1,5})")
_SEGMENT: Final = re.compile(r"(?!\.{1,2}$)[^\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff/]+")
"""What ZooKeeper accepts as one segment of a path."""


class Permission(NamedTuple):
    """One entry of an access control list."""

    scheme: str
    who: str
    permissions: int


OPEN: Final = (Permission("world", "anyone", ALL_PERMISSIONS),)
CREATOR: Final = (Permission("auth", "", ALL_PERMISSIONS),)
"""Any client authenticated as the user that created the node."""


class Address(NamedTuple):
    """The members of an ensemble, the credentials, and the root node of the namespace."""

    label: str
    members: tuple[Member, ...] = (Member("localhost", PORT),)
    root: str = f"/{DIRECTORY}/{DEFAULT_NAMESPACE}"
    username: str = ""
    password: Password = ""
    sasl: bool = False
    """Authenticate with SASL DIGEST-MD5; otherwise with ZooKeeper's `digest` scheme."""
    acl: tuple[Permission, ...] = OPEN
    """The access control list of every node that the store creates."""
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"<Address {self.label}>"

    @property
    def hosts(self) -> str:
        """All members, in kazoo's format."""
        return ",".join(map(str, self.members))

    def connect(self, host: str, port: int, hostname: str, timeout_s: float) -> socket.socket:
        """Connect to a member; with TLS, `hostname` must be in its certificate."""
        connection = socket.create_connection((host, port), timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.tls is None:
            return connection
        try:
            return self.tls.wrap_socket(connection, server_hostname=hostname)
        except BaseException:
            connection.close()
            raise

    def client_options(self) -> dict[str, Any]:
        """Return the `KazooClient` arguments for hosts and credentials; TLS is the handler's.

        Reads the password again at each call, so that it may change between connections. Raises
        StoreUnavailableError if it cannot be read now.
        """
        from kazoo.security import ACL, Id

        acl = [ACL(entry.permissions, Id(entry.scheme, entry.who)) for entry in self.acl]
        options: dict[str, Any] = {"hosts": self.hosts, "default_acl": acl}
        if self.username:
            password = plain(self.password, self.label)
            if self.sasl:
                options["sasl_options"] = {
                    "mechanism": "DIGEST-MD5",
                    "service": "zookeeper",
                    "principal": "zk-sasl-md5",
                    "username": self.username,
                    "password": password,
                }
            else:
                options["auth_data"] = [("digest", f"{self.username}:{password}")]
        return options


def parse(url: StoreUrl) -> Address:
    """Return the address in a store URL. Raises StoreMisconfiguredError if it is malformed."""
    url.refuse_other_options(*OPTIONS)
    credentials, _, place = url.location.rpartition("@")
    username, _, password = credentials.partition(":")
    hosts, slash, path = place.partition("/")
    sasl = url.flag("sasl", False)
    given = url.password or password
    if (sasl or given) and not username:
        raise StoreMisconfiguredError(
            url.label, "has a password or sasl= but no user", "write zookeeper://user@host"
        )
    if username and not given:
        raise StoreMisconfiguredError(
            url.label,
            f"names the user {username!r} but no password",
            "add it, or password_file=PATH, or connect(..., password=function)",
        )
    advice = "write zookeeper://host:2181,host:2181/chroot"
    members = tuple(
        parse_member(url, text, PORT, advice, host="localhost") for text in hosts.split(",")
    )
    return Address(
        url.label,
        members,
        f"{_chroot(url, path) if slash else ''}/{DIRECTORY}/{url.namespace or DEFAULT_NAMESPACE}",
        username,
        given,
        sasl,
        _acl(url, bool(username)),
        tls_context(url, *TLS_SCHEMES),
    )


def _chroot(url: StoreUrl, path: str) -> str:
    """Return the chroot with a slash before each segment; "" for `host/`."""
    path = path.removesuffix("/")
    if not path:
        return ""
    if len(path.encode()) > CHROOT_LENGTH_MAX:
        raise StoreMisconfiguredError(
            url.label, f"its path has more than {CHROOT_LENGTH_MAX} bytes", "use a shorter one"
        )
    segments = path.split("/")
    if segments[0] == "zookeeper" or not all(map(_SEGMENT.fullmatch, segments)):
        raise StoreMisconfiguredError(
            url.label,
            f"{'/' + path!r} is no path for data in ZooKeeper",
            "write segments that are neither empty nor dots, as in zookeeper://host/apps/locks",
        )
    return "/" + path


def _acl(url: StoreUrl, has_user: bool) -> tuple[Permission, ...]:
    text = url.options.get("acl", "creator" if has_user else "open")
    if text == "open":
        return OPEN
    if text == "creator":
        if not has_user:
            raise StoreMisconfiguredError(
                url.label, "acl=creator without a user", "write zookeeper://user:password@host"
            )
        return CREATOR
    entries = []
    for part in text.split(","):
        found = _ACL.fullmatch(part)
        if found is None:
            raise StoreMisconfiguredError(
                url.label,
                "acl= cannot be read",
                "write open, creator, or scheme:id:rwcda[,…], as in "
                "acl=auth::rwcda,ip:10.0.0.0/8:r",
            )
        permissions = sum(PERMISSIONS[letter] for letter in set(found[3]))
        entries.append(Permission(found[1], found[2], permissions))
    return tuple(entries)
