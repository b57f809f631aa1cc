"""Signals to this process: they interrupt the wait for the lock, and later form a stream."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Iterable
from types import FrameType
from typing import Final


def _present(*names: str) -> tuple[signal.Signals, ...]:
    """Return the signals of these names that the platform has."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


ENDING: Final = _present("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")
"""They end us while we wait for the lock; once the command runs, we pass them on to it."""
RUNNING: Final = _present("SIGCHLD", "SIGCONT", "SIGTSTP", "SIGWINCH")
"""Handled only once the command runs."""


class Interrupted(BaseException):
    """A signal ended a wait."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


def interrupt_on(*numbers: signal.Signals) -> None:
    """Raise Interrupted on these signals, so that `finally` blocks release what is held."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    _handle(numbers, interrupt)


class Signals:
    """The signals that `run` handles, from before it waits until its command has ended."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._interrupting = True
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        _handle(ENDING, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        # Only once: a second signal must not interrupt the clean-up after the first.
        if self._interrupting and number in ENDING:
            self._interrupting = False
            raise Interrupted(number)

    def to_stream(self) -> None:
        """Stop interrupting; from now on `wait` returns the signals that arrive."""
        self._interrupting = False
        _handle(RUNNING, self._handle)
        # We must be able to write to the terminal, and to give it away, from the background.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)

    def wait(self, timeout: float) -> list[int]:
        """Return the signals that have arrived; [] after `timeout` seconds or `interrupt()`."""
        poll = select.poll()
        poll.register(self._receiver, select.POLLIN)
        if not poll.poll(max(0.0, timeout) * 1000):
            return []
        try:
            return [number for number in self._receiver.recv(4096) if number]
        except BlockingIOError:
            return []

    def interrupt(self) -> None:
        """Make `wait` return. May be called from any thread."""
        try:
            self._sender.send(b"\0")
        except OSError:
            return  # a full pipe wakes `wait` too, and a closed one has no reader


def _handle(numbers: Iterable[signal.Signals], handler: signal._HANDLER) -> None:
    for number in numbers:
        # A signal ignored when we started (nohup, a script's background job) stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
