"""Assemble the Lua scripts: one per command, from shared parts and its own body.

Rules that Lua needs are not duplicated in Lua: modes, limits and texts are taken from `core/` when
a script is assembled and replace `$NAMES`. The few rules that Lua executes (the clock, the next
token, the code of a wake) are defined here once and inlined where they are used.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from lockfast.core import commands as c
from lockfast.core import reasons
from lockfast.core.checksum import FACTOR, MODULUS, PRIME
from lockfast.core.lines import BLOCKERS_MAX
from lockfast.core.modes import CONFLICTS, LOCK, MODES_OF_KIND, UPGRADES
from lockfast.core.rows import LOG_KEPT, LOG_KEPT_MS
from lockfast.core.table import ENDED_KEPT_MS, REAPED_PER_STEP, Limits

FOLDER: Final = Path(__file__).parent / "scripts"
KEYS: Final = ("rows", "order", "due", "log")
"""All keys of a shard. Every script declares all of them and touches no other."""
SCHEMA: Final = 1
ONE_SHARD: Final = 1
"""The layout of a namespace without shards. A layout is the number of shards, plus
BY_FIRST_SEGMENT if names are placed by their first segment."""
BY_FIRST_SEGMENT: Final = 128

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


# ── what Lua is told ─────────────────────────────────────────────────────────────────

_LISTED_BYTES_MAX: Final = 400
_MARK_AT: Final = 33
"""In a session's row, after four numbers: the mark, then the list of claims."""
_limits: Final = Limits()


def _set(values: Iterable[str]) -> str:
    return "{ " + ", ".join(f"{value} = 1" for value in sorted(values)) + " }"


def _sets(sets: Mapping[str, Iterable[str]]) -> str:
    return "{ " + ", ".join(f"{key} = {_set(values)}" for key, values in sets.items()) + " }"


def _conversion_strength() -> str:
    """Return a Lua table of mode strengths: one plus the number of modes that upgrade to it."""
    strength = {mode: 1 + sum(to == mode for _, to in UPGRADES) for mode in MODES_OF_KIND[LOCK]}
    return "{ " + ", ".join(f"{mode} = {n}" for mode, n in sorted(strength.items())) + " }"


_DEFINITIONS: Final[dict[str, object]] = {
    "SCHEMA": SCHEMA,
    "BY_FIRST_SEGMENT": BY_FIRST_SEGMENT,
    "CONFLICTS": _sets(CONFLICTS),
    "MODES_OF_KIND": _sets(MODES_OF_KIND),
    "CONVERSION_STRENGTH": _conversion_strength(),
    "CLAIMS_MAX": _limits.claims_max,
    "WAITING_MAX": _limits.waiting_max,
    "PLACES_MAX": _limits.places_max,
    "TEXT_MAX": _limits.text_max,
    "ENDED_PER_STEP": _limits.ended_per_step,
    "ENDED_KEPT_MS": ENDED_KEPT_MS,
    "REAPED_PER_STEP": REAPED_PER_STEP,
    "BLOCKERS_MAX": BLOCKERS_MAX,
    "LOG_KEPT": LOG_KEPT,
    "LOG_KEPT_MS": LOG_KEPT_MS,
    "EXPIRED": f"'{reasons.EXPIRED}'",
    "CLOSED": f"'{reasons.CLOSED}'",
    "UNKNOWN_SESSION": f"'{reasons.UNKNOWN_SESSION}'",
    "MAX_HOLD_ELAPSED": f"'{reasons.MAX_HOLD_ELAPSED}'",
    "NOT_HELD": f"'{reasons.NOT_HELD}'",
    "NOT_QUEUED": f"'{reasons.NOT_QUEUED}'",
    "REVOKED_TEXT": f"'{reasons.REVOKED}'",
    "ALREADY_RELEASED": f"'{reasons.ALREADY_RELEASED}'",
    "LATER_CONVERSION": f"'{reasons.LATER_CONVERSION}'",
    "NOT_CONVERTIBLE": f"'{reasons.NOT_CONVERTIBLE}'",
    "NO_LIMIT": f"'{reasons.NO_LIMIT}'",
    "TOO_MANY_PERMITS": "'"
    + reasons.TOO_MANY_PERMITS.format(
        limit="' .. text(limit) .. '", weight="' .. text(weight) .. '"
    )
    + "'",
    "MIX_FACTOR": FACTOR,
    "MIX_PRIME": PRIME,
    "CHECKSUMS": MODULUS,
    # The layout of rows.
    "COUNTERS_BYTES": 26,
    "MARK_AT": _MARK_AT,
    "LISTED_BYTES_MAX": _LISTED_BYTES_MAX,
    "SESSION_BYTES_MAX": _MARK_AT - 1 + _LISTED_BYTES_MAX,
    "COMMA": ord(","),
    "QUESTION_MARK": ord("?"),
    "PLAIN_MARK": ord("c"),
    "WAITING": 1,
    "HOLDING": 2,
    # Below 2^52, where % is exact: the shortcuts use it.
    "EXACT_MAX": "4e15",
    "REPAIRING": "false",
    # Needs `call`; sets now_ms and wall_us.
    "READ_CLOCK": """\
if KEYS[5] then
  now_ms, wall_us = string.match(KEYS[5], '(%d+) (%d+)')
  now_ms, wall_us = now_ms + 0, wall_us + 0
else
  local time = call('TIME')
  wall_us = time[1] * 1000000 + time[2]
  now_ms = (wall_us - wall_us % 1000) / 1000
end""",
    # The rule of core/tokens.py; needs wall_us, increases `token`, the last token granted.
    "NEXT_TOKEN": """\
token = token + 1
if token < wall_us then
  token = wall_us
end""",
    # As checked by session_wakes.py.
    "WAKE_CODE": "redis.sha1hex(inbox .. said .. inbox)",
}


class Script(NamedTuple):
    name: str
    body: bytes
    sha: bytes


def _text(part: str, definitions: Mapping[str, object]) -> str:
    """Return a part with its definitions inserted. Raises KeyError for an undefined name."""
    source = (FOLDER / f"{part}.lua").read_text(encoding="utf-8")
    return re.sub(r"\$([A-Z][A-Z_]*)", lambda name: str(definitions[name[1]]), source)


def _make(parts: tuple[str, ...], layout: int, **changed: object) -> Script:
    """Assemble a script: first the shortcuts, then each part as a function inside the previous one.

    A Lua function captures the outer variables it uses when it is created, but finds those of its
    own level by a linear search. With a hundred functions on one level, that search took longer
    than their work.
    """
    definitions = {
        **_DEFINITIONS,
        "SHARDS": layout,
        "SCHEMA_SHARDS": SCHEMA + 256 * layout,
        **changed,
    }
    ahead = "".join(_text(part, definitions) + "\n" for part in parts if part in _SHORTCUTS)
    texts = [_text(part, definitions) for part in parts if part not in _SHORTCUTS]
    whole = ahead + "\nreturn (function()\n".join(texts) + "\nend)()" * (len(texts) - 1)
    body = whole.encode()
    return Script(parts[-1], body, hashlib.sha1(body, usedforsecurity=False).hexdigest().encode())


@cache
def script_of(kind: type, layout: int = ONE_SHARD) -> Script:
    """Return the script that executes commands of this type."""
    return _make(_PARTS[kind], layout)


@cache
def probe() -> Script:
    """Return the script that uses every permission the others need, without changing anything."""
    return _make(("probe",), ONE_SHARD)


@cache
def agreement(layout: int) -> Script:
    """Return the script that records the layout of a namespace, or fails if it has another."""
    return _make(("shard", "layout"), layout)


@cache
def repair(layout: int = ONE_SHARD) -> Script:
    """Return the script that rebuilds a damaged namespace from its intact rows."""
    # Without "table": a Lua function may use at most 60 variables of its enclosing functions.
    return _make((*_WRITING[:-1], "repair"), layout, REPAIRING="true")


@cache
def reset(layout: int = ONE_SHARD) -> Script:
    """Return the script that empties a namespace but keeps its tokens increasing."""
    return _make(("reset",), layout)


def keys_of(namespace: str) -> tuple[bytes, ...]:
    """Return the keys of a namespace's shard; the braces keep them together in a cluster."""
    return tuple(f"{{lockfast:{namespace}}}:{key}".encode() for key in KEYS)


def channel_of(namespace: str, session: str) -> str:
    """Return the channel on which a session is woken; writing.lua derives it from the keys."""
    return f"{{lockfast:{namespace}}}:wake:{session}"
