"""Confirmation prompts, before a command takes something from other clients."""

from __future__ import annotations

import sys

from lockfast.cli import exit_codes
from lockfast.cli.formatting import write_prompt


def require_terminal() -> None:
    """Raise CommandError for a command that must ask but cannot."""
    if not sys.stdin.isatty():
        raise exit_codes.CommandError(
            exit_codes.USAGE,
            "standard input is not a terminal, so there is nobody to ask; "
            "pass --yes to go ahead without confirmation",
        )


def ask(question: str) -> None:
    """Return after a yes. Raises CommandError after any other answer."""
    write_prompt(f"{question} [y/N] ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise exit_codes.CommandError(exit_codes.NO, "nothing was changed")


def ask_to_type(explanation: str, word: str) -> None:
    """Return if exactly `word` is typed. Raises CommandError otherwise."""
    write_prompt(f"{explanation} Type {word!r} to go ahead: ")
    if sys.stdin.readline().rstrip("\n") != word:
        raise exit_codes.CommandError(exit_codes.NO, f"not {word!r}; nothing was changed")
