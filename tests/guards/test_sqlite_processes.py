"""The SQLite guard between real processes that write concurrently."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.guards.databases import LIBRARIES, open_database, rows


def start_racer(library: str, path: Path, token: int, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.guards.racer", library, str(path), str(token), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.fixture(params=LIBRARIES)
def shared_file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    path = tmp_path / "orders.db"
    with closing(open_database(request.param, path)) as database:
        database.execute("CREATE TABLE writes (resource TEXT, token INTEGER)")
        yield request.param, path


def tell(racer: subprocess.Popen[str], resource: str) -> None:
    assert racer.stdin is not None
    racer.stdin.write(resource + "\n")
    racer.stdin.flush()


def answer_of(racer: subprocess.Popen[str]) -> str:
    assert racer.stdout is not None
    return racer.stdout.readline().strip()


def test_of_two_processes_the_stale_one_never_writes_last(shared_file: tuple[str, Path]) -> None:
    library, path = shared_file
    expected: list[tuple[str, int]] = []
    with start_racer(library, path, 16) as stale, start_racer(library, path, 17) as newer:
        for turn in range(100):
            resource = f"orders/{turn}"
            for racer in (stale, newer) if turn % 2 else (newer, stale):
                tell(racer, resource)
            answers = answer_of(stale), answer_of(newer)
            assert answers in (("wrote", "wrote"), ("refused", "wrote"))
            expected += [(resource, 16)] * (answers[0] == "wrote") + [(resource, 17)]
        for racer in (stale, newer):
            assert racer.stdin is not None
            racer.stdin.close()
    with closing(open_database(library, path)) as database:
        assert rows(database, "SELECT resource, token FROM writes ORDER BY rowid") == expected


def test_a_process_that_dies_before_its_commit_leaves_the_floor(
    shared_file: tuple[str, Path],
) -> None:
    library, path = shared_file
    with start_racer(library, path, 16) as steady, start_racer(library, path, 17, "crash") as dying:
        tell(steady, "orders/42")
        assert answer_of(steady) == "wrote"
        tell(dying, "orders/42")
        assert dying.wait(30) == 9
        tell(steady, "orders/42")
        assert answer_of(steady) == "wrote"
        assert steady.stdin is not None
        steady.stdin.close()
    with closing(open_database(library, path)) as database:
        assert rows(database, "SELECT token FROM writes") == [(16,), (16,)]
