"""The gate stays locked while a process is inside, and is unlocked when it leaves or is killed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from lockfast.errors import StoreUnavailableError
from lockfast.stores.sqlite.gate import Gate, path_of

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork

LABEL = "sqlite://test"
PATIENCE_S = 30.0


def opened(directory: Path) -> Gate:
    """A gate as another process has it: with its own open file description."""
    return Gate(str(directory / "locks.db"), LABEL)


def is_open(gate: Gate) -> bool:
    try:
        gate.enter(0)
    except StoreUnavailableError:
        return False
    gate.leave()
    return True


def test_one_at_a_time(tmp_path: Path) -> None:
    inside, outside = opened(tmp_path), opened(tmp_path)
    inside.enter(time.monotonic() + PATIENCE_S)
    assert not is_open(outside)
    inside.leave()
    assert is_open(outside)
    inside.leave()  # harmless if not inside
    inside.close()
    outside.close()


def test_whoever_waits_enters_when_it_opens(tmp_path: Path) -> None:
    outside, inside = opened(tmp_path), opened(tmp_path)
    inside.enter(time.monotonic() + PATIENCE_S)
    child = os.fork()
    if child == 0:
        try:
            outside.enter(time.monotonic() + PATIENCE_S)
            os._exit(0)
        finally:
            os._exit(1)
    inside.leave()
    inside.close()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    outside.close()


def test_the_process_inside_is_named(tmp_path: Path) -> None:
    inside, outside = opened(tmp_path), opened(tmp_path)
    inside.enter(time.monotonic() + PATIENCE_S)
    assert outside.holder() == os.getpid()
    with pytest.raises(StoreUnavailableError, match=rf"process {os.getpid()} holds the write lock"):
        outside.enter(0)
    inside.leave()
    assert outside.holder() is None
    inside.close()
    outside.close()


def test_the_last_user_knows_that_it_is_alone(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path)
    assert one.join()
    assert not other.join()
    assert not one.join()
    one.close()
    assert other.join()
    other.close()


def test_a_deleted_gate_is_noticed(tmp_path: Path) -> None:
    old = opened(tmp_path)
    assert old.is_current()
    os.unlink(path_of(str(tmp_path / "locks.db")))
    assert not old.is_current()
    new = opened(tmp_path)
    assert not old.is_current()
    old.reopen()
    assert old.is_current()
    old.enter(0)
    assert not is_open(new)
    old.close()
    new.close()
