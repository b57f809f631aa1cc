"""Where an etcd cluster is and how to get in, taken from a URL."""

from __future__ import annotations

import re
import ssl
from typing import Final, NamedTuple

from lockfast.errors import StoreMisconfiguredError
from lockfast.stores.registry import DEFAULT_NAMESPACE, StoreUrl
from lockfast.stores.tls import tls_context

PORT: Final = 2379
PREFIX: Final = "lockfast"
OPTIONS: Final = ("prefix", "ca", "cert", "key", "verify")


class Endpoint(NamedTuple):
    """One member of the cluster."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Address(NamedTuple):
    """A cluster, and the part of its keys that is ours."""

    label: str
    endpoints: tuple[Endpoint, ...] = (Endpoint("localhost", PORT),)
    root: str = f"{PREFIX}/{DEFAULT_NAMESPACE}/"
    """What all our keys begin with."""
    username: str = ""
    password: str = ""
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"<Address {self.label}>"


def parse(url: StoreUrl) -> Address:
    """The address in a URL; raises StoreMisconfiguredError where it makes no sense."""
    url.refuse_other_options(*OPTIONS)
    credentials, _, place = url.location.rpartition("@")
    username, _, password = credentials.partition(":")
    endpoints = tuple(_endpoint(url, text) for text in place.rstrip("/").split(","))
    prefix = url.options.get("prefix", PREFIX)
    namespace = url.namespace or DEFAULT_NAMESPACE
    if not re.fullmatch(r"[^\x00-\x1f\x7f]{1,200}", prefix):
        raise StoreMisconfiguredError(
            url.label, f"prefix={prefix!r} cannot be used", "write 1 to 200 printable characters"
        )
    return Address(
        url.label,
        endpoints,
        f"{prefix}/{namespace}/",
        username,
        password,
        tls_context(url, "etcds"),
    )


def _endpoint(url: StoreUrl, text: str) -> Endpoint:
    found = re.fullmatch(r"(\[[0-9a-fA-F:.%a-z]+\]|[^:\[\]/]*)(?::(\d{1,5}))?", text)
    if found is None or int(found[2] or 1) not in range(1, 65536):
        raise StoreMisconfiguredError(
            url.label, "names no server", "write etcd://host:2379,host:2379"
        )
    return Endpoint(found[1].strip("[]") or "localhost", int(found[2] or PORT))
