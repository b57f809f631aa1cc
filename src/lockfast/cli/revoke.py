"""revoke: step in, knowing from whom one takes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lockfast.api.blocking import Client
from lockfast.cli import codes
from lockfast.cli.client import open_client, person_label
from lockfast.cli.text import printable, span
from lockfast.flow.admin import ClaimInfo


def revoke(arguments: argparse.Namespace) -> int:
    """Take a lock from its holders, or end a session; asks first."""
    if not arguments.yes and not sys.stdin.isatty():
        raise codes.Complaint(
            codes.USAGE, "there is no terminal to ask at; say --yes if you are sure"
        )
    with open_client(arguments, person_label()) as client:
        if arguments.session is not None:
            return _revoke_session(client, arguments)
        return _revoke_lock(client, arguments)


def _revoke_lock(client: Client, arguments: argparse.Namespace) -> int:
    name, kind = arguments.name, arguments.kind
    holders = client.inspect(name, kind=kind).holders
    if not holders:
        raise codes.Complaint(codes.NO, f"nobody holds {name!r}")
    if not arguments.yes:
        _ask(f"take {name!r} from {_describe(holders)}?")
        # It was passed on while we were asking: nobody has agreed to that.
        now = client.inspect(name, kind=kind).holders
        if _ids(now) != _ids(holders):
            whom = _describe(now) if now else "nobody"
            raise codes.Complaint(
                codes.NO, f"{name!r} was given back meanwhile, now {whom} holds it; nothing done"
            )
    count = client.revoke(name, reason=arguments.reason, kind=kind)
    if not count:
        raise codes.Complaint(codes.NO, f"{name!r} was given back meanwhile; nothing done")
    print(f"took {name!r} from {_describe(holders)}")
    return codes.OK


def _revoke_session(client: Client, arguments: argparse.Namespace) -> int:
    wanted = arguments.session
    found = next((each for each in client.sessions() if each.session == wanted), None)
    if found is None or found.ended:
        why = f"is over: {found.ended}" if found is not None else "is not known"
        raise codes.Complaint(codes.NO, f"session {wanted!r} {why}")
    whose = f"session {wanted} of {printable(found.owner)} with {found.claims} claim(s)"
    if not arguments.yes:
        _ask(f"end {whose}?")
    if not client.revoke(session=wanted, reason=arguments.reason):
        raise codes.Complaint(codes.NO, f"session {wanted!r} is over already")
    print(f"ended {whose}")
    return codes.OK


def _describe(holders: Sequence[ClaimInfo]) -> str:
    return ", ".join(
        f"{printable(claim.owner)} (token {claim.token}, held for {span(claim.seconds)})"
        for claim in holders
    )


def _ids(holders: Sequence[ClaimInfo]) -> set[tuple[str, int]]:
    return {(claim.session, claim.n) for claim in holders}


def _ask(question: str) -> None:
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise codes.Complaint(codes.NO, "nothing done")
