"""Who listens at a session's descriptor: the keeper, or a thread that waits alone.

The keeper waits with an epoll of its own, out of which the descriptor is taken while
another leads; where there is no epoll, nobody does. Nor while several wait: none of them is
to be at the mercy of another, which may be in a signal handler for long.
"""

from __future__ import annotations

import contextlib
import select
import threading
from collections.abc import Callable
from typing import Any

from lockfast.ports import Listener
from lockfast.stores.poke import Poke


def new_poll() -> Any:
    """For a keeper: an epoll, which can be changed while it waits, or what there is."""
    return select.epoll() if hasattr(select, "epoll") else select.poll()


def wait(poll: Any, timeout_ms: float | None) -> list[tuple[int, int]]:
    """What is ready, in a poll made by `new_poll`."""
    is_epoll = hasattr(select, "epoll")
    ready: list[tuple[int, int]] = poll.poll(
        timeout_ms / 1000 if is_epoll and timeout_ms is not None else timeout_ms
    )
    return ready


class Leading:
    """One descriptor, and who listens at it."""

    def __init__(self, poll: Any) -> None:
        self._poll = poll
        # Re-entrant: a signal handler may look at a lease in the middle of anything.
        self._mutex = threading.RLock()
        self._descriptor: int | None = None
        self._waiters: list[Listener] = []
        self._leader: Listener | None = None
        self._nudge = Poke()
        self._leaders_poll = select.poll()
        self._nudge_descriptor = self._nudge.fileno()
        self._leaders_poll.register(self._nudge_descriptor, select.POLLIN)
        self._is_taking = False
        """The leader has heard something, and will look for itself after that."""
        self.is_with_keeper = False

    def begin(self, descriptor: int) -> None:
        """From here on there is something to be heard."""
        with self._mutex:
            self._descriptor = descriptor
            self._leaders_poll.register(descriptor, select.POLLIN)
        self.follow()

    def end(self) -> None:
        """Nothing comes any more; to be said before the descriptor is closed."""
        with self._mutex:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is None:
                return
            with contextlib.suppress(KeyError):
                self._leaders_poll.unregister(descriptor)
            self._keep_from_keeper(descriptor)
        self.nudge()

    def is_led(self) -> bool:
        return self._leader is not None and self._leader.leads

    def lead(self, listener: Listener) -> bool:
        """See `SharedEar`, as for all that follow."""
        with self._mutex:
            self._waiters = [one for one in self._waiters if one.waits] + [listener]
            descriptor = self._descriptor
            if descriptor is None or not hasattr(select, "epoll"):
                return False
            if len(self._waiters) > 1:
                self._give_to_keeper(descriptor)
                return False
            self._leader = listener
            self._keep_from_keeper(descriptor)
        return True

    def hear(
        self, timeout_ms: int | None, take: Callable[[], object], doubt: Callable[[], None]
    ) -> bool:
        """As above; `take` reads what comes first.

        If it is interrupted, something may have been read and be lost: `doubt` is called.
        """
        # Both are given here and not kept: an ear in a circle of references would stay open
        # until the collector finds it.
        if self._descriptor is None:
            return False
        for descriptor, _ in self._leaders_poll.poll(timeout_ms):
            if descriptor == self._nudge_descriptor:
                with contextlib.suppress(OSError):  # closed by now
                    self._nudge.take()
                continue
            try:
                self._is_taking = True
                take()
            except BaseException:
                doubt()
                raise
            finally:
                self._is_taking = False
        return self._descriptor is not None

    def nudge(self) -> None:
        # Most often it is the leader itself that takes its own wake.
        if not self._is_taking:
            self._nudge.poke()

    def follow(self) -> None:
        with self._mutex:
            if self._descriptor is not None and not self.is_led():
                self._leader = None
                self._give_to_keeper(self._descriptor)

    def _give_to_keeper(self, descriptor: int) -> None:
        if not self.is_with_keeper:
            # Interrupted (Ctrl-C) after the first of these, one comes here once more.
            with contextlib.suppress(FileExistsError):
                self._poll.register(descriptor, select.POLLIN)
            self.is_with_keeper = True

    def _keep_from_keeper(self, descriptor: int) -> None:
        if self.is_with_keeper:
            self.is_with_keeper = False
            with contextlib.suppress(FileNotFoundError, KeyError):
                self._poll.unregister(descriptor)

    def close(self) -> None:
        self.end()
        self._nudge.close()
