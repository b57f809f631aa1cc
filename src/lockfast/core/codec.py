"""The JSON encoding of commands and replies, for histories, servers and other languages.

A message is an object with two members: the version `v` of the encoding, and one named after
the message that contains its fields:

    {"v": 1, "Enter": {"session": "s-1", "n": 1, "places": [{"kind": "lock", …}], …}}

A field with its default value may be omitted. A field that can hold one of several messages
is encoded like a message, without the version: {"Granted": {"token": 17}}.

Decoding is strict: `decode_command` and `decode_reply` raise CodecError for any error in the
text (syntax, types, unknown or missing fields, numbers, tokens, sizes). The encoding is derived
from the definitions in `commands.py`, so a new field needs no change here.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from functools import cache
from typing import (
    Any,
    Final,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from lockfast.core import commands as c
from lockfast.errors import LockfastError

VERSION: Final = 1
BYTES_MAX: Final = 1 << 20
"""A longer text is rejected before parsing, unless the caller allows more."""
ITEMS_MAX: Final = 100_000
"""The largest number of claims in a session."""
NUMBER_MAX: Final = 1 << 60
"""The largest duration; a store uses it if it does not know when something ends."""
TOKEN_MAX: Final = 1 << 53
"""The largest integer that a double represents exactly, as in JavaScript and Lua."""

CLAIM_NUMBERS: Final = frozenset(("n", "waiting", "ahead_of", "lowest"))
"""Fields that name claims; stores make keys of these numbers."""

COMMANDS: Final[dict[str, type]] = {kind.__name__: kind for kind in get_args(c.Command)}
REPLIES: Final[dict[str, type]] = {kind.__name__: kind for kind in get_args(c.Reply)}


T = TypeVar("T")


class CodecError(LockfastError, ValueError):
    """The text is not a valid command or reply of this version; it was not executed."""


def encode(message: c.Command | c.Reply) -> str:
    """Encode a message as one line of JSON."""
    return _dumps({"v": VERSION, type(message).__name__: _fields(message)})


def decode_command(text: str | bytes, bytes_max: int = BYTES_MAX) -> c.Command:
    """Decode a command. Raises CodecError."""
    return cast("c.Command", _decode(text, COMMANDS, bytes_max))


def decode_reply(text: str | bytes, bytes_max: int = BYTES_MAX) -> c.Reply:
    """Decode a reply. Raises CodecError."""
    return cast("c.Reply", _decode(text, REPLIES, bytes_max))


def fields_of(message: Any) -> dict[str, Any]:
    """Return the fields of a message as plain values, without those that have their default."""
    return _fields(message)


def message_of(kind: type[T], fields: Any) -> T:
    """Return the message of any kind with these fields, as JSON has them. Raises CodecError."""
    return cast("T", _message(fields, kind, kind.__name__))


def command_of(kind: type, fields: Any) -> c.Command:
    """Return the command of this kind with these fields, as JSON has them. Raises CodecError."""
    return cast("c.Command", message_of(kind, fields))


def encode_fields(fields: dict[str, Any]) -> bytes:
    """Encode the result of `fields_of`, or any other plain values."""
    return _dumps(fields).encode()


def reply_of(value: Any) -> c.Reply:
    """Return the reply in an object like {"Granted": {"token": 17}}. Raises CodecError."""
    return cast("c.Reply", _chosen(value, REPLIES, "message"))


def parse(text: str | bytes, bytes_max: int = BYTES_MAX) -> Any:
    """Parse JSON strictly: UTF-8, no duplicate members, no NaN. Raises CodecError."""
    try:
        raw = text.encode() if isinstance(text, str) else bytes(text)
        if len(raw) > bytes_max:
            _refuse("message", f"is too long: {len(raw)} bytes, the limit is {bytes_max}")
        return json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_constant)
    except CodecError:
        raise
    # ValueError: malformed, or a number of thousands of digits
    except (ValueError, RecursionError) as error:
        raise CodecError(f"the message is not valid JSON: {error}") from None


def encode_place(place: c.Place) -> dict[str, Any]:
    """Return the JSON object of a place, for histories."""
    return _fields(place)


def decode_place(value: Any, where: str) -> c.Place:
    """Decode the JSON object of a place. Raises CodecError, which names `where`."""
    return cast("c.Place", _message(value, c.Place, where))


# ── writing ──────────────────────────────────────────────────────────────────────────


_dumps: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, separators=(",", ":")
).encode


def _fields(message: Any) -> dict[str, Any]:
    kind: Any = type(message)
    hints = hints_of(kind)
    defaults = message._field_defaults
    return {
        name: _plain(value, hints[name])
        for name, value in zip(message._fields, message, strict=True)
        if name not in defaults or value != defaults[name]
    }


def _plain(value: Any, hint: Any) -> Any:
    if hasattr(value, "_fields"):
        fields = _fields(value)
        return {type(value).__name__: fields} if _is_choice(hint) else fields
    if isinstance(value, tuple):
        items = _item_hints(hint, len(value))
        return [_plain(item, of) for item, of in zip(value, items, strict=True)]
    return value


# ── reading ──────────────────────────────────────────────────────────────────────────


def _decode(text: str | bytes, kinds: dict[str, type], bytes_max: int) -> Any:
    found = parse(text, bytes_max)
    if not isinstance(found, dict) or found.get("v") != VERSION or found["v"] is True:
        version = found.get("v") if isinstance(found, dict) else None
        _refuse(
            "message", f"has encoding version {version!r}; this release supports version {VERSION}"
        )
    return _chosen({name: value for name, value in found.items() if name != "v"}, kinds, "message")


def _refuse(where: str, why: str) -> NoReturn:
    raise CodecError(f"{where} {why}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        _refuse("message", "has a duplicate member in an object")
    return found


def _constant(name: str) -> NoReturn:
    _refuse("message", f"contains {name}, which JSON does not allow")


def _chosen(value: Any, kinds: dict[str, type], where: str) -> Any:
    """Decode an object whose only member names one of several kinds of message."""
    if not isinstance(value, dict) or len(value) != 1:
        _refuse(where, f"must be an object with exactly one member, named {' or '.join(kinds)}")
    ((name, fields),) = value.items()
    if name not in kinds:
        _refuse(where, f"has unknown type {name[:80]!r}; expected {', '.join(kinds)}")
    return _message(fields, kinds[name], where if where != "message" else name)


def _message(value: Any, kind: Any, where: str) -> Any:
    if not isinstance(value, dict):
        _refuse(where, f"must be an object with the fields of {kind.__name__}")
    hints = hints_of(kind)
    for name in value:
        if name not in hints:
            _refuse(where, f"has an unknown field {name[:80]!r}")
    for name in kind._fields:
        if name not in value and name not in kind._field_defaults:
            _refuse(where, f"has no field {name!r}, which is required")
    made = kind(
        **{name: _read(item, hints[name], f"{where}.{name}") for name, item in value.items()}
    )
    if "token" in hints:
        lowest = 1 if kind is c.Granted else 0
        if not lowest <= made.token <= TOKEN_MAX:
            _refuse(where, f"has token {made.token}; tokens are {lowest} to {TOKEN_MAX}")
    return made


def _read(value: Any, hint: Any, where: str) -> Any:
    reader = _READERS.get(hint)
    if reader is not None:
        return reader(value, where)
    if _is_union(hint):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        if value is None and len(kinds) < len(get_args(hint)):
            return None
        if len(kinds) > 1:
            return _chosen(value, {kind.__name__: kind for kind in kinds}, where)
        return _read(value, kinds[0], where)
    if get_origin(hint) is tuple:
        if not isinstance(value, list) or len(value) > ITEMS_MAX:
            _refuse(where, f"must be a list of at most {ITEMS_MAX} items")
        items = _item_hints(hint, len(value))
        if len(items) != len(value):
            _refuse(where, f"must have {len(items)} items, not {len(value)}")
        return tuple(
            _read(item, of, f"{where}[{i}]")
            for i, (item, of) in enumerate(zip(value, items, strict=True))
        )
    return _message(value, hint, where)


def _read_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        _refuse(where, "must be a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        _refuse(where, "contains a lone surrogate, which UTF-8 cannot encode")
    return value


def _read_number(value: Any, where: str) -> int:
    if type(value) is not int:
        _refuse(where, "must be an integer")
    if not -NUMBER_MAX <= value <= NUMBER_MAX:
        _refuse(where, f"must be between {-NUMBER_MAX} and {NUMBER_MAX}")
    if not 0 <= value <= TOKEN_MAX and where.rpartition(".")[2].partition("[")[0] in CLAIM_NUMBERS:
        _refuse(where, f"is a claim number, which must be between 0 and {TOKEN_MAX}")
    return value


def _read_flag(value: Any, where: str) -> bool:
    if type(value) is not bool:
        _refuse(where, "must be true or false")
    return value


_READERS: Final[dict[Any, Callable[[Any, str], Any]]] = {
    str: _read_text,
    int: _read_number,
    bool: _read_flag,
}


# ── types ────────────────────────────────────────────────────────────────────────────


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """Return the types of the fields of a message."""
    # Some fields share the name of a type (`open`, `count`); resolve hints in the module only.
    return get_type_hints(kind, vars(sys.modules[kind.__module__]))


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _is_choice(hint: Any) -> bool:
    """Return True if a field can hold several kinds of message, so the kind is encoded."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return _is_union(hint) and len(kinds) > 1


def _item_hints(hint: Any, count: int) -> list[Any]:
    """Return the types of the items of a tuple."""
    if _is_union(hint):
        hint = next(kind for kind in get_args(hint) if get_origin(kind) is tuple)
    of = get_args(hint)
    return [of[0]] * count if len(of) == 2 and of[1] is ... else list(of)
