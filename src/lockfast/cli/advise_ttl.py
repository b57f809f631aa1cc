"""lockfast advise-ttl: which TTL would have lost a lease, from recorded keep-alives."""

from __future__ import annotations

import argparse
import os
import tempfile
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lockfast.cli import exit_codes
from lockfast.cli.connection import open_client, program_label
from lockfast.cli.formatting import duration, table, write_line, write_note
from lockfast.cli.json_output import write_json
from lockfast.errors import LeaseLostError, StoreError
from lockfast.stores.history_recorder import VARIABLE

if TYPE_CHECKING:
    from lockfast.sim.ttl_advice import Advice

COLUMNS = 79
RETRY_S = 0.2


def advise_ttl(arguments: argparse.Namespace) -> int:
    """Print how each TTL would have fared; return 1 if there is too little data."""
    from lockfast.sim.entries import HistoryError
    from lockfast.sim.history import read_history
    from lockfast.sim.keep_alives import read_sessions
    from lockfast.sim.ttl_advice import CANDIDATES_S, advise

    records = []
    with tempfile.TemporaryDirectory(prefix="lockfast-") as directory:
        paths: list[Path] = arguments.histories
        if not paths:
            paths = [Path(directory) / "history.jsonl"]
            _measure(arguments, paths[0])
        for path in paths:
            try:
                records += read_sessions(read_history(path))
            except HistoryError as error:
                raise exit_codes.CommandError(exit_codes.USAGE, str(error)) from None
    advice = advise(records, arguments.candidates or CANDIDATES_S)
    if arguments.json:
        write_json(_as_json(advice))
    else:
        _print(advice)
    return exit_codes.OK if advice.ttl_s is not None else exit_codes.NO


def _measure(arguments: argparse.Namespace, path: Path) -> None:
    """Hold a lock for a while and record its keep-alives."""
    # If this variable is set, the store is wrapped by a recorder when it is opened.
    os.environ[VARIABLE] = str(path)
    until = time.monotonic() + arguments.measure_for
    write_note(
        f"measuring for {duration(arguments.measure_for)}, with a keep-alive every "
        f"{arguments.ttl / 3:.2g} s (Ctrl-C ends it early) …"
    )
    with open_client(arguments, program_label("lockfast")) as client:
        client.ping()
        lock = client.lock(f"lockfast-advise-ttl/{os.getpid()}")
        try:
            while (left := until - time.monotonic()) > 0:
                try:
                    with lock as lease:
                        lease.lost.wait(left)
                except LeaseLostError:
                    pass  # recorded; go on with a new lease
                except StoreError:
                    time.sleep(min(RETRY_S, max(0.0, left)))
        except KeyboardInterrupt:
            pass


def _as_json(advice: Advice) -> dict[str, object]:
    longest = advice.stall_max
    return {
        **advice._asdict(),
        "stall_max": None
        if longest is None
        else {
            "seconds": longest.length_us / 1e6,
            "cause": longest.cause,
            "at_least": longest.at_least,
            "session": longest.session,
        },
        "candidates": [candidate._asdict() for candidate in advice.candidates],
    }


def _print(advice: Advice) -> None:
    for line in _summary(advice):
        write_line(line)
    if advice.keep_alives:
        write_line()
        recorded = {f"{ttl:g}" for ttl in advice.recorded_ttls_s}
        rows = [
            [
                f"{each.ttl_s:g} s" + (" *" if f"{each.ttl_s:g}" in recorded else ""),
                str(each.lost),
                str(each.unknown) if each.unknown else "-",
                str(each.stalls),
            ]
            for each in advice.candidates
        ]
        for line in table(["TTL", "LEASES LOST", "UNKNOWN", "STALLS TOO LONG"], rows):
            write_line(line)
        if any(cell[0].endswith("*") for cell in rows):
            write_line("* recorded with this TTL")
    write_line()
    verdict = f"use a TTL of {advice.ttl_s:g} s" if advice.ttl_s is not None else "no advice"
    for line in textwrap.wrap(f"{verdict}: {advice.reason}", COLUMNS, break_on_hyphens=False):
        write_line(line)


def _summary(advice: Advice) -> list[str]:
    from lockfast.sim.ttl_advice import in_words

    lines = [
        f"{_count(advice.keep_alives, 'keep-alive')} of {_count(advice.sessions, 'session')} with "
        f"{_count(advice.leases, 'lease')} over {duration(advice.observed_s)}; "
        f"{advice.failures} failed"
    ]
    if advice.keep_alives:
        causes = ", ".join(
            f"{count} by {what}"
            for count, what in zip(
                advice.stalls.values(),
                ("a pause of the process", "failures", "a slow reply"),
                strict=True,
            )
            if count
        )
        lines += [
            f"longest gap between successful keep-alives: {in_words(advice.gap_max_s)}",
            f"late keep-alives: {causes or 'none'}",
            f"slowest reply: {in_words(advice.reply_max_s)}",
        ]
    if advice.stall_max is not None:
        stall = advice.stall_max
        least = "at least " if stall.at_least else ""
        lines.append(f"longest stall: {least}{in_words(stall.length_us / 1e6)} ({stall.cause})")
    if advice.lost:
        lines.append(f"lost: {_count(advice.lost, 'session')}")
    if advice.cut_off:
        lines.append(f"{_count(advice.cut_off, 'session')} cut off while holding a lease (killed?)")
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
