"""lockfast revoke: take a lock from its holders, or end a session."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from lockfast.api.blocking import Client
from lockfast.cli.confirmation import ask, require_terminal
from lockfast.cli.connection import open_client, person_label
from lockfast.cli.exit_codes import NO, OK, CommandError
from lockfast.cli.formatting import duration, write_line
from lockfast.core.wording import counted
from lockfast.flow.admin import ClaimInfo


def revoke(arguments: argparse.Namespace) -> int:
    if not arguments.yes:
        require_terminal()
    with open_client(arguments, person_label()) as client:
        if arguments.session is not None:
            return _revoke_session(client, arguments)
        return _revoke_lock(client, arguments)


def _revoke_lock(client: Client, arguments: argparse.Namespace) -> int:
    name, kind = arguments.name, arguments.kind
    holders = client.inspect(name, kind=kind).holders
    if not holders:
        raise CommandError(NO, f"{kind} {name!r} has no holder; nothing was changed")
    if not arguments.yes:
        ask(f"take {name!r} from {_describe(holders)}?")
        # The user confirmed the holders shown; another client may hold the lock by now.
        now = client.inspect(name, kind=kind).holders
        if _ids(now) != _ids(holders):
            holder = f"is now held by {_describe(now)}" if now else "is free"
            raise CommandError(
                NO, f"{name!r} was released while you were asked and {holder}; nothing was changed"
            )
    count = client.revoke(name, reason=arguments.reason, kind=kind)
    if not count:
        raise CommandError(NO, f"{name!r} was released before it could be revoked")
    write_line(f"took {name!r} from {_describe(holders)}")
    return OK


def _revoke_session(client: Client, arguments: argparse.Namespace) -> int:
    wanted = arguments.session
    found = next((each for each in client.sessions() if each.session == wanted), None)
    if found is None:
        raise CommandError(NO, f"session {wanted!r} does not exist; see `lockfast sessions`")
    if found.ended:
        raise CommandError(NO, f"session {wanted!r} has already ended: {found.ended}")
    session = f"session {wanted} of {found.owner} with {counted(found.claims, 'claim')}"
    if not arguments.yes:
        ask(f"end {session}?")
    if not client.revoke(session=wanted, reason=arguments.reason):
        raise CommandError(NO, f"session {wanted!r} has already ended")
    write_line(f"ended {session}")
    return OK


def _describe(holders: Sequence[ClaimInfo]) -> str:
    return ", ".join(
        f"{claim.owner} ({_grant(claim)}, held for {duration(claim.seconds)})" for claim in holders
    )


def _grant(claim: ClaimInfo) -> str:
    if claim.permits is None:
        return f"token {claim.token}"
    return counted(claim.permits, "permit")


def _ids(holders: Sequence[ClaimInfo]) -> set[tuple[str, int]]:
    return {(claim.session, claim.n) for claim in holders}
