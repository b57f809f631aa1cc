"""Encode commands as script arguments, and decode the scripts' answers as replies.

Answers are validated here: the shape, the types and the range of what a server sends are checked
before the rest of the program sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, get_args

from lockfast.core import commands as c
from lockfast.core.lines import FAR_MS
from lockfast.core.modes import LOCK, MODES_OF_KIND
from lockfast.stores.stream import FRAME_BYTES_MAX

Argument: TypeAlias = str | int
Arguments: TypeAlias = tuple[Argument, ...]

# ── commands ─────────────────────────────────────────────────────────────────────────

Plain: TypeAlias = tuple[str, str, str, str]
"""The arguments of a claim on one lock without options, as the rows store them."""

_USUAL_OPTIONS: Final = (0, 0, 0, 0, 1)
_PLAIN: Final = (*_USUAL_OPTIONS, None, None, 0)
_LOCK_MODES: Final = MODES_OF_KIND[LOCK]


def _plain_enter(command: c.Enter) -> Plain | None:
    """Return the arguments if the claim is on one lock and has no options, as most have."""
    places = command[2]
    if len(places) == 1 and command[5:] == _PLAIN:
        kind, name, mode, weight, limit = places[0]
        if kind == LOCK and mode in _LOCK_MODES and weight == 1 and not limit:
            session, n, _, actor, queue = command[:5]
            claim = f"{'' if queue else '?'}c\x1f{session}\x1f{n}\x1f{mode}\x1f{actor}"
            return f"s\x1f{session}", f"{n}", f"r\x1flock\x1f{name}", claim
    return None


def _plain_leave(command: c.Leave) -> Plain | None:
    """Return the arguments if the claim is on one lock that is not to be closed."""
    session, n, places, close_ms = command
    if len(places) == 1 and not close_ms and places[0][0] == LOCK:
        claim = f"c\x1f{session}\x1f{n}"
        return f"s\x1f{session}", f"{n}", f"r\x1flock\x1f{places[0][1]}", claim
    return None


PLAIN: Final[dict[type, Callable[[Any], Plain | None]]] = {
    c.Enter: _plain_enter,
    c.Leave: _plain_leave,
}
"""By type of command: return the arguments of a plain claim, or None if it is not plain."""


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
"""By type of command: return the arguments of its script. Plain claims have their own."""

BYTES_MAX: Final[dict[type, int]] = {
    **dict.fromkeys(get_args(c.Command), FRAME_BYTES_MAX),
    # A keep-alive returns up to 80 waiting claims and the 16 claims ahead of each.
    c.Renew: 8 << 20,
    # These replies grow with the stored data.
    **dict.fromkeys((c.Claims, c.Inspect, c.Listing, c.Sessions, c.Events), 128 << 20),
}
"""The largest answer that is read, by type of command."""


# ── replies ──────────────────────────────────────────────────────────────────────────

TOKEN_MAX: Final = 1 << 53
_INT, _STR, _LIST = (int,), (str,), (list,)
_TEXT_OR_NONE: Final = (str, type(None))
_BLOCKER: Final = (_STR, _INT, _STR, _STR, _INT, _INT, _INT, _INT, _INT)
_PLACE: Final = (_STR, _STR, _STR, _INT, _INT, _INT)
_CLAIM: Final = (
    *(_STR, _INT, _STR, _STR, _LIST, _STR, _INT, _INT, _TEXT_OR_NONE, _INT, _INT),
    *(_STR, _STR, _INT, _STR),
)
_RESOURCE: Final = (_STR, _STR, _STR, _LIST, _LIST, _INT, _INT, _INT, _INT)
_SESSION: Final = (_STR, _STR, _STR, _STR, _INT, _INT, _INT, _INT, _STR, _STR)
_EVENT: Final = (_INT, _INT, _STR, _STR, _STR, _STR, _STR, _INT, _STR, _INT, _STR)


class AnswerError(ValueError):
    """An answer that none of our scripts returns."""


def _record(found: Any, kinds: tuple[tuple[type, ...], ...]) -> Any:
    """Return `found` if it is a list of values of these types, with numbers in range."""
    if type(found) is not list or len(found) != len(kinds):
        raise AnswerError(f"{found!r:.80} is no list of {len(kinds)} values")
    for value, kind in zip(found, kinds, strict=True):
        if type(value) not in kind:
            raise AnswerError(f"{value!r:.80} is no {kind[0].__name__}")
        if kind is _INT and not -TOKEN_MAX <= value <= TOKEN_MAX:
            raise AnswerError(f"{value!r:.80} is out of range")
    return found


def _token(value: int) -> int:
    if not 1 <= value <= TOKEN_MAX:
        raise AnswerError(f"{value!r:.80} is no token")
    return value


def _blockers(found: list[Any]) -> tuple[c.Blocker, ...]:
    return tuple(
        c.Blocker(session, n, owner, process, renewals, bool(held), token, for_ms)
        for session, n, owner, process, renewals, held, token, for_ms, _ in (
            _record(one, _BLOCKER) for one in found
        )
    )


def _claim_view(found: Any) -> c.ClaimView:
    before, places, after = found[:4], _record(found, _CLAIM)[4], found[5:]
    fields: Any = (
        *before,
        tuple(c.Place(*_record(place, _PLACE)[:5]) for place in places),
        *after,
    )
    return c.ClaimView(*fields)


def _resource_view(found: Any) -> c.ResourceView:
    _, kind, name, holders, waiting, *counts = _record(found, _RESOURCE)
    return c.ResourceView(
        kind, name, tuple(map(_claim_view, holders)), tuple(map(_claim_view, waiting)), *counts
    )


def _granted(found: list[Any]) -> c.Granted:
    _, token, for_ms, mode, wanted = _record(found, (_STR, _INT, _INT, _STR, _INT))
    return c.Granted(_token(token), for_ms, mode, bool(wanted))


def _queued(found: list[Any]) -> c.Queued:
    _, blockers, look_ms = _record(found, (_STR, _LIST, _INT))
    return c.Queued(_blockers(blockers), look_ms if look_ms > 0 else FAR_MS)


def _busy(found: list[Any]) -> c.Busy:
    return c.Busy(_blockers(_record(found, (_STR, _LIST))[1]))


def _first_ahead(found: list[Any]) -> tuple[c.Blocker]:
    """Return the blocker in a shortcut's answer, which has its fields inline."""
    session, n, owner, process, renewals, held, token, for_ms, _ = _record(found[1:], _BLOCKER)
    return (c.Blocker(session, n, owner, process, renewals, bool(held), token, for_ms),)


def _queued_shortly(found: list[Any]) -> c.Queued:
    return c.Queued(_first_ahead(found), found[-1])


def _busy_shortly(found: list[Any]) -> c.Busy:
    return c.Busy(_first_ahead(found))


def _refused(found: list[Any]) -> c.Refused:
    return c.Refused(*_record(found, (_STR, _STR, _STR, _INT, _INT))[1:])


def _gone(found: list[Any]) -> c.Gone:
    return c.Gone(*_record(found, (_STR, _STR, _STR))[1:])


def _ended(found: list[Any]) -> c.Ended:
    return c.Ended(*_record(found, (_STR, _STR, _STR))[1:])


def _done(found: list[Any]) -> c.Done:
    kinds = (_STR, _INT, _INT) if len(found) == 3 else (_STR, _INT)
    return c.Done(*map(bool, _record(found, kinds)[1:]))


def _renewed(found: list[Any]) -> c.Renewed:
    _, matches, looks = _record(found, (_STR, _INT, _LIST))
    decoded: list[tuple[int, c.Granted | c.Queued | c.Gone]] = []
    for look in looks:
        n, how = _record(look, (_INT, _LIST))
        reply = decode(how)
        if not isinstance(reply, c.Granted | c.Queued | c.Gone):
            raise AnswerError(f"{how!r:.80} does not say how a claim stands")
        decoded.append((n, reply))
    return c.Renewed(bool(matches), tuple(decoded))


def _claims(found: list[Any]) -> c.ClaimsReply:
    return c.ClaimsReply(tuple(map(_claim_view, _record(found, (_STR, _LIST))[1])))


def _listed(found: list[Any]) -> c.ListingReply:
    _, resources, more = _record(found, (_STR, _LIST, _INT))
    return c.ListingReply(tuple(map(_resource_view, resources)), bool(more))


def _sessions(found: list[Any]) -> c.SessionsReply:
    _, sessions, more = _record(found, (_STR, _LIST, _INT))
    views = tuple(c.SessionView(*_record(session, _SESSION)) for session in sessions)
    return c.SessionsReply(views, bool(more))


def _events(found: list[Any]) -> c.EventsReply:
    _, events, end, oldest, more = _record(found, (_STR, _LIST, _INT, _INT, _INT))
    return c.EventsReply(
        tuple(c.Event(*_record(event, _EVENT)) for event in events), end, oldest, bool(more)
    )


_DECODERS: Final[dict[str, Callable[[list[Any]], c.Reply]]] = {
    "D": _done,
    "G": _granted,
    "Q": _queued,
    "q": _queued_shortly,
    "B": _busy,
    "b": _busy_shortly,
    "R": _refused,
    "X": _gone,
    "E": _ended,
    "N": _renewed,
    "C": _claims,
    "V": _resource_view,
    "L": _listed,
    "S": _sessions,
    "T": _events,
}


def decode(found: Any) -> c.Reply:
    """Return the reply in a script's answer. Raises AnswerError."""
    decoder = None
    if type(found) is list and found and type(found[0]) is str:
        decoder = _DECODERS.get(found[0])
    if decoder is None:
        raise AnswerError(f"{found!r:.80} is no answer to a command")
    return decoder(found)


_DONE: Final = c.Done()


def reply_to(command: c.Command, found: Any) -> c.Reply:
    """Return the reply in the answer to `command`. Raises AnswerError.

    Besides what `decode` accepts, it accepts the numbers that the shortcuts return: a token to
    enter, 1 to leave.
    """
    if type(found) is int:
        if type(command) is c.Enter:
            return c.Granted(_token(found), 0, command.places[0].mode)
        if type(command) is c.Leave and found == 1:
            return _DONE
    return decode(found)


def decode_wakes(found: list[Any]) -> list[c.Wake]:
    """Return the wakes that a script returns if a test gives it a clock."""
    return [c.Wake(*wake) for wake in found]
