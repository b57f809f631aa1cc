"""The simulated disk and processes under the embedded store behave like real ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockfast.core.commands import Enter, Granted, Open, Place, Queued, Renew
from lockfast.errors import StoreUnavailableError
from lockfast.sim.mix import Mix
from lockfast.sim.search import try_seed
from lockfast.sim.sqlite.disk import Contents, Disk, Killed
from lockfast.sim.sqlite.process import Process, StoppedError
from lockfast.sim.sqlite.service import Machine
from lockfast.sim.world import World
from lockfast.stores.sqlite.file import SqliteFile, open_file

PLACE = Place("lock", "a", "exclusive")


@contextmanager
def machine() -> Iterator[Machine]:
    world = World(Mix({"turns": {}}, store="sqlite", clients=3), 1)
    try:
        yield world.machine
    finally:
        world.disband()


def database(process: Process) -> SqliteFile:
    return process.call(open_file, Path(process.machine.path), "apsw")


def enter(process: Process, session: str) -> object:
    command = Enter(session, 1, (PLACE,), open=Open(session, 1000, "test"))
    return process.call(database(process).apply, command, 100)


def some(here: Machine, number: int) -> Process:
    return here.process_of(here.world.clients[number].host)


def test_what_was_synced_survives_and_the_rest_may() -> None:
    seen = set()
    for seed in range(200):
        contents = Contents()
        contents.changes.append((0, b"a" * 512))
        contents.sync()
        contents.changes += [(0, b"b" * 512), (512, b"c" * 1024)]
        contents.cut(random.Random(seed))
        left = bytes(contents.synced)
        seen.add((left[:1], left[512:513], left[1024:1025]))
    assert {(b"a", b"", b""), (b"b", b"c", b"c"), (b"a", b"\0", b"c"), (b"b", b"", b"")} <= seen


def test_a_deleted_file_may_come_back_if_nobody_synced_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "x"
    back = set()
    for seed in range(20):
        disk = Disk()
        disk.file(str(path)).changes.append((0, b"old"))
        disk.file(str(path)).sync()
        disk.delete(str(path), synced=False)
        path.unlink(missing_ok=True)
        disk.cut_power(random.Random(seed))
        back.add(path.exists())
    assert back == {True, False}


@pytest.mark.parametrize("write", range(16))
def test_a_process_killed_in_any_write_leaves_a_whole_step_or_none(write: int) -> None:
    with machine() as here:
        first, second, third = (some(here, i) for i in range(3))
        assert isinstance(enter(first, "s1"), Granted)
        second.kill_at = write
        try:
            enter(second, "s2")
        except Killed:
            here.end(second.host)
        reply = enter(third, "s3")
        assert isinstance(reply, Queued)
        assert [blocker.session for blocker in reply.ahead] in (["s1"], ["s2"])


def test_who_is_stopped_in_a_step_keeps_the_others_out_until_it_goes_on() -> None:
    with machine() as here:
        first, second = some(here, 0), some(here, 1)
        database(first)
        first.stop_at = 0
        with pytest.raises(StoppedError) as stopped:
            enter(first, "s1")
        database_of_second = second.call(_try_to_open, here.path)
        assert isinstance(database_of_second, StoreUnavailableError)
        first.resume()
        assert isinstance(stopped.value.call.result(), Granted)
        assert isinstance(enter(second, "s2"), Queued)


def _try_to_open(path: str) -> object:
    try:
        return open_file(Path(path), "apsw")
    except StoreUnavailableError as error:
        return error


def test_a_power_cut_ends_every_session_and_leaves_a_database_that_can_be_read() -> None:
    for seed in range(20):
        with machine() as here:
            here.rng = random.Random(seed)
            for i in range(3):
                enter(some(here, i), f"s{i}")
            for process in list(here.processes.values()):
                here.end(process.host)
            here.cut_power()
            process = some(here, 0)
            ended = process.call(database(process).apply, Renew("s0"), 100)
            assert type(ended).__name__ == "Ended"
            assert isinstance(enter(some(here, 1), "new"), Granted)


def test_runs_repeat_exactly() -> None:
    mix = Mix({"turns": {}}, {"killed_in_step": {}, "stopped_in_step": {}}, store="sqlite")
    assert try_seed(7, mix)[0].trace_hash() == try_seed(7, mix)[0].trace_hash()
