"""Signals to this process: first they end a wait, then they are a stream to read from."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Iterable
from types import FrameType
from typing import Final

ENDING: Final = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""What ends us while we wait for the lock, and is the command's once it runs."""
RUNNING: Final = (signal.SIGCHLD, signal.SIGCONT, signal.SIGTSTP, signal.SIGWINCH)
"""What concerns us only once the command runs."""


class Interrupted(BaseException):
    """A signal ended what we were waiting for."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


def interrupt_on(*numbers: signal.Signals) -> None:
    """Raise Interrupted on these signals, so that everything is given back on the way out."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    _handle(numbers, interrupt)


class Signals:
    """All signals that matter to `run`, from before it waits until after its command ended."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._interrupting = True
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        _handle(ENDING, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        # Only once: whoever gives everything back must not be interrupted in it.
        if self._interrupting and number in ENDING:
            self._interrupting = False
            raise Interrupted(number)

    def to_stream(self) -> None:
        """From here on nothing is interrupted, and `wait` returns what arrives."""
        self._interrupting = False
        _handle(RUNNING, self._handle)
        # We may write, and hand the terminal over, while another group has it.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)

    def wait(self, timeout: float) -> list[int]:
        """The signals that have arrived; empty after `timeout` seconds or when interrupted."""
        poll = select.poll()
        poll.register(self._receiver, select.POLLIN)
        if not poll.poll(max(0.0, timeout) * 1000):
            return []
        try:
            return [number for number in self._receiver.recv(4096) if number]
        except BlockingIOError:
            return []

    def interrupt(self) -> None:
        """Make `wait` return; from any thread."""
        try:
            self._sender.send(b"\0")
        except OSError:
            return  # full is as good as interrupted, and closed has nobody waiting


def _handle(numbers: Iterable[signal.Signals], handler: signal._HANDLER) -> None:
    for number in numbers:
        # What our parent ignores (nohup, a background job of a script) stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
