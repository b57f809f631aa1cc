"""The log line of each event: level, text and fields. Pure; `log.py` passes it to `logging`.

Events that an operator must see are logged whether or not anything observes the client
(`ALWAYS`); the others only after `lockfast.logs.enable()`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from lockfast import events as e
from lockfast.core.wording import counted

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40

ALWAYS: Final = (
    e.LeaseLost,
    e.StoreUnreachable,
    e.StoreBack,
    e.DeadlockFound,
)


class Line(NamedTuple):
    """One line of the log."""

    level: int
    text: str
    fields: dict[str, Any]
    """For `extra=`. The lock's name is `lock`, because `logging` reserves `name`."""


def line_of(event: e.Event) -> Line:
    """Return the log line of an event."""
    level, text = _described(event)
    return Line(level, text, _fields(event))


def _described(event: e.Event) -> tuple[int, str]:
    match event:
        case e.AcquireBegun():
            return DEBUG, f"acquiring {event.subject.name!r}"
        case e.AcquireQueued():
            place = f" at position {event.position}" if event.position is not None else ""
            held = f" behind {', '.join(event.holders)}" if event.holders else ""
            return DEBUG, f"waiting for {event.subject.name!r}{place}{held}"
        case e.AcquireGranted():
            waited = f" after {_span(event.wait_us)}" if event.contended else ""
            return DEBUG, f"acquired {event.subject.name!r} (token {event.token}){waited}"
        case e.AcquireGaveUp():
            level = DEBUG if event.why == e.GAVE_UP_BUSY else INFO
            why = event.error or event.why
            return level, f"did not acquire {event.subject.name!r}: {why}"
        case e.LeaseReleased():
            held_for = _span(event.hold_us)
            return DEBUG, f"released {_lease(event)} after {held_for}"
        case e.LeaseConverted():
            return DEBUG, f"converted {_lease(event)} from {event.former_mode}"
        case e.LeaseUncertain():
            return INFO, f"keep-alive failed; {_lease(event)} ends in {_span(event.left_us)}"
        case e.LeaseLost():
            held_for = _span(event.hold_us)
            return ERROR, f"lost {_lease(event)} after {held_for}: {event.reason}"
        case e.LeaseRevoked():
            return WARNING, f"{event.by} revoked {_lease(event)}: {event.reason}"
        case e.LockRetained():
            return DEBUG, f"retaining {_lease(event)}"
        case e.RetainedReturned():
            return DEBUG, f"no longer retaining {event.subject.name!r}"
        case e.SessionOpened():
            return INFO, f"opened session {event.session} with a TTL of {event.ttl_ms / 1000:g} s"
        case e.SessionRenewed():
            return DEBUG, f"renewed session {event.session} in {_span(event.took_us)}"
        case e.KeepAliveFailed():
            return INFO, f"keep-alive of session {event.session} failed: {event.error}"
        case e.SessionEnded():
            by = f" (by {event.by})" if event.by else ""
            return INFO, f"session {event.session} has ended: {event.reason}{by}"
        case e.StoreUnreachable():
            if not event.for_us or event.failures == 1:
                return WARNING, f"{event.source.store} is unreachable: {event.error}"
            return WARNING, (
                f"{event.source.store} has been unreachable for {_span(event.for_us)}, "
                f"{counted(event.failures, 'request')} failed: {event.error}"
            )
        case e.StoreBack():
            return WARNING, (
                f"{event.source.store} is reachable again after {_span(event.for_us)}, "
                f"{counted(event.failures, 'request')} failed"
            )
        case e.DeadlockFound():
            return WARNING, f"deadlock: {'; '.join(event.lines)}"
        case e.GuardAdmitted():
            return DEBUG, f"{event.guard} guard admitted token {event.token} to {event.resource!r}"
        case e.GuardRefused():
            return WARNING, (
                f"{event.guard} guard refused token {event.token} for {event.resource!r}: "
                f"{event.floor} was admitted before"
            )


def _lease(event: Any) -> str:
    return f"{event.subject.name!r} (token {event.token})"


def _span(us: int) -> str:
    return f"{us / 1000:.1f} ms" if us < 1_000_000 else f"{us / 1e6:.1f} s"


def _fields(event: e.Event) -> dict[str, Any]:
    fields: dict[str, Any] = {"event": type(event).__name__}
    for name, value in zip(event._fields, event, strict=True):
        if name == "source":
            fields["store"], fields["owner"] = value.store, value.owner
        elif name == "subject":
            fields["kind"], fields["lock"], fields["mode"], fields["actor"] = value
        elif name in ("trace", "traces", "at_us"):
            continue
        elif name.endswith("_us"):
            fields[f"{name[:-3]}_ms"] = value / 1000
        else:
            fields["lock" if name == "resource" else name] = value
    return fields
