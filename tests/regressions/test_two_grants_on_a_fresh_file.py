"""Of processes that opened a new lock database at once, two were granted the same lock.

A process that found the companion file beside the database empty filled it with zeros, but not
behind the gate: a late process erased the state of one that had already granted a lock (7 of 4,350
rounds of six processes). The companion file is gone, and everything is created behind the gate.

For thousands of rounds: `python -m tests.regressions.test_two_grants_on_a_fresh_file 4000`
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

import lockfast

PROCESSES = 6
ROUNDS = 12


def grants_of_a_round(directory: Path) -> int:
    """Return how many of six processes get a lock that each tries to take once and then keeps."""
    reports, report = os.pipe()
    starts, start = os.pipe()
    ends, end = os.pipe()
    children = []
    for _ in range(PROCESSES):
        child = os.fork()
        if child == 0:
            os.close(start)
            os.close(end)
            try:
                os.read(starts, 1)
                client = lockfast.connect(f"sqlite://{directory}/locks.db")
                lease = client.lock("a").try_acquire()
                os.write(report, b"0" if lease is None else b"1")
                os.read(ends, 1)
            except BaseException as error:
                os.write(report, b"x")
                os.write(2, repr(error).encode())
            finally:
                os._exit(0)
        children.append(child)
    os.close(starts)
    os.close(ends)
    os.close(start)
    told = b""
    while len(told) < PROCESSES:
        told += os.read(reports, PROCESSES)
    os.close(end)
    for child in children:
        os.waitpid(child, 0)
    os.close(reports)
    os.close(report)
    assert b"x" not in told, told
    return told.count(b"1")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork
def test_one_of_six_gets_it(quick_path: Path) -> None:
    for number in range(ROUNDS):
        assert grants_of_a_round(quick_path / str(number)) == 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        for round_number in range(int(sys.argv[1])):
            assert grants_of_a_round(Path(made) / str(round_number)) == 1, round_number
    print("one grant in each of", sys.argv[1], "rounds")
