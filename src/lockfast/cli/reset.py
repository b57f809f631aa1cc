"""lockfast reset: delete everything in a namespace that cannot be repaired."""

from __future__ import annotations

import argparse

from lockfast.cli import exit_codes
from lockfast.cli.confirmation import ask_to_type, require_terminal
from lockfast.cli.connection import url_of
from lockfast.cli.doctor import print_findings
from lockfast.stores.registry import open_maintenance, parse_url


def reset(arguments: argparse.Namespace) -> int:
    """Delete every session and claim of the namespace, after confirmation."""
    namespace = arguments.namespace
    store = open_maintenance(parse_url(url_of(arguments)).in_namespace(namespace))
    store.refuse_reset_if_unsupported()
    if not arguments.yes:
        require_terminal()
        ask_to_type(
            f"This frees every lock in namespace {namespace!r} of {store.label}, held or not; "
            "programs that hold one go on working without it.",
            namespace,
        )
    print_findings(list(store.reset()), as_json=arguments.json)
    return exit_codes.OK
