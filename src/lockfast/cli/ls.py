"""lockfast ls: the locks in use, one line each."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from lockfast.cli import exit_codes
from lockfast.cli.connection import open_client, program_label
from lockfast.cli.formatting import (
    WIDE,
    duration,
    table,
    terminal_width,
    use_colour,
    without_columns,
    write_line,
    write_note,
)
from lockfast.cli.json_output import lock_as_json, write_json
from lockfast.core.modes import LOCK, SEMAPHORE, TREE
from lockfast.flow.admin import ClaimInfo, LockInfo
from lockfast.flow.watch import KINDS


def ls(arguments: argparse.Namespace) -> int:
    with open_client(arguments, program_label("lockfast")) as client:
        kinds = [TREE] if arguments.tree else [arguments.kind] if arguments.kind else KINDS
        locks = [lock for kind in kinds for lock in client.list(arguments.prefix, kind=kind)]
        store = client._core.store.label
    if arguments.json:
        write_json([lock_as_json(lock) for lock in locks])
    elif locks:
        lines = tree_lines if arguments.tree else lock_lines
        for line in lines(locks, terminal_width(), colour=use_colour()):
            write_line(line)
    else:
        beginning = f" whose name begins with {arguments.prefix!r}" if arguments.prefix else ""
        # Name the store: a mistyped path is a new, empty database.
        write_note(f"no lock{beginning} is in use in {store}")
    return exit_codes.OK


def lock_lines(
    locks: Sequence[LockInfo], width: int | None = None, *, colour: bool = False
) -> Iterator[str]:
    """Yield the locks as a table, with a KIND column if any is not a plain lock."""
    header = ["KIND", "NAME", "HOLDER", "HELD FOR", "ENDS IN", "WAITING", "TOKEN"]
    rows = [[lock.kind, *_lock_row(lock)] for lock in locks]
    if all(lock.kind == LOCK for lock in locks):
        header, rows = without_columns(header, rows, "KIND")
    if width is not None and width < WIDE:
        header, rows = without_columns(header, rows, "TOKEN")
    return table(header, rows, width, colour=colour)


def tree_lines(
    nodes: Sequence[LockInfo], width: int | None = None, *, colour: bool = False
) -> Iterator[str]:
    """Yield each node indented below its parent, or with its full name if that is not listed."""
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
    header = ("NAME", "MODE", "HOLDER", "HELD FOR", "WAITING")
    return table(header, rows, width, colour=colour)


def permits_in_use(semaphore: LockInfo) -> str:
    """Return the permits in use, for example `4 of 10`."""
    used = sum(claim.permits or 0 for claim in semaphore.holders if claim.remaining > 0)
    at_least = "at least " if semaphore.holder_count > len(semaphore.holders) else ""
    return f"{at_least}{used} of {semaphore.limit}"


def _lock_row(lock: LockInfo) -> tuple[str, str, str, str, str, str]:
    waiting = str(lock.waiting_count) if lock.waiting_count else "-"
    if not lock.holders:
        holder = f"(closed for {duration(lock.closed_for)})" if lock.closed_for else "(free)"
        return lock.name, holder, "-", "-", waiting, "-"
    first = lock.holders[0]
    holder = first.owner
    if lock.holder_count > 1:
        holder += f" and {lock.holder_count - 1} more"
    if lock.kind == SEMAPHORE:
        holder = f"{permits_in_use(lock)}: {holder}"
    token = "-" if first.token is None else str(first.token)
    return lock.name, holder, duration(first.seconds), _ends_in(first), waiting, token


def _ends_in(claim: ClaimInfo) -> str:
    return duration(claim.remaining) if claim.remaining > 0 else "expired"
