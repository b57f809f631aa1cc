"""The Lua scripts: one per command, each a few shared parts and a body of its own."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from lockfast.core import commands as c

FOLDER: Final = Path(__file__).parent / "scripts"
KEYS: Final = ("rows", "order", "due", "log")
"""All keys of a shard. Every script declares all of them and touches no other."""

_SHORTCUTS: Final = ("enter_free", "enter_last", "leave_alone", "leave_next", "passing")
_WRITING: Final = ("shard", "order", "rows", "writing", "lines", "table")
_READING: Final = (*_WRITING, "views")

_PARTS: Final[dict[type, tuple[str, ...]]] = {
    c.Open: (*_WRITING, "open"),
    c.Enter: ("enter_free", "passing", "enter_last", *_WRITING, "enter"),
    c.Leave: ("leave_alone", "passing", "leave_next", *_WRITING, "leave"),
    c.Convert: (*_WRITING, "convert"),
    c.Proclaim: (*_WRITING, "proclaim"),
    c.Adopt: (*_WRITING, "adopt"),
    c.Renew: (*_WRITING, "renew"),
    c.Close: (*_WRITING, "close"),
    c.Expel: (*_WRITING, "expel"),
    c.Revoke: (*_WRITING, "revoke"),
    c.RevokeSession: (*_WRITING, "revoke_session"),
    c.Resize: (*_WRITING, "resize"),
    c.Break: (*_WRITING, "break"),
    c.Watch: (*_WRITING, "watch"),
    c.Look: (*_READING, "look"),
    c.Claims: (*_READING, "claims"),
    c.Inspect: (*_READING, "inspect"),
    c.Listing: (*_READING, "listing"),
    c.Sessions: (*_READING, "sessions"),
    c.Events: (*_READING, "events"),
}


class Script(NamedTuple):
    name: str
    body: bytes
    sha: bytes


def _text(part: str) -> bytes:
    return (FOLDER / f"{part}.lua").read_bytes()


def _make(parts: tuple[str, ...]) -> Script:
    """First the shortcuts; then each part in a function inside that of the part before.

    What a function uses of those around it is handed on as it is; what it uses of its own
    level is searched for in all that are in use there. With a hundred functions on one
    level that took longer than what they did.
    """
    ahead = b"".join(_text(part) + b"\n" for part in parts if part in _SHORTCUTS)
    texts = [_text(part) for part in parts if part not in _SHORTCUTS]
    body = ahead + b"\nreturn (function()\n".join(texts) + b"\nend)()" * (len(texts) - 1)
    return Script(parts[-1], body, hashlib.sha1(body, usedforsecurity=False).hexdigest().encode())


@cache
def script_of(kind: type) -> Script:
    """The script that carries out commands of this type."""
    return _make(_PARTS[kind])


@cache
def probe() -> Script:
    """Retry every right the other scripts need, without changing anything."""
    return _make(("probe",))


def keys_of(namespace: str) -> tuple[bytes, ...]:
    """The keys of a namespace's shard; the braces keep them together in a cluster."""
    return tuple(f"{{lockfast:{namespace}}}:{key}".encode() for key in KEYS)


def inbox_of(namespace: str, session: str) -> str:
    """The channel on which a session is woken."""
    return f"{{lockfast:{namespace}}}:wake:{session}"
