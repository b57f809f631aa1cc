"""Commands as arguments of their scripts, and the scripts' answers as replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, get_args

from lockfast.core import commands as c
from lockfast.core.lines import FAR_MS
from lockfast.core.modes import LOCK, MODES_OF_KIND

Argument: TypeAlias = str | int
Arguments: TypeAlias = tuple[Argument, ...]

# ── commands ─────────────────────────────────────────────────────────────────────────

Plain: TypeAlias = tuple[str, str, str, str]
"""What a script needs of a claim on one lock, as the rows have it."""

_USUAL_OPTIONS: Final = (0, 0, 0, 0, 1)
_PLAIN: Final = (*_USUAL_OPTIONS, None, None, 0)
_LOCK_MODES: Final = MODES_OF_KIND[LOCK]


def _plain_enter(command: c.Enter) -> Plain | None:
    """The claim, if it is on one lock and asks for nothing else, as most do."""
    places = command[2]
    if len(places) == 1 and command[5:] == _PLAIN:
        kind, name, mode, weight, limit = places[0]
        if kind == LOCK and mode in _LOCK_MODES and weight == 1 and not limit:
            session, n, _, actor, queue = command[:5]
            claim = f"{'' if queue else '?'}c\x1f{session}\x1f{n}\x1f{mode}\x1f{actor}"
            return f"s\x1f{session}", f"{n}", f"r\x1flock\x1f{name}", claim
    return None


def _plain_leave(command: c.Leave) -> Plain | None:
    """The claim, if it was on one lock and nobody is kept out of it from now on."""
    session, n, places, close_ms = command
    if len(places) == 1 and not close_ms and places[0][0] == LOCK:
        claim = f"c\x1f{session}\x1f{n}"
        return f"s\x1f{session}", f"{n}", f"r\x1flock\x1f{places[0][1]}", claim
    return None


PLAIN: Final[dict[type, Callable[[Any], Plain | None]]] = {
    c.Enter: _plain_enter,
    c.Leave: _plain_leave,
}
"""By type of command, what makes a plain claim of it, if it is one."""


def _enter(command: c.Enter) -> Arguments:
    session, n, places, actor, queue, *_, value, opening, window_ms = command
    options = command[5:10]
    is_usual = options == _USUAL_OPTIONS and not window_ms
    arguments: list[Argument] = [
        session,
        n,
        "",
        actor,
        int(queue),
        "" if is_usual else " ".join(map(str, (*options, window_ms))),
        "" if value is None else f"+{value}",
        len(places),
    ]
    for place in places:
        arguments += place
    if opening is not None:
        arguments += opening
    return tuple(arguments)


def _break(command: c.Break) -> Arguments:
    ahead_of = command.ahead_of or ("", 0)
    witnesses = (
        value for session, n, held in command.witnesses for value in (session, n, int(held))
    )
    return (command.session, command.n, command.detail, *ahead_of, *witnesses)


def _listing(command: c.Listing) -> Arguments:
    first = max(command.prefix, f"{command.after}\0" if command.after else "")
    return (command.kind, command.prefix, first, command.limit)


ENCODERS: Final[dict[type, Callable[[Any], Arguments]]] = {
    **dict.fromkeys(get_args(c.Command), tuple),
    c.Enter: _enter,
    c.Break: _break,
    c.Listing: _listing,
    c.Leave: lambda command: (command.session, command.n, "", command.close_ms),
    c.Convert: lambda command: (*command[:4], int(command.queue)),
    c.Renew: lambda command: (*command[:4], *command.waiting),
    c.Expel: lambda command: (
        command.session,
        command.reason,
        "" if command.renewals is None else command.renewals,
    ),
    c.Watch: lambda command: (command.session, int(command.on)),
    c.Sessions: lambda command: (f"{command.after}\0" if command.after else "", command.limit),
    c.Events: lambda command: (
        "" if command.after is None else max(0, command.after),
        command.limit,
    ),
}
"""By type of command, what makes the arguments of its script; plain claims have their own."""


# ── replies ──────────────────────────────────────────────────────────────────────────


def _blockers(found: list[Any]) -> tuple[c.Blocker, ...]:
    return tuple(
        c.Blocker(session, n, owner, process, renewals, bool(held), token, for_ms)
        for session, n, owner, process, renewals, held, token, for_ms, _ in found
    )


def _claim_view(found: list[Any]) -> c.ClaimView:
    places = tuple(c.Place(*place[:5]) for place in found[4])
    before, after = found[:4], found[5:]
    fields: Any = (*before, places, *after)
    return c.ClaimView(*fields)


def _resource_view(found: list[Any]) -> c.ResourceView:
    _, kind, name, holders, waiting, *counts = found
    return c.ResourceView(
        kind, name, tuple(map(_claim_view, holders)), tuple(map(_claim_view, waiting)), *counts
    )


def _one_ahead(found: list[Any]) -> tuple[c.Blocker]:
    session, n, owner, process, renewals, held, token, for_ms = found[1:9]
    return (c.Blocker(session, n, owner, process, renewals, bool(held), token, for_ms),)


def _queued(found: list[Any]) -> c.Queued:
    _, blockers, look_ms = found
    return c.Queued(_blockers(blockers), look_ms if look_ms > 0 else FAR_MS)


def _renewed(found: list[Any]) -> c.Renewed:
    looks: Any = tuple((n, decode(look)) for n, look in found[2])
    return c.Renewed(bool(found[1]), looks)


_DECODERS: Final[dict[str, Callable[[list[Any]], c.Reply]]] = {
    "D": lambda found: c.Done(bool(found[1])),
    "G": lambda found: c.Granted(found[1], found[2], found[3], bool(found[4])),
    "Q": _queued,
    "q": lambda found: c.Queued(_one_ahead(found), found[9]),
    "B": lambda found: c.Busy(_blockers(found[1])),
    "b": lambda found: c.Busy(_one_ahead(found)),
    "R": lambda found: c.Refused(*found[1:]),
    "X": lambda found: c.Gone(*found[1:]),
    "E": lambda found: c.Ended(*found[1:]),
    "N": _renewed,
    "C": lambda found: c.ClaimsReply(tuple(map(_claim_view, found[1]))),
    "V": _resource_view,
    "L": lambda found: c.ListingReply(tuple(map(_resource_view, found[1])), bool(found[2])),
    "S": lambda found: c.SessionsReply(
        tuple(c.SessionView(*session) for session in found[1]), bool(found[2])
    ),
    "T": lambda found: c.EventsReply(
        tuple(c.Event(*event) for event in found[1]), found[2], found[3], bool(found[4])
    ),
}


def decode(found: list[Any]) -> c.Reply:
    """The reply in a script's answer."""
    return _DECODERS[found[0]](found)


def has_more(found: Any) -> bool:
    """Whether a session was ended that has claims left: the same command goes on with them."""
    return type(found) is list and found[0] == "D" and len(found) == 3 and found[2] == 1


_DONE: Final = c.Done()


def reply_to(command: c.Command, found: Any) -> c.Reply:
    """As `decode`, also for a number: what the shortcuts of enter and leave answer."""
    if type(found) is int:
        if type(command) is c.Enter:
            return c.Granted(found, 0, command.places[0].mode)
        return _DONE
    return decode(found)


def decode_wakes(found: list[Any]) -> list[c.Wake]:
    """The wakes that a script hands back when it is given a clock."""
    return [c.Wake(*wake) for wake in found]
