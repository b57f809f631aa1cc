"""Ctrl-C while a lock database was reopened left its gate locked for all other processes.

The gate was entered before the `try` that leaves it. It stayed locked until this process used the
database again, which may be never.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

import lockfast
from lockfast.stores.sqlite import file
from lockfast.stores.sqlite.gate import Gate


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork, with threads
def test_the_gate_opens_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Gate) -> bool:
        assert enter(self)
        raise KeyboardInterrupt

    enter = Gate._try_to_enter
    path = tmp_path / "locks.db"
    with lockfast.connect(f"sqlite://{path}") as client:
        found = file._open_files[str(path)]
        assert found.close_connection()  # as before a fork
        with monkeypatch.context() as patch:
            patch.setattr(Gate, "_try_to_enter", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.inspect("a")

        assert enters_gate(path)


def enters_gate(path: Path) -> bool:
    """Return True if another process can enter the gate."""
    child = os.fork()
    if child == 0:
        try:
            with open(f"{path}-gate", "r+") as gate:
                fcntl.lockf(gate, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
