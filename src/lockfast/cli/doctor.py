"""lockfast doctor: check whether a store is safe for locks, and repair it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Final

from lockfast.api.settings import ttl_to_ms
from lockfast.cli import exit_codes
from lockfast.cli.connection import url_of
from lockfast.cli.formatting import table, write_fields, write_line
from lockfast.cli.json_output import write_json
from lockfast.stores.diagnosis import Diagnosis, refuse_if_bad
from lockfast.stores.registry import open_maintenance, parse_url

_VERDICTS: Final = {"good": "ok", "note": "note", "bad": "BAD"}


def doctor(arguments: argparse.Namespace) -> int:
    """Print the checks of a store; raises StoreMisconfiguredError if one of them is bad."""
    url = url_of(arguments) if arguments.where is None else arguments.where
    store = open_maintenance(parse_url(url))
    store.ttl_ms = ttl_to_ms(arguments.ttl)
    if arguments.dump:
        for line in store.dump():
            write_fields(line.split("\t"))
        return exit_codes.OK
    findings: list[Diagnosis] = []
    if arguments.repair:
        findings += store.repair()
    if arguments.raise_epoch:
        findings += store.raise_epoch()
    else:
        findings += store.examine()
    print_findings(findings, as_json=arguments.json)
    refuse_if_bad(store.label, findings)
    return exit_codes.OK


def print_findings(findings: Iterable[Diagnosis], *, as_json: bool) -> None:
    if as_json:
        write_json([finding._asdict() for finding in findings])
        return
    for line in table(("", "CHECK", "RESULT"), [_row(finding) for finding in findings]):
        write_line(line)


def _row(finding: Diagnosis) -> tuple[str, ...]:
    found = finding.found + (f" ({finding.advice})" if finding.advice else "")
    return _VERDICTS[finding.verdict], finding.what, found
