"""Checks the entries of a history that comes from outside, before anything relies on them.

Every field has a type and bounds, and each kind of entry has the fields it needs. What passes
here cannot make a checker fail: it is judged, however absurd it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lockfast.core.codec import CodecError, decode_place
from lockfast.core.commands import Place
from lockfast.sim.model import COMPATIBLE

AT_MAX: Final = 1 << 53
"""Instants and spans in microseconds: more than two centuries."""
NUMBER_MAX: Final = 1 << 53
TEXT_MAX: Final = 4096
PLACES_MAX: Final = 256
TOKENS_MAX: Final = 10_000

MODES: Final = frozenset(mode for pair in COMPATIBLE for mode in pair) | {"permit", "exclusive"}
CONVERTED: Final = frozenset(("shared", "update", "exclusive"))
ASKS: Final = frozenset(("acquire", "release", "convert"))
OUTCOMES: Final = frozenset(
    [
        *("granted", "busy", "timeout", "unknown", "refused", "deadlock", "done", "lost"),
        *("queued", "entered", "over"),
    ]
)


class HistoryError(ValueError):
    """The file is not a history."""


def _integer(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _text(value: Any) -> bool:
    return type(value) is str and len(value) <= TEXT_MAX


def _one_of(names: frozenset[str]) -> Callable[[Any], bool]:
    return lambda value: type(value) is str and value in names


def _flag(value: Any) -> bool:
    return type(value) is bool


def _places(value: Any) -> bool:
    return isinstance(value, list) and 1 <= len(value) <= PLACES_MAX


def _decode_places(values: list[Any]) -> tuple[Place, ...]:
    try:
        places = tuple(decode_place(value, f"places[{i}]") for i, value in enumerate(values))
    except CodecError as error:
        raise HistoryError(str(error)) from None
    for place in places:
        kind, name, mode, weight, limit = place
        if not (
            _text(kind) and _text(name) and _MODE(mode) and _POSITIVE(weight) and _NUMBER(limit)
        ):
            raise HistoryError(f"places has {_shown(str(place))}")
    if len({place[:2] for place in places}) < len(places):
        raise HistoryError("places names a resource twice")
    return places


_MODE: Final = _one_of(MODES)
_POSITIVE: Final = _integer(1, NUMBER_MAX)
_NUMBER: Final = _integer(0, NUMBER_MAX)
_INSTANT: Final = _integer(-AT_MAX, AT_MAX)

_FIELDS: Final[dict[str, Callable[[Any], bool]]] = {
    "at": _INSTANT,
    "op": _POSITIVE,
    "by": _text,
    "owner": _text,
    "ask": _one_of(ASKS),
    "got": _one_of(OUTCOMES),
    "places": _places,
    "wait": _flag,
    "retained": _flag,
    "closes": _flag,
    "window": _NUMBER,
    "timeout": lambda value: value is None or _NUMBER(value),
    "head_start": _INSTANT,
    "of": _POSITIVE,
    "mode": _one_of(CONVERTED),
    "token": _NUMBER,
    "session": _text,
    "n": _NUMBER,
    "until": _INSTANT,
    "why": _text,
    "write": _text,
    "read": _text,
    "value": _NUMBER,
    "admitted": _flag,
    "fault": _text,
    "on": _text,
    "lost": _NUMBER,
    "lost_message": _text,
    "to": _text,
    "heal": _flag,
    "resumed": _text,
    "revoke": _text,
    "resize": _text,
    "limit": _NUMBER,
    "closed": _text,
    "store": _text,
    "holds": lambda value: (
        type(value) is list and len(value) <= TOKENS_MAX and all(map(_NUMBER, value))
    ),
    "lives": _text,
    "fails": _text,
    "ends": _text,
    "sent": _INSTANT,
}

_KINDS: Final[dict[str, tuple[str, ...]]] = {
    "ask": ("op", "by"),
    "got": ("op",),
    "write": ("token", "value", "by", "admitted"),
    "read": ("token", "by", "admitted"),
    "lost_message": ("to",),
    "fault": ("on",),
    "heal": (),
    "resumed": (),
    "revoke": ("n",),
    "resize": (),
    "closed": (),
    "store": (),
    "lives": ("until",),
    "fails": ("sent",),
    "ends": ("why",),
}
"""What an entry is about, and the fields that it needs besides."""

_ASKED: Final = {"acquire": ("places",), "release": ("of",), "convert": ("of", "mode")}


class Entries:
    """The entries of one history, one after the other: each operation is asked once."""

    def __init__(self) -> None:
        self._asked: set[int] = set()

    def check(self, entry: Any) -> dict[str, Any]:
        """The entry, if it is one; raises HistoryError that says what is wrong with it."""
        if type(entry) is not dict or "at" not in entry:
            raise HistoryError("an entry is an object with an integer `at`")
        for field, value in entry.items():
            is_right = _FIELDS.get(field)
            if is_right is None:
                raise HistoryError(f"unknown field {field[:40]!r}")
            if not is_right(value):
                raise HistoryError(f"{field} is {_shown(value)}")
        kinds = [kind for kind in _KINDS if kind in entry]
        if len(kinds) != 1:
            raise HistoryError(f"an entry is about one thing, not {kinds or 'nothing'}")
        self._check_kind(kinds[0], entry)
        if "places" in entry:
            entry["places"] = _decode_places(entry["places"])
        return entry

    def _check_kind(self, kind: str, entry: dict[str, Any]) -> None:
        needed = _KINDS[kind]
        if kind == "ask":
            needed += _ASKED[entry["ask"]]
        if kind == "got":
            needed += {"granted": ("token",), "over": ("why",)}.get(entry["got"], ())
        if kind == "store":
            needed += ("holds",) if entry["store"] == "begins" else ("token", "by")
        for field in needed:
            if field not in entry:
                raise HistoryError(f"{kind} lacks {field!r}")
        if kind == "ask":
            if entry["op"] in self._asked:
                raise HistoryError(f"operation {entry['op']} was asked before")
            self._asked.add(entry["op"])


def _shown(value: Any) -> str:
    plain = isinstance(value, str | int | float | bool | None)
    text = repr(value) if plain else type(value).__name__
    return text if len(text) <= 60 else f"{text[:60]}…"
