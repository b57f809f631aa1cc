"""The commands that a keeper still has to send for its session: releases and cancelled conversions.

Changed under the session's mutex, except for `send_now`, which finalizers call.
"""

from __future__ import annotations

from collections import OrderedDict

from lockfast.core.commands import Command, Leave


class Outbox:
    """At most one pending command per claim number, in the order in which they are sent."""

    def __init__(self) -> None:
        self.commands: OrderedDict[int, Command] = OrderedDict()
        self._not_before_ms: dict[int, int] = {}

    def __contains__(self, n: int) -> bool:
        return n in self.commands

    def __bool__(self) -> bool:
        return bool(self.commands)

    def put(self, n: int, command: Command, not_before_ms: int = 0) -> None:
        """Send `command` until the store replies; the first time not before `not_before_ms`."""
        if not_before_ms:
            self._not_before_ms[n] = not_before_ms
        self.commands[n] = command

    def add(self, n: int, command: Command) -> None:
        """Send `command` unless one is pending for this claim."""
        self.commands.setdefault(n, command)

    def release_first(self, n: int) -> bool:
        """Send the release of a claim before all else. Return False if none is pending."""
        if not isinstance(self.commands.get(n), Leave):
            return False
        self.commands.move_to_end(n, last=False)
        return True

    def next(self, now_ms: int) -> tuple[int, Command] | None:
        """Return the first command that may be sent now."""
        for n, command in self.commands.items():
            if self._not_before_ms.get(n, 0) <= now_ms:
                return n, command
        return None

    def due_ms(self) -> int | None:
        """Return when the next command may be sent; None if there is none."""
        return min((self._not_before_ms.get(n, 0) for n in self.commands), default=None)

    def sent(self, n: int, command: Command) -> None:
        """Remove a command to which the store has replied, unless a newer one replaced it."""
        if self.commands.get(n) is command:
            del self.commands[n]
            self._not_before_ms.pop(n, None)

    def send_now(self, n: int) -> bool:
        """Stop delaying the command of a claim. Return True if it was delayed."""
        return self._not_before_ms.pop(n, None) is not None

    def send_all_now(self) -> None:
        """Stop delaying commands."""
        self._not_before_ms.clear()

    def clear(self) -> None:
        self.commands.clear()
        self._not_before_ms.clear()
