"""A command runs for as long as the lease lasts, and not longer."""

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
from lockfast.runtimes.clock import now_ms

LOOK_EVERY_S: Final = 1.0
"""Waiting does not count the time a machine sleeps, the lease does: look now and then."""
GROUP_LOOK_EVERY_S: Final = 0.02
"""Nothing tells us when the last of the group is gone."""
KILLING_S: Final = 0.1
"""What is kept back for SIGKILL to take effect before the deadline."""
LATE_GRACE_S: Final = 1.0
"""What a command gets whose lease was over before we could look: another may be at work."""
UNKILLABLE_S: Final = 5.0


class OnLost(NamedTuple):
    """What to do when the lease is lost, or is about to be."""

    how: str
    """term, signal or ignore."""
    number: signal.Signals
    """What the command is told with."""
    grace: float
    killing: float

    @classmethod
    def of(cls, how: str, number: signal.Signals | None, grace: float, ttl: float) -> OnLost:
        return cls(how, number or signal.SIGTERM, grace, min(KILLING_S, ttl / 20))

    @property
    def death_signal(self) -> signal.Signals | None:
        """What the kernel sends the command if we die and can do none of this."""
        return {"term": signal.SIGKILL, "signal": self.number}.get(self.how)


class Supervisor:
    """Stands between a lease, a command, the signals we get and the terminal."""

    def __init__(
        self,
        child: Child,
        lease: Lease,
        on_lost: OnLost,
        signals: Signals,
        terminal: Terminal | None,
    ) -> None:
        self.loss = ""
        """Why the command was told to stop; "" if it was not."""
        self._child = child
        self._lease = lease
        self._on_lost = on_lost
        self._signals = signals
        self._terminal = terminal
        self._kill_at: float | None = None
        self._killed_at: float | None = None

    def watch_over(self) -> None:
        """Return when the command has ended; if it had to be stopped, with its whole group."""
        self._lease.on_lost(lambda _lease: self._signals.interrupt())
        while True:
            stopped_by = self._child.poll()
            if self._is_over():
                return
            self._look_at_lease()
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

    def _look_at_lease(self) -> None:
        if self._kill_at is not None:
            if self._killed_at is None and _now() >= self._kill_at:
                self._child.tell_all(signal.SIGKILL)
                self._killed_at = _now()
        elif not self.loss and self._must_stop():
            self.loss = self._why()
            if self._on_lost.how == "signal":
                self._child.tell(self._on_lost.number)
            elif self._on_lost.how == "term":
                self._kill_at = _now() + self._grace_left()
                self._child.tell_all(signal.SIGTERM)
                self._child.tell_all(signal.SIGCONT)  # who is stopped must hear it, too

    def _must_stop(self) -> bool:
        """Whether the lease is lost, or would be before the command has stopped.

        Keep-alives that succeed never let it come that near: they begin anew after a
        third of the TTL, and the grace is at most half of it.
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
            idle = LOOK_EVERY_S
            if not self.loss and self._on_lost.how != "ignore":
                idle = min(idle, self._spare_s())
            return idle
        if self._child.status is not None or self._killed_at is not None:
            return GROUP_LOOK_EVERY_S
        return min(LOOK_EVERY_S, self._kill_at - _now())

    # ── signals and the terminal ─────────────────────────────────────────────────────

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        if number == signal.SIGCONT:
            # Much may have happened while we were stopped: the lease comes first.
            self._look_at_lease()
            terminal = self._terminal
            if terminal is not None and terminal.was_given and terminal.is_ours():
                terminal.give(self._child.pid)
        self._child.tell_all(number)

    def _follow_stop(self, number: signal.Signals) -> None:
        """The command was stopped: as one job with it, we stop too, and our shell sees it."""
        terminal = self._terminal
        if terminal is None or self._kill_at is not None:
            return
        asks_for_terminal = number in (signal.SIGTTIN, signal.SIGTTOU)
        if asks_for_terminal and terminal.is_ours():
            terminal.give(self._child.pid)
            self._child.tell_all(signal.SIGCONT)
            return
        terminal.take_back()
        if not asks_for_terminal:
            number = signal.SIGTSTP
        handler = signal.signal(number, signal.SIG_DFL)
        # Here we stop, unless there is no shell that could continue us. What continues
        # us is a SIGCONT, and that is for `_pass_on`.
        os.killpg(0, number)
        signal.signal(number, handler)


def _now() -> float:
    """Seconds on the clock of `lease.deadline`."""
    return now_ms() / 1000
