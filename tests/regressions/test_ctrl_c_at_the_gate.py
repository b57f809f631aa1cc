"""Ctrl-C while a lock file was opened anew left its gate shut for all other processes.

The gate was entered before the `try` that opens it again. It stayed shut until this process
used the file once more, which may be never.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast.stores.sqlite import file


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork, with threads
def test_the_gate_opens_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(descriptor: int, operation: int) -> Any:
        lockf(descriptor, operation)
        if operation & fcntl.LOCK_EX:
            raise KeyboardInterrupt

    lockf = fcntl.lockf
    path = tmp_path / "locks.db"
    with lockfast.connect(f"sqlite://{path}") as client:
        found = file._open_files[str(path)]
        assert found.close_connection()  # as before a fork
        with monkeypatch.context() as patch:
            patch.setattr(file.fcntl, "lockf", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.inspect("a")

        assert enters_gate(path)


def enters_gate(path: Path) -> bool:
    """Whether another process can."""
    child = os.fork()
    if child == 0:
        try:
            with open(f"{path}-head", "r+") as gate:
                fcntl.lockf(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
