"""Store URLs: parse them, find the store for a scheme, and show them without secrets.

No password may reach a repr, a log or an error: everything that names a store uses `label_of`.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple

from lockfast.core.names import has_controls
from lockfast.errors import StoreMisconfiguredError, UnsupportedError
from lockfast.ports import Store
from lockfast.stores.diagnosis import Maintenance
from lockfast.stores.passwords import PasswordFile

Face = Literal["threads", "asyncio"]

ENTRY_POINTS: Final = "lockfast.stores"
"""Where other packages register a store: name = scheme, value = `module:open_store`."""

_BUILT_IN: Final[Mapping[str, str]] = {
    "memory": "lockfast.stores.memory:open_store",
    "sqlite": "lockfast.stores.sqlite:open_store",
    "redis": "lockfast.stores.redis:open_store",
    "rediss": "lockfast.stores.redis:open_store",
    "unix": "lockfast.stores.redis:open_store",
    "valkey": "lockfast.stores.redis:open_store",
    "valkeys": "lockfast.stores.redis:open_store",
    "valkey+unix": "lockfast.stores.redis:open_store",
    "redis+sentinel": "lockfast.stores.redis:open_store",
    "valkey+sentinel": "lockfast.stores.redis:open_store",
    "redis+cluster": "lockfast.stores.redis.cluster.opening:open_store",
    "rediss+cluster": "lockfast.stores.redis.cluster.opening:open_store",
    "valkey+cluster": "lockfast.stores.redis.cluster.opening:open_store",
    "valkeys+cluster": "lockfast.stores.redis.cluster.opening:open_store",
    "sharded+memory": "lockfast.stores.sharded.opening:open_store",
    "etcd": "lockfast.stores.etcd.opening:open_store",
    "etcds": "lockfast.stores.etcd.opening:open_store",
    "quorum+memory": "lockfast.stores.quorum.opening:open_store",
    "quorum+redis": "lockfast.stores.quorum.opening:open_store",
    "quorum+rediss": "lockfast.stores.quorum.opening:open_store",
    "quorum+http": "lockfast.stores.quorum.opening:open_store",
    "quorum+https": "lockfast.stores.quorum.opening:open_store",
    "quorum+sqlite": "lockfast.stores.quorum.opening:open_store",
    "quorum+unix": "lockfast.stores.quorum.opening:open_store",
    "quorum+valkey": "lockfast.stores.quorum.opening:open_store",
    "quorum+valkeys": "lockfast.stores.quorum.opening:open_store",
    "postgresql": "lockfast.stores.postgresql.opening:open_store",
    "postgres": "lockfast.stores.postgresql.opening:open_store",
    "zookeeper": "lockfast.stores.zookeeper.opening:open_store",
    "zookeepers": "lockfast.stores.zookeeper.opening:open_store",
    "zk": "lockfast.stores.zookeeper.opening:open_store",
    "zks": "lockfast.stores.zookeeper.opening:open_store",
    "testing": "lockfast.testing.store:open_store",
    "playground": "lockfast.playground.store:open_store",
    "http": "lockfast.stores.lockserver.opening:open_store",
    "https": "lockfast.stores.lockserver.opening:open_store",
    "http+unix": "lockfast.stores.lockserver.opening:open_store",
}

USUAL: Final = ("sqlite", "redis", "postgresql", "etcd", "zookeeper", "http", "https", "memory")
"""The schemes that the error for an unknown one names."""
WITH_PASSWORDS: Final = (
    "redis", "rediss", "unix", "valkey", "valkeys", "etcd", "etcds", "postgres", "postgresql",
    "cluster", "sentinel", "http", "https", "zookeeper", "zookeepers", "zk", "zks",
)  # fmt: skip
"""Suffixes of the schemes of stores that have a password."""
DEFAULT_NAMESPACE: Final = "default"
"""An alias of the namespace that is used if none is given."""

_SCHEME: Final = "[a-z][a-z0-9+.-]*"
_NAMESPACE: Final = r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}"
_SECRET_OPTION: Final = "acl|pass|pwd|pw|secret|token|auth|key|cred|sig"
_SERVER: Final = r"(\[[^\]]*\]|[^:]*)(:\d{1,5})?"


class StoreUrl(NamedTuple):
    """A parsed store URL. Only `label` may be shown: `location` and `options` may hold secrets."""

    scheme: str
    location: str
    """The part between `scheme://` and `?`, percent-decoded, credentials included."""
    options: Mapping[str, str]
    label: str
    password: Callable[[], str] | None = None
    """Returns the current password, in place of the one in `location`."""

    def __repr__(self) -> str:
        return f"<StoreUrl {self.label}>"

    def refuse_other_options(self, *known: str) -> None:
        known = tuple(dict.fromkeys((*known, "namespace")))
        for name in self.options:
            if name not in known:
                # Anything but a plain word may be the rest of a password.
                shown = (
                    repr(name) if re.fullmatch("[a-z][a-z0-9_-]{0,30}", name) else "of that name"
                )
                raise StoreMisconfiguredError(
                    self.label,
                    f"there is no option {shown}",
                    f"the options are {', '.join(known)}; in a password write ? as %3F, & as %26",
                )

    @property
    def namespace(self) -> str:
        """The namespace; "" is the default. Locks in different namespaces are independent."""
        return self.options.get("namespace", "")

    def in_namespace(self, namespace: str) -> StoreUrl:
        """Return the URL with another namespace. Raises StoreMisconfiguredError if invalid."""
        return self._replace(
            options={**self.options, "namespace": _checked_namespace(namespace, self.label)}
        )

    def flag(self, name: str, default: bool) -> bool:
        """Return the value of an on/off option."""
        text = self.options.get(name)
        if text is None:
            return default
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
        raise StoreMisconfiguredError(
            self.label, f"{name}={text!r} is neither on nor off", f"write {name}=on or {name}=off"
        )


def parse_url(url: str) -> StoreUrl:
    """Parse a store URL. Raises StoreMisconfiguredError if it is malformed."""
    from urllib.parse import parse_qsl, unquote

    if not isinstance(url, str):
        raise TypeError(f"a store URL must be a str, not {type(url).__name__}")
    if not url:
        raise StoreMisconfiguredError(
            "the store URL", "is empty", "name a store, or leave the URL out for a local file"
        )
    label = label_of(url)
    scheme, mark, rest = url.partition("://")
    if not mark or not re.fullmatch(_SCHEME, scheme):
        raise StoreMisconfiguredError(
            label, "is not a store URL", "write for example sqlite:///path or redis://host"
        )
    if "#" in rest or has_controls(rest):
        raise StoreMisconfiguredError(
            label, "contains a # or a control character", "write # as %23, a newline as %0A"
        )
    place, _, query = rest.partition("?")
    if "@" in query:
        # Probably a password that contains a ?; parsing the rest as options would show them.
        raise StoreMisconfiguredError(
            label, "has an @ after the ?", "write ? as %3F and @ as %40 in passwords and options"
        )
    try:
        location = unquote(place, errors="strict")
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict")
        "".join((location, *map("".join, pairs))).encode()
    except ValueError:
        raise StoreMisconfiguredError(
            label, "is not valid UTF-8, or its options are malformed", "write them as ?name=value"
        ) from None
    options = dict(pairs)
    if len(options) < len(pairs):
        raise StoreMisconfiguredError(label, "gives an option twice", "give each option once")
    namespace = options.get("namespace", os.environ.get("LOCKFAST_NAMESPACE", ""))
    options["namespace"] = _checked_namespace(namespace, label)
    file = options.pop("password_file", None)
    password = PasswordFile(file) if file is not None else None
    return StoreUrl(scheme, location, options, label, password)


def _checked_namespace(namespace: str, label: str) -> str:
    if namespace in ("", DEFAULT_NAMESPACE):
        return ""
    if not re.fullmatch(_NAMESPACE, namespace):
        raise StoreMisconfiguredError(
            label,
            f"namespace={namespace!r} is not a valid namespace",
            "use up to 64 letters, digits, and _ . - (no dot at the start)",
        )
    return namespace


def label_of(url: str) -> str:
    """Return the URL as it may be shown: `***` in place of every password.

    Stores decode a URL before they split off credentials at the last @, and users forget to escape
    passwords. So everything from the first colon to the last @ is hidden, escaped or not, wherever
    it occurs, and so is anything that looks like a password without a host after it.
    """
    shown = url.encode(errors="replace").decode()
    found = re.fullmatch(rf"({_SCHEME}://)?(.*)", shown, re.DOTALL | re.IGNORECASE)
    assert found is not None
    scheme, rest = found[1] or "", found[2]
    with_password = re.fullmatch(r"(.*?)(?::|%3a).*(?:@|%40)(.*)", rest, re.DOTALL | re.IGNORECASE)
    if with_password is not None:
        rest = f"{with_password[1]}:***@{with_password[2]}"
    else:
        servers = re.split("[/?]", rest, maxsplit=1)[0]
        user, colon, _ = rest.partition(":")
        if colon and not all(re.fullmatch(_SERVER, server) for server in servers.split(",")):
            rest = f"{user}:***"
    place, mark, query = rest.partition("?")
    if mark:
        rest = f"{place}?{_shown_options(query)}"
    return scheme + rest


def _shown_options(query: str) -> str:
    from urllib.parse import unquote

    if "@" in query:
        return "***"
    shown = []
    for option in query.split("&"):
        name, equals, _ = option.partition("=")
        secret = not equals or re.search(_SECRET_OPTION, unquote(name), re.IGNORECASE)
        shown.append(f"{name}=***" if secret and equals else "***" if secret else option)
    return "&".join(shown)


def open_store(
    url: str, face: Face, *, password: Callable[[], str] | None = None, **settings: Any
) -> Store:
    """Open the store at a URL for callers of one API; raises if the URL is invalid."""
    parsed = parse_url(url)
    if password is not None:
        parsed = parsed._replace(password=password)
    if parsed.password is not None and not parsed.scheme.endswith(WITH_PASSWORDS):
        raise UnsupportedError(parsed.label, f"{parsed.scheme}:// has no password", "leave it out")
    module, function = _find(parsed)
    make: Callable[..., Store] = getattr(module, function)
    store = make(parsed, face, **settings)
    history = os.environ.get("LOCKFAST_HISTORY")
    if not history:
        return store
    from lockfast.stores.recorded import recorded

    return recorded(store, history)


def open_maintenance(url: StoreUrl) -> Maintenance:
    """Return the maintenance of the store at a URL; does not connect yet."""
    module, _ = _find(url)
    make = getattr(module, "open_maintenance", None)
    if make is None:
        return Maintenance(url.label)
    made: Maintenance = make(url)
    return made


def _find(url: StoreUrl) -> tuple[ModuleType, str]:
    """Return the module that opens this scheme, and the name of its function."""
    opener = _BUILT_IN.get(url.scheme) or _registered(url)
    name, _, function = opener.partition(":")
    return importlib.import_module(name), function


def _registered(url: StoreUrl) -> str:
    from difflib import get_close_matches
    from importlib.metadata import entry_points

    for found in entry_points(group=ENTRY_POINTS, name=url.scheme):
        return found.value
    close = get_close_matches(url.scheme, _BUILT_IN, 1)
    usual = ", ".join(f"{scheme}://" for scheme in USUAL)
    advice = (
        f"did you mean {close[0]}://?" if close else f"use {usual} or another that is documented"
    )
    raise UnsupportedError(url.label, f"there is no store for {url.scheme}://", advice)
