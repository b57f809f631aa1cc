"""The entry point: parse the arguments, run the command, turn errors into exit codes."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from lockfast.cli import exit_codes
from lockfast.cli.arguments import parse
from lockfast.cli.formatting import LogFormatter, write_error
from lockfast.cli.process_title import hide_argument
from lockfast.cli.signals import Interrupted
from lockfast.cli.streams import discard, open_closed_streams, write_err, write_out
from lockfast.errors import LockfastError, UnsupportedError

COMMANDS: Final = {
    "run": "lockfast.cli.run:run",
    "ls": "lockfast.cli.ls:ls",
    "show": "lockfast.cli.show:show",
    "sessions": "lockfast.cli.sessions:sessions",
    "deadlocks": "lockfast.cli.deadlocks:deadlocks",
    "watch": "lockfast.cli.watch:watch",
    "stats": "lockfast.cli.stats:stats",
    "report": "lockfast.cli.report:report",
    "top": "lockfast.cli.top:top",
    "revoke": "lockfast.cli.revoke:revoke",
    "doctor": "lockfast.cli.doctor:doctor",
    "reset": "lockfast.cli.reset:reset",
    "schema": "lockfast.cli.schema:schema",
    "simulate": "lockfast.cli.simulate:simulate",
    "check": "lockfast.cli.check:check",
    "advise-ttl": "lockfast.cli.advise_ttl:advise_ttl",
    "serve": "lockfast.cli.serve:serve",
    "token": "lockfast.cli.token:token",
    "playground": "lockfast.cli.playground:playground",
    "completion": "lockfast.cli.completion:completion",
}
"""Each command is imported when it is called: `run` must not load what it does not use."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    try:
        if argv is None:
            open_closed_streams()
        arguments = parse(sys.argv[1:] if argv is None else argv)
        for url in (getattr(arguments, "url", None), getattr(arguments, "where", None)):
            if url and argv is None:
                hide_argument(url)
        _configure_output()
        if arguments.command == "run" and not hasattr(os, "fork"):
            raise UnsupportedError(
                "lockfast run", "this platform cannot fork", "take the lock in Python"
            )
        module, _, function = COMMANDS[arguments.command].partition(":")
        command: Callable[[Any], int] = getattr(importlib.import_module(module), function)
        code = command(arguments)
        write_out("", flush=True)
        return code
    except exit_codes.CommandError as error:
        write_error(str(error))
        return error.code
    except LockfastError as error:
        write_error(str(error))
        return exit_codes.exit_code_of(error)
    except Interrupted as interrupted:
        return exit_codes.BY_SIGNAL + interrupted.number
    except KeyboardInterrupt:
        return exit_codes.BY_SIGNAL + signal.SIGINT
    except BrokenPipeError:
        # The reader of our output has closed it. Python would report that again at exit.
        discard(sys.stdout)
        return exit_codes.BY_SIGNAL + getattr(signal, "SIGPIPE", 13)
    except Exception:
        import traceback

        for line in traceback.format_exc().splitlines():
            write_error(line)
        write_error("this is a bug in lockfast; please report it with the lines above")
        return exit_codes.INTERNAL
    finally:
        write_err("")


def _configure_output() -> None:
    handler = logging.StreamHandler()
    if os.environ.get("LOCKFAST_LOG") == "json":
        from lockfast.logs import JsonFormatter

        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(LogFormatter())
        # `lockfast run` reports a loss itself, with what it did about it.
        handler.addFilter(lambda record: getattr(record, "event", "") != "LeaseLost")
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    # Escape a name that the terminal's encoding cannot represent instead of failing.
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
