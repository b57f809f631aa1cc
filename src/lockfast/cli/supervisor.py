"""Supervise a command: it may run only as long as the lease lasts."""

from __future__ import annotations

import os
import signal
from typing import Final, NamedTuple

from lockfast.api.blocking import Lease
from lockfast.cli.child import Child
from lockfast.cli.signals import Signals
from lockfast.cli.terminal import Terminal
from lockfast.errors import LeaseLostError
from lockfast.flow.holding import LeaseState
from lockfast.runtimes.platform import now_ms

CHECK_EVERY_S: Final = 1.0
"""poll() does not count time in suspend, but the lease does: check it regularly."""
GROUP_CHECK_EVERY_S: Final = 0.02
"""How often to check the group: the kernel does not report when its last process is gone."""
KILLING_S: Final = 0.1
"""Time reserved for SIGKILL to take effect before the deadline."""
LATE_GRACE_S: Final = 1.0
"""Grace period of a command whose lease has already ended: another client may hold the lock."""
UNKILLABLE_S: Final = 5.0
"""How long to wait for the process group after SIGKILL before giving up on it."""


class OnLost(NamedTuple):
    """What to do when the lease is lost or about to be lost."""

    how: str
    """term, signal or ignore."""
    number: signal.Signals
    """The signal to send to the command."""
    grace: float
    killing: float

    @classmethod
    def of(cls, how: str, number: signal.Signals | None, grace: float, ttl: float) -> OnLost:
        return cls(how, number or signal.SIGTERM, grace, min(KILLING_S, ttl / 20))

    @property
    def death_signal(self) -> signal.Signals | None:
        """The signal that the kernel sends the command if we die."""
        return {"term": signal.SIGKILL, "signal": self.number}.get(self.how)


class Supervisor:
    """Connects a lease, a command, the signals we receive and the terminal."""

    def __init__(
        self,
        child: Child,
        lease: Lease,
        on_lost: OnLost,
        signals: Signals,
        terminal: Terminal | None,
    ) -> None:
        self.loss = ""
        """Why the command was stopped or signalled; "" if it was not."""
        self._child = child
        self._lease = lease
        self._on_lost = on_lost
        self._signals = signals
        self._terminal = terminal
        self._kill_at: float | None = None
        self._killed_at: float | None = None

    def supervise(self) -> None:
        """Return when the command has ended or, if it had to be stopped, its whole group."""
        self._lease.on_lost(lambda _lease: self._signals.interrupt())
        while True:
            stopped_by = self._child.poll()
            if self._is_over():
                return
            self._check_lease()
            if stopped_by is not None:
                self._follow_stop(stopped_by)
            for number in self._signals.wait(self._idle_s()):
                self._pass_on(number)

    def _is_over(self) -> bool:
        if self._kill_at is None:
            return self._child.status is not None
        if self._killed_at is not None and _now() >= self._killed_at + UNKILLABLE_S:
            self.loss += "; some of its processes cannot be killed"
            return True
        return self._child.is_gone()

    # ── the lease ────────────────────────────────────────────────────────────────────

    def _check_lease(self) -> None:
        if self._kill_at is not None:
            if self._killed_at is None and _now() >= self._kill_at:
                self._child.signal_group(signal.SIGKILL)
                self._killed_at = _now()
        elif not self.loss and self._must_stop():
            self.loss = self._why()
            if self._on_lost.how == "signal":
                self._child.send_signal(self._on_lost.number)
            elif self._on_lost.how == "term":
                self._kill_at = _now() + self._grace_left()
                self._child.signal_group(signal.SIGTERM)
                self._child.signal_group(signal.SIGCONT)  # a stopped process would not see it

    def _must_stop(self) -> bool:
        """Return whether the lease is lost, or would be lost before the command has stopped.

        Successful renewals never let it come that close: they are due after a third of the TTL, and
        the grace period is at most half of it.
        """
        if self._lease.state is LeaseState.LOST:
            return True
        return self._on_lost.how != "ignore" and self._spare_s() <= 0

    def _spare_s(self) -> float:
        return self._lease.remaining - self._on_lost.grace - self._on_lost.killing

    def _grace_left(self) -> float:
        left = self._lease.deadline - _now()
        if left <= 0:
            return min(self._on_lost.grace, LATE_GRACE_S)
        return min(self._on_lost.grace, max(0.0, left - self._on_lost.killing))

    def _why(self) -> str:
        try:
            self._lease.check()
        except LeaseLostError as lost:
            return f"lease on {lost.name!r} (token {lost.token}) was lost: {lost.reason}"
        name, token = self._lease.name, self._lease.token
        left = self._lease.remaining
        return f"lease on {name!r} (token {token}) was not renewed and ends in {left:.1f} s"

    def _idle_s(self) -> float:
        if self._kill_at is None:
            idle = CHECK_EVERY_S
            if not self.loss and self._on_lost.how != "ignore":
                idle = min(idle, self._spare_s())
            return idle
        if self._child.status is not None or self._killed_at is not None:
            return GROUP_CHECK_EVERY_S
        return min(CHECK_EVERY_S, self._kill_at - _now())

    # ── signals and the terminal ─────────────────────────────────────────────────────

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        if number == signal.SIGCONT:
            # The lease may have ended while we were stopped: check it first.
            self._check_lease()
            terminal = self._terminal
            if terminal is not None and terminal.was_given and terminal.is_ours():
                terminal.give(self._child.pid)
        self._child.signal_group(number)

    def _follow_stop(self, number: signal.Signals) -> None:
        """Stop ourselves with the command, as one job, so that our shell notices."""
        terminal = self._terminal
        if terminal is None or self._kill_at is not None:
            return
        asks_for_terminal = number in (signal.SIGTTIN, signal.SIGTTOU)
        if asks_for_terminal and terminal.is_ours():
            terminal.give(self._child.pid)
            self._child.signal_group(signal.SIGCONT)
            return
        terminal.take_back()
        if not asks_for_terminal:
            number = signal.SIGTSTP
        handler = signal.signal(number, signal.SIG_DFL)
        # We stop here, unless no shell could continue us. `_pass_on` handles the SIGCONT that
        # continues us.
        os.killpg(0, number)
        signal.signal(number, handler)


def _now() -> float:
    """Return the time in seconds on the clock of `lease.deadline`."""
    return now_ms() / 1000
