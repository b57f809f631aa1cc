"""Convert rows of the lock table to columns, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from lockfast.core.commands import HOLDING, Place
from lockfast.core.rows import Claim, ResourceRow, Session
from lockfast.stores.postgresql.connection import Parameter, as_json

FINISHED: Final = "finished"
"""The state of a claim of which only the number remains."""


def unpack_claim(values: Sequence[Any]) -> Claim | None:
    """Return a claim from the columns of `claim_row`; None if only its number remains."""
    if values[3] == FINISHED:
        return None
    places = tuple(Place(*place) for place in json.loads(values[2]))
    return Claim(values[0], values[1], places, *values[3:])


def pack_claim(claim: Claim) -> list[Parameter]:
    """Return the columns after the namespace, in the order of the table."""
    return [
        claim.session, claim.n, pack_places(claim.places), claim.state, claim.rank, claim.actor,
        claim.priority, claim.entered_ms, claim.token, claim.granted_ms, claim.until_ms,
        claim.max_hold_ms, claim.lock_delay_ms, claim.block, claim.value, claim.passed,
        claim.step, claim.wants, claim.reason, claim.by, claim.window_ms,
        claim.until_ms if claim.state == HOLDING else 0,
    ]  # fmt: skip


def pack_places(places: Sequence[Place]) -> str:
    return as_json(places)


def unpack_resource(values: Sequence[Any]) -> ResourceRow:
    kind, name, held, reserved, *rest = values
    return ResourceRow(kind, name, json.loads(held), json.loads(reserved), *rest)


def pack_resource(row: ResourceRow) -> list[Parameter]:
    return [
        row.kind, row.name, as_json(row.held), as_json(row.reserved), row.holders, row.waiting,
        row.reservations, row.sole, row.converting, row.limit, row.closed_ms, row.retained,
    ]  # fmt: skip


def unpack_session(values: Sequence[Any]) -> Session:
    """Return a session from the columns of `session_row`.

    `highest` is the last number known to be finished; count and checksum are computed from the
    claims when needed.
    """
    (
        id, ttl_ms, owner, metadata, inbox, process, opened_ms, deadline_ms, renewals, lowest,
        watching, ended, by, ending,
    ) = values  # fmt: skip
    return Session(
        id, ttl_ms, owner, metadata, inbox, process, opened_ms, deadline_ms, renewals,
        highest=lowest - 1, watching=watching, ended=ended, by=by, ending=ending,
    )  # fmt: skip


def pack_session(session: Session, lowest: int) -> list[Parameter]:
    return [
        session.id, session.ttl_ms, session.owner, session.metadata, session.inbox,
        session.process, session.opened_ms, session.deadline_ms, session.renewals, lowest,
        session.watching, session.ended, session.by, session.ending,
    ]  # fmt: skip
