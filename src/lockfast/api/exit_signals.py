"""Releasing locks when the system asks this process to end."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Final

from lockfast.runtimes.platform import exit_signals

BY_SIGNAL: Final = 128


def release_on_exit_signals() -> None:
    """On SIGTERM or SIGHUP, end like after an uncaught exception, so that locks are released.

    Without it Python dies of these signals at once, and its locks last until their TTL. With it
    the signal raises SystemExit in the main thread: `with` blocks end and release, and what is
    left is released at exit. The exit code is 128 plus the signal's number, as in a shell.

    A handler that is there already is called instead, and decides how the process ends. Signals
    that are ignored stay ignored. Call it once, from the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("release_on_exit_signals() must be called from the main thread")
    for number in exit_signals():
        before = signal.getsignal(number)
        if before is signal.SIG_DFL:
            signal.signal(number, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    # Only once: a second signal must not interrupt the releases that the first one caused.
    for each in exit_signals():
        if signal.getsignal(each) is _exit:
            signal.signal(each, signal.SIG_IGN)
    raise SystemExit(BY_SIGNAL + number)
