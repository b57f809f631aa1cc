"""ls, show, sessions: who has what, since when, and how to break it."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Iterator, Sequence

from lockfast.cli import codes
from lockfast.cli.client import open_client, program_label
from lockfast.cli.documents import lock_as_json, write_json
from lockfast.cli.text import instant, printable, span, table
from lockfast.core.modes import LOCK, TREE
from lockfast.flow.admin import ClaimInfo, LockInfo, SessionInfo
from lockfast.flow.watch import KINDS


def ls(arguments: argparse.Namespace) -> int:
    """The locks in use, one line each."""
    with open_client(arguments, program_label("lockfast")) as client:
        kinds = [TREE] if arguments.tree else [arguments.kind] if arguments.kind else KINDS
        locks = [lock for kind in kinds for lock in client.list(arguments.prefix, kind=kind)]
    if arguments.json:
        write_json([lock_as_json(lock) for lock in locks])
    elif locks:
        for line in tree_lines(locks) if arguments.tree else lock_lines(locks):
            print(line)
    else:
        beginning = f" whose name begins with {arguments.prefix!r}" if arguments.prefix else ""
        print(f"no lock{beginning} is in use", file=sys.stderr)
    return codes.OK


def lock_lines(locks: Sequence[LockInfo]) -> Iterator[str]:
    header: tuple[str, ...] = ("NAME", "HOLDER", "HELD FOR", "ENDS IN", "WAITING", "TOKEN")
    rows: list[tuple[str, ...]] = [_lock_row(lock) for lock in locks]
    if any(lock.kind != LOCK for lock in locks):
        header = ("KIND", *header)
        rows = [(lock.kind, *row) for lock, row in zip(locks, rows, strict=True)]
    return table(header, rows)


def tree_lines(nodes: Sequence[LockInfo]) -> Iterator[str]:
    """Each node below the one it is in; a node whose parent is not shown has its whole name."""
    rows = []
    path: list[str] = []
    for node in sorted(nodes, key=lambda node: node.name.split("/")):
        while path and not node.name.startswith(f"{path[-1]}/"):
            path.pop()
        name = node.name[len(path[-1]) + 1 :] if path else node.name
        modes = sorted({claim.mode for claim in node.holders}) or ["-"]
        _, holder, held_for, _, waiting, _ = _lock_row(node)
        rows.append(("  " * len(path) + name, ", ".join(modes), holder, held_for, waiting))
        path.append(node.name)
    return table(("NAME", "MODE", "HOLDER", "HELD FOR", "WAITING"), rows)


def _lock_row(lock: LockInfo) -> tuple[str, str, str, str, str, str]:
    waiting = str(lock.waiting_count) if lock.waiting_count else "-"
    if not lock.holders:
        holder = f"(closed for {span(lock.closed_for)})" if lock.closed_for else "(free)"
        return lock.name, holder, "-", "-", waiting, "-"
    first = lock.holders[0]
    more = f" and {lock.holder_count - 1} more" if lock.holder_count > 1 else ""
    return (
        lock.name,
        first.owner + more,
        span(first.seconds),
        _ends_in(first),
        waiting,
        str(first.token),
    )


def _ends_in(claim: ClaimInfo) -> str:
    return span(claim.remaining) if claim.remaining > 0 else "expired"


def show(arguments: argparse.Namespace) -> int:
    """One lock with all there is to know; the exit code says whether it is held."""
    with open_client(arguments, program_label("lockfast")) as client:
        lock = client.inspect(arguments.name, kind=arguments.kind)
        options = f" --kind {lock.kind}" if lock.kind != LOCK else ""
        if arguments.url:
            options += f" --url {shlex.quote(client.url)}"
    if arguments.json:
        write_json(lock_as_json(lock))
    else:
        for line in _show_lines(lock, options):
            print(line)
    return codes.OK if is_held(lock) else codes.NO


def is_held(lock: LockInfo) -> bool:
    """Whether anybody has the lock at this instant.

    A holder whose session has expired is listed until somebody asks for the lock.
    """
    return any(claim.remaining > 0 for claim in lock.holders)


def _show_lines(lock: LockInfo, options: str) -> Iterator[str]:
    name = printable(lock.name)
    if lock.kind != LOCK:
        name = f"{lock.kind} {name}"
    if is_held(lock):
        yield f"{name} is held"
    elif lock.closed_for:
        yield f"{name} is free, but closed for another {span(lock.closed_for)}"
    else:
        yield f"{name} is free"
    if lock.limit:
        yield f"  limit    {lock.limit}"
    for claim in lock.holders:
        yield from _holder_lines(claim)
    if lock.holder_count > len(lock.holders):
        yield f"and {lock.holder_count - len(lock.holders)} more holders"
    if lock.waiting_count:
        yield ""
        yield f"waiting ({lock.waiting_count}):"
        rows = [
            (str(at), claim.owner, span(claim.seconds), str(claim.priority), claim.session)
            for at, claim in enumerate(lock.waiting, 1)
        ]
        for line in table(("#", "OWNER", "WAITING FOR", "PRIORITY", "SESSION"), rows):
            yield f"  {line}"
        if lock.waiting_count > len(lock.waiting):
            yield f"  … and {lock.waiting_count - len(lock.waiting)} more"
    if is_held(lock):
        yield ""
        yield "to take it from its holder:"
        yield f"  lockfast revoke {shlex.quote(lock.name)}{options} --reason '…'"


def _holder_lines(claim: ClaimInfo) -> Iterator[str]:
    since = time.time() - claim.seconds
    if claim.remaining > 0:
        ends = f"in {span(claim.remaining)} unless it is renewed"
    else:
        ends = "expired; the next who asks gets the lock"
    yield f"  holder   {printable(claim.owner)}"
    yield f"  since    {instant(since)}, for {span(claim.seconds)}"
    yield f"  ends     {ends}"
    yield f"  token    {claim.token}"
    yield f"  session  {claim.session}"
    if claim.mode != "exclusive":
        yield f"  mode     {claim.mode}"
    if claim.value is not None:
        yield f"  value    {printable(claim.value)}"


def sessions(arguments: argparse.Namespace) -> int:
    """The clients of the store."""
    with open_client(arguments, program_label("lockfast")) as client:
        found = [each for each in client.sessions() if arguments.all or not each.ended]
    if arguments.json:
        write_json([each._asdict() for each in found])
    elif found:
        header = ("SESSION", "OWNER", "CLAIMS", "TTL", "ENDS IN", "RENEWALS", "STATE")
        for line in table(header, [_session_row(each) for each in found]):
            print(line)
    else:
        print("there are no sessions", file=sys.stderr)
    return codes.OK


def _session_row(session: SessionInfo) -> Sequence[str]:
    if session.ended:
        ends, state = "-", f"ended: {session.ended}"
        if session.by:
            state += f" (by {session.by})"
    else:
        ends, state = span(session.remaining), "alive"
    return (
        session.session,
        session.owner,
        str(session.claims),
        span(session.ttl),
        ends,
        str(session.renewals),
        state,
    )
