"""The address of an etcd cluster, parsed from a store URL."""

from __future__ import annotations

import re
import ssl
from typing import Final, NamedTuple

from lockfast.errors import StoreMisconfiguredError
from lockfast.stores.http.members import Member, parse_member
from lockfast.stores.passwords import Password
from lockfast.stores.registry import DEFAULT_NAMESPACE, StoreUrl
from lockfast.stores.tls import tls_context

PORT: Final = 2379
PREFIX: Final = "lockfast"
OPTIONS: Final = ("prefix", "ca", "cert", "key", "verify")


class Address(NamedTuple):
    """The members of a cluster, the credentials, and the key prefix."""

    label: str
    members: tuple[Member, ...] = (Member("localhost", PORT),)
    root: str = f"{PREFIX}/{DEFAULT_NAMESPACE}/"
    """The prefix of every key in the namespace."""
    username: str = ""
    password: Password = ""
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"<Address {self.label}>"


def parse(url: StoreUrl) -> Address:
    """Return the address in a store URL. Raises StoreMisconfiguredError if it is malformed."""
    url.refuse_other_options(*OPTIONS)
    credentials, _, place = url.location.rpartition("@")
    username, _, password = credentials.partition(":")
    advice = "write etcd://host:2379,host:2379"
    members = tuple(
        parse_member(url, text, PORT, advice, host="localhost")
        for text in place.rstrip("/").split(",")
    )
    prefix = url.options.get("prefix", PREFIX)
    namespace = url.namespace or DEFAULT_NAMESPACE
    if not re.fullmatch(r"[^\x00-\x1f\x7f]{1,200}", prefix):
        raise StoreMisconfiguredError(
            url.label, f"prefix={prefix!r} cannot be used", "write 1 to 200 printable characters"
        )
    return Address(
        url.label,
        members,
        f"{prefix}/{namespace}/",
        username,
        url.password or password,
        tls_context(url, "etcds"),
    )
