"""From arguments to an exit code."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from lockfast.cli import codes
from lockfast.cli.arguments import parse
from lockfast.cli.signals import Interrupted
from lockfast.cli.text import printable
from lockfast.errors import LockfastError

COMMANDS: Final = {
    "run": "lockfast.cli.run:run",
    "ls": "lockfast.cli.look:ls",
    "show": "lockfast.cli.look:show",
    "sessions": "lockfast.cli.look:sessions",
    "deadlocks": "lockfast.cli.deadlocks:deadlocks",
    "watch": "lockfast.cli.follow:watch",
    "revoke": "lockfast.cli.revoke:revoke",
    "doctor": "lockfast.cli.doctor:doctor",
    "reset": "lockfast.cli.reset:reset",
    "simulate": "lockfast.cli.simulate:simulate",
    "check": "lockfast.cli.simulate:check",
}
"""Each is imported when it is asked for: `run` should not wait for what it does not use."""


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says; returns the exit code."""
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        logging.basicConfig(format="lockfast: %(message)s", level=logging.WARNING)
        _survive_any_text()
        module, _, function = COMMANDS[arguments.command].partition(":")
        act: Callable[[Any], int] = getattr(importlib.import_module(module), function)
        code = act(arguments)
        sys.stdout.flush()
        return code
    except codes.Complaint as complaint:
        say(str(complaint))
        return complaint.code
    except LockfastError as error:
        say(str(error))
        return codes.code_of(error)
    except Interrupted as interrupted:
        return codes.BY_SIGNAL + interrupted.number
    except KeyboardInterrupt:
        return codes.BY_SIGNAL + signal.SIGINT
    except BrokenPipeError:
        # Whoever read us has seen enough. Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return codes.BY_SIGNAL + signal.SIGPIPE
    except Exception:
        import traceback

        traceback.print_exc()
        say("this is a mistake in lockfast, please report it")
        return codes.INTERNAL


def say(message: str) -> None:
    """One line for the person at the terminal."""
    print(f"lockfast: {printable(message)}", file=sys.stderr, flush=True)


def _survive_any_text() -> None:
    """A name that this terminal's encoding does not have is escaped, not an error."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
