"""Which store belongs to which URL scheme."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from lockfast.core.names import has_controls
from lockfast.errors import StoreMisconfiguredError, UnsupportedError
from lockfast.ports import Store

Face = Literal["threads", "asyncio"]

ENTRY_POINTS: Final = "lockfast.stores"
"""Where other packages announce a store: name = scheme, value = `module:open_store`."""

_BUILT_IN: Final[Mapping[str, str]] = {
    "memory": "lockfast.stores.open_memory:open_store",
    "sqlite": "lockfast.stores.open_sqlite:open_store",
    "redis": "lockfast.stores.open_redis:open_store",
    "rediss": "lockfast.stores.open_redis:open_store",
    "unix": "lockfast.stores.open_redis:open_store",
    "valkey": "lockfast.stores.open_redis:open_store",
    "valkeys": "lockfast.stores.open_redis:open_store",
    "valkey+unix": "lockfast.stores.open_redis:open_store",
    "etcd": "lockfast.stores.open_etcd:open_store",
    "etcds": "lockfast.stores.open_etcd:open_store",
}


_SCHEME: Final = "[a-z][a-z0-9+.-]*"
_SECRET: Final = "pass|pwd|secret|token|auth|key|credential"


class StoreUrl(NamedTuple):
    """A store's URL, taken apart; `label` has no password in it."""

    scheme: str
    location: str
    """What stands between `scheme://` and `?`, decoded where it is a path."""
    options: Mapping[str, str]
    label: str

    def refuse_other_options(self, *known: str) -> None:
        for name in self.options:
            if name not in known and name != "namespace":
                raise StoreMisconfiguredError(
                    self.label,
                    f"there is no option {name!r}",
                    f"there are: {', '.join((*known, 'namespace'))}",
                )

    @property
    def namespace(self) -> str:
        """Locks of one namespace know nothing of those of another; "" is the common one."""
        return self.options.get("namespace", "")

    def flag(self, name: str, default: bool) -> bool:
        """An option that is on or off."""
        text = self.options.get(name)
        if text is None:
            return default
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
        raise StoreMisconfiguredError(self.label, f"{name}={text!r} is neither on nor off")


def parse_url(url: str) -> StoreUrl:
    """A URL taken apart; raises StoreMisconfiguredError where it makes no sense."""
    from urllib.parse import parse_qsl, unquote

    if not isinstance(url, str):
        raise TypeError(f"a store's URL is a str, not a {type(url).__name__}")
    label = label_of(url)
    scheme, mark, rest = url.partition("://")
    if not mark or not re.fullmatch(_SCHEME, scheme):
        raise StoreMisconfiguredError(
            label, "is not a store's URL", "write for example sqlite:///path or memory://"
        )
    if "#" in rest or has_controls(rest):
        raise StoreMisconfiguredError(
            label, "has a `#` or a control character in it", "write it as %23, or %0A and so on"
        )
    place, _, query = rest.partition("?")
    try:
        location = unquote(place, errors="strict")
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict")
        "".join((location, *map("".join, pairs))).encode()
    except ValueError:
        raise StoreMisconfiguredError(label, "is not UTF-8, or its options make no sense") from None
    options = dict(pairs)
    if len(options) < len(pairs):
        raise StoreMisconfiguredError(label, "gives an option twice", "give it once")
    namespace = options.setdefault("namespace", os.environ.get("LOCKFAST_NAMESPACE", ""))
    if not re.fullmatch(r"[A-Za-z0-9_.-]{0,64}", namespace) or namespace.startswith("."):
        raise StoreMisconfiguredError(
            label,
            f"namespace={namespace!r} cannot be used",
            "take up to 64 letters, digits, and _ . - (no dot at the start)",
        )
    return StoreUrl(scheme, location, options, label)


def label_of(url: str) -> str:
    """The URL for people: without passwords, wherever somebody may have put one.

    Up to the last @, since a password may contain anything if it was not escaped.
    """
    shown = url.encode(errors="replace").decode()
    found = re.fullmatch(rf"({_SCHEME}://)?(.*)", shown, re.DOTALL | re.IGNORECASE)
    assert found is not None
    scheme, rest = found[1] or "", found[2]
    credentials, at, place = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    if at and colon:
        rest = f"{user}:***@{place}"
    return re.sub(rf"(?i)([?&][^=&]*({_SECRET})[^=&]*=)[^&]*", r"\1***", scheme + rest)


def open_store(url: str, face: Face, **settings: Any) -> Store:
    """The store behind a URL, for callers of one face; a wrong URL raises here."""
    parsed = parse_url(url)
    opener = _BUILT_IN.get(parsed.scheme)
    make: Callable[..., Store]
    if opener is not None:
        module, _, function = opener.partition(":")
        make = getattr(importlib.import_module(module), function)
    else:
        make = _from_entry_points(parsed)
    store = make(parsed, face, **settings)
    history = os.environ.get("LOCKFAST_HISTORY")
    if not history:
        return store
    from lockfast.stores.recorded import recorded

    return recorded(store, history)


def _from_entry_points(url: StoreUrl) -> Callable[..., Store]:
    from importlib.metadata import entry_points

    for found in entry_points(group=ENTRY_POINTS, name=url.scheme):
        opener: Callable[..., Store] = found.load()
        return opener
    raise UnsupportedError(
        url.label,
        f"there is no store for {url.scheme}://",
        f"built in are {', '.join(f'{scheme}://' for scheme in _BUILT_IN)}",
    )
