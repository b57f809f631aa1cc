"""The address of a Lockfast server and its token, parsed from a store URL.

http://host[:port][,host[:port]…], https://…, http+unix:///path/of/socket. The token comes from
`?token_file=`, from the password of the URL (`https://:lf_…@host`), from LOCKFAST_TOKEN_FILE or
LOCKFAST_TOKEN, or for a server on this machine from the file that `lockfast serve` has written.
"""

from __future__ import annotations

import os
import re
import ssl
from typing import Final, NamedTuple

from lockfast.errors import StoreMisconfiguredError
from lockfast.stores.http.members import Member, parse_member
from lockfast.stores.lockserver.paths import default_token_file
from lockfast.stores.registry import StoreUrl
from lockfast.stores.tls import tls_context

PORTS: Final = {"http": 80, "https": 443}
OPTIONS: Final = ("token_file", "insecure", "ca", "cert", "key", "verify")
TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{1,8192}")
"""What may appear in an Authorization header: our own tokens, and JWTs."""


class Address(NamedTuple):
    """Servers over one store, and the credentials for them."""

    label: str
    members: tuple[Member, ...]
    namespace: str = ""
    token: str = ""
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"<Address {self.label}>"


def parse(url: StoreUrl) -> Address:
    """Return the address in a URL. Raises StoreMisconfiguredError if it is malformed."""
    url.refuse_other_options(*OPTIONS)
    if url.password is not None:
        raise StoreMisconfiguredError(
            url.label, "takes a token, not a password", "write ?token_file=, or https://:token@host"
        )
    credentials, _, place = url.location.rpartition("@")
    members = _members(url, place)
    is_local = all(is_loopback(member) for member in members)
    token = _token(url, credentials, is_local)
    if token and url.scheme == "http" and not is_local and not url.flag("insecure", False):
        raise StoreMisconfiguredError(
            url.label,
            "would send the token unencrypted",
            "use https://, or add insecure=on if the network encrypts",
        )
    return Address(url.label, members, url.namespace, token, tls_context(url, "https"))


def is_loopback(member: Member) -> bool:
    return member.is_path or member.host in ("localhost", "::1") or member.host.startswith("127.")


def _members(url: StoreUrl, place: str) -> tuple[Member, ...]:
    if url.scheme == "http+unix":
        if not place.startswith("/"):
            raise StoreMisconfiguredError(url.label, "names no socket", "write http+unix:///path")
        return (Member(place),)
    port, advice = PORTS[url.scheme], "write https://host:port"
    texts = place.rstrip("/").split(",")
    return tuple(parse_member(url, text, port, advice) for text in texts)


def _token(url: StoreUrl, credentials: str, is_local: bool) -> str:
    user, _, password = credentials.partition(":")
    if user:
        raise StoreMisconfiguredError(
            url.label, "has a user name", "a server takes a token only: https://:token@host"
        )
    token = password or _from_files(url, is_local) or os.environ.get("LOCKFAST_TOKEN", "")
    if token and not TOKEN.fullmatch(token):
        raise StoreMisconfiguredError(url.label, "has a malformed token", "copy it anew")
    return token


def _from_files(url: StoreUrl, is_local: bool) -> str:
    path = url.options.get("token_file") or os.environ.get("LOCKFAST_TOKEN_FILE", "")
    if path:
        return _read(url, path)
    path = default_token_file()
    if is_local and not os.environ.get("LOCKFAST_TOKEN") and os.path.exists(path):
        return _read(url, path)
    return ""


def _read(url: StoreUrl, path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read(10_000).strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a token"
        raise StoreMisconfiguredError(
            url.label, f"cannot read its token from {path} ({reason})", "check ?token_file="
        ) from None
