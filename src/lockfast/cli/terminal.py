"""Who may read the terminal: handing it to the command and back, as a shell does."""

from __future__ import annotations

import contextlib
import os


class Terminal:
    """Our controlling terminal, and which process group is in its foreground."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._own_group = os.getpgrp()
        self._given_to: int | None = None

    @classmethod
    def find(cls) -> Terminal | None:
        """The controlling terminal; None if there is none, as under cron."""
        try:
            return cls(os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY))
        except OSError:
            return None

    @staticmethod
    def is_all_ours() -> bool:
        """Whether we are nobody's neighbour in a pipe.

        In `lockfast run … | less` it is the pager that reads the keys, so there the
        command gets the terminal only when it asks for it.
        """
        return all(os.isatty(descriptor) for descriptor in (0, 1, 2))

    @property
    def was_given(self) -> bool:
        return self._given_to is not None

    def is_ours(self) -> bool:
        """Whether our own group is in the foreground."""
        try:
            return os.tcgetpgrp(self._descriptor) == self._own_group
        except OSError:  # it hung up
            return False

    def give(self, group: int) -> None:
        """Let another group read it; Ctrl-C goes there from now on."""
        with contextlib.suppress(OSError):
            os.tcsetpgrp(self._descriptor, group)
            self._given_to = group

    def take_back(self) -> None:
        """Undo `give`, unless somebody else is in the foreground by now."""
        if self._given_to is None:
            return
        with contextlib.suppress(OSError):
            group = os.tcgetpgrp(self._descriptor)
            # A shell run by the command may have passed it on to a group that is gone.
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
