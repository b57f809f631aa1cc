"""lockfast show: one lock, its holders, its queue, and the command that revokes it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

from lockfast.api.blocking import Client
from lockfast.cli import exit_codes
from lockfast.cli.connection import open_client, program_label
from lockfast.cli.formatting import (
    duration,
    local_time,
    shell_word,
    table,
    terminal_width,
    use_colour,
    write_line,
)
from lockfast.cli.json_output import lock_as_json, write_json
from lockfast.cli.ls import permits_in_use
from lockfast.core.modes import EXCLUSIVE, LOCK, PERMIT, SEMAPHORE
from lockfast.flow.admin import ClaimInfo, LockInfo
from lockfast.flow.watch import KINDS
from lockfast.stores.registry import label_of


def show(arguments: argparse.Namespace) -> int:
    """Print one lock; the exit code tells whether it is held."""
    with open_client(arguments, program_label("lockfast")) as client:
        lock = client.inspect(arguments.name, kind=arguments.kind)
        if arguments.json:
            write_json(lock_as_json(lock))
        else:
            for line in _lock_lines(lock, _store_options(arguments)):
                write_line(line)
            if not is_held(lock):
                _hint_at_other_kinds(client, lock)
    return exit_codes.OK if is_held(lock) else exit_codes.NO


def is_held(lock: LockInfo) -> bool:
    """Return whether any claim holds the lock now.

    A holder whose session has expired is listed until the next claim removes it.
    """
    return any(claim.remaining > 0 for claim in lock.holders)


def _hint_at_other_kinds(client: Client, lock: LockInfo) -> None:
    for kind in KINDS:
        if kind != lock.kind and is_held(client.inspect(lock.name, kind=kind)):
            command = f"lockfast show --kind {kind} {_name_argument(lock.name)}"
            write_line(f"a {kind} of this name is in use: {command}")


def _lock_lines(lock: LockInfo, store_options: Sequence[str]) -> Iterator[str]:
    name = lock.name if lock.kind == LOCK else f"{lock.kind} {lock.name}"
    if lock.kind == SEMAPHORE and is_held(lock):
        yield f"{name}: {permits_in_use(lock)} permits are in use"
    elif is_held(lock):
        yield f"{name} is held"
    elif lock.closed_for:
        yield f"{name} is free, but closed for another {duration(lock.closed_for)}"
    else:
        yield f"{name} is free"
    for claim in lock.holders:
        yield from _holder_lines(claim)
    if lock.holder_count > len(lock.holders):
        yield f"and {lock.holder_count - len(lock.holders)} more holders"
    if lock.waiting_count:
        yield ""
        yield from _waiting_lines(lock)
    if is_held(lock):
        kind = [f"--kind {lock.kind}"] if lock.kind != LOCK else []
        words = ["lockfast revoke", *kind, *store_options, "--reason '…'"]
        yield ""
        yield f"to take it from {'its holder' if lock.holder_count == 1 else 'all holders'}:"
        yield f"  {' '.join(words)} {_name_argument(lock.name)}"


def _holder_lines(claim: ClaimInfo) -> Iterator[str]:
    since = time.time() - claim.seconds
    if claim.remaining > 0:
        ends = f"in {duration(claim.remaining)} unless it is renewed"
    else:
        ends = "expired; the next claim gets the lock"
    yield f"  holder   {claim.owner}"
    yield f"  since    {local_time(since)}, for {duration(claim.seconds)}"
    yield f"  ends     {ends}"
    if claim.permits is not None:
        yield f"  permits  {claim.permits}"
    else:
        yield f"  token    {claim.token}"
    yield f"  session  {claim.session}"
    if claim.mode not in (EXCLUSIVE, PERMIT):
        yield f"  mode     {claim.mode}"
    if claim.value is not None:
        yield f"  value    {claim.value}"


def _waiting_lines(lock: LockInfo) -> Iterator[str]:
    yield f"waiting ({lock.waiting_count}):"
    header = ["#", "OWNER", "WAITING FOR", "PRIORITY", "SESSION"]
    rows = [
        [str(at), claim.owner, duration(claim.seconds), str(claim.priority), claim.session]
        for at, claim in enumerate(lock.waiting, 1)
    ]
    if lock.kind == SEMAPHORE:
        header.append("PERMITS")
        for row, claim in zip(rows, lock.waiting, strict=True):
            row.append(str(claim.permits))
    width = terminal_width()
    inner = width - 2 if width is not None else None
    yield from table(header, rows, inner, colour=use_colour(), indent="  ")
    if lock.waiting_count > len(lock.waiting):
        yield f"  and {lock.waiting_count - len(lock.waiting)} more"


def _store_options(arguments: argparse.Namespace) -> list[str]:
    """Return the options that name the same store; the user has to fill in a password."""
    if arguments.url:
        return [f"--url {shell_word(label_of(arguments.url))}"]
    if arguments.url_file:
        return [f"--url-file {shell_word(arguments.url_file)}"]
    return []


def _name_argument(name: str) -> str:
    """Return the name as a command's last argument, even if it looks like an option."""
    return f"-- {shell_word(name)}" if name.startswith("-") else shell_word(name)
