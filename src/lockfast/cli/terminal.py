"""Job control: give the terminal's foreground to the command and take it back, as a shell does."""

from __future__ import annotations

import contextlib
import os


class Terminal:
    """Our controlling terminal and its foreground process group."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._own_group = os.getpgrp()
        self._given_to: int | None = None

    @classmethod
    def find(cls) -> Terminal | None:
        """Return the controlling terminal; None if there is none, for example under cron."""
        try:
            return cls(os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY))
        except OSError:
            return None

    @staticmethod
    def is_all_ours() -> bool:
        """Return whether standard input, output and error are all terminals.

        In `lockfast run … | less` the pager reads the keys; there the command gets the foreground
        only when it asks for it.
        """
        return all(os.isatty(descriptor) for descriptor in (0, 1, 2))

    @property
    def was_given(self) -> bool:
        return self._given_to is not None

    def is_ours(self) -> bool:
        """Return whether our own process group is in the foreground."""
        try:
            return os.tcgetpgrp(self._descriptor) == self._own_group
        except OSError:  # the terminal hung up
            return False

    def give(self, group: int) -> None:
        """Put another process group in the foreground: it reads the keys and gets Ctrl-C."""
        with contextlib.suppress(OSError):
            os.tcsetpgrp(self._descriptor, group)
            self._given_to = group

    def take_back(self) -> None:
        """Undo `give`, unless a third process group is in the foreground by now."""
        if self._given_to is None:
            return
        with contextlib.suppress(OSError):
            group = os.tcgetpgrp(self._descriptor)
            # A shell run by the command may have given it to a group that no longer exists.
            if group == self._given_to or not _exists(group):
                os.tcsetpgrp(self._descriptor, self._own_group)


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
