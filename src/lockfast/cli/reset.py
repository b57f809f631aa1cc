"""lockfast reset: delete everything in a namespace that cannot be repaired."""

from __future__ import annotations

import argparse
import sys

from lockfast.cli import codes
from lockfast.cli.client import url_of
from lockfast.cli.doctor import print_findings
from lockfast.stores.registry import open_maintenance, parse_url


def reset(arguments: argparse.Namespace) -> int:
    """Delete every session and claim of the namespace, after confirmation."""
    url = parse_url(url_of(arguments)).in_namespace(arguments.namespace)
    store = open_maintenance(url)
    if not arguments.yes:
        _confirm(arguments.namespace, store.label)
    findings = list(store.reset())
    print_findings(findings, as_json=arguments.json)
    return codes.OK


def _confirm(namespace: str, label: str) -> None:
    if not sys.stdin.isatty():
        raise codes.Complaint(
            codes.USAGE, "standard input is not a terminal, so nobody can confirm; pass --yes"
        )
    print(
        f"This frees every lock in namespace {namespace!r} of {label}, held or not.\n"
        "Programs that hold one keep working without it. Type the namespace to go ahead: ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    if sys.stdin.readline().rstrip("\n") != namespace:
        raise codes.Complaint(codes.NO, "that is not the namespace; nothing was changed")
