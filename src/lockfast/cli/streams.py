"""The standard streams, any of which may be closed, full, or read by nobody."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from lockfast.cli import exit_codes


def open_closed_streams() -> None:
    """Connect closed standard streams to /dev/null, before any other file is opened.

    Otherwise a pipe or a file of the store gets the number 1 or 2, and the command that
    `lockfast run` starts writes its output there.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    # Python sets the streams that were closed when it started to None.
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def write_out(text: str, *, flush: bool = False) -> None:
    """Write to standard output. Raises BrokenPipeError if its reader has closed it."""
    try:
        sys.stdout.write(text)
        if flush:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard(sys.stdout)
        message = f"cannot write to standard output: {error.strerror or error}"
        raise exit_codes.CommandError(exit_codes.OUTPUT, message) from error


def write_err(text: str) -> None:
    """Write to standard error if possible: the exit code must say the same whether it is or not."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Drop what was not written, lest Python try again at exit, and all that follows."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
