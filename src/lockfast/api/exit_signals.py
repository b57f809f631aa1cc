"""Releasing locks when the system asks this process to end."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Final

from lockfast.runtimes.platform import exit_signals

BY_SIGNAL: Final = 128


def release_on_exit_signals() -> None:
    """Release locks when SIGTERM or SIGHUP ends this process.

    By default these signals kill Python at once, and its locks last until their TTL expires.
    After this call the signal raises SystemExit in the main thread: `with` blocks release their
    locks, and the remaining ones are released at exit. The exit code is 128 plus the signal's
    number, as in a shell.

    An existing handler stays in place and decides how the process ends; ignored signals stay
    ignored. Call it once. Raises RuntimeError outside the main thread.
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
