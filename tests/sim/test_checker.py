"""The checker: correct histories pass, and every kind of violation is detected."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from lockfast.sim.checker import check_history, check_leases, grants_of, leases_of
from lockfast.sim.history import Entry, read_history, write_history
from lockfast.sim.mix import Mix
from lockfast.sim.search import alive_us, judge
from lockfast.sim.speed import leases
from lockfast.sim.world import World

MIX = Mix({"turns": {}}, {"pause": {}})


@pytest.fixture(scope="module")
def right() -> list[Entry]:
    run = World(MIX, 11).run()
    assert judge(run) == []
    return run.entries


def problems(entries: list[Entry]) -> set[str]:
    entries = sorted(entries, key=lambda entry: int(entry["at"]))
    return {problem.check for problem in check_history(entries, alive_us=alive_us(MIX))}


def granted(entries: list[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.get("got") == "granted"]


def over(entries: list[Entry], op: int) -> Entry:
    return next(e for e in entries if e.get("got") == "over" and e["op"] == op)


def same_token_twice(entries: list[Entry]) -> str:
    one, other = granted(entries)[3:5]
    other["token"] = one["token"]
    return "tokens"


def tokens_swapped(entries: list[Entry]) -> str:
    found = granted(entries)
    found[2]["token"], found[-2]["token"] = found[-2]["token"], found[2]["token"]
    return "tokens"


def believes_too_long(entries: list[Entry]) -> str:
    one, other = granted(entries)[4:6]
    over(entries, one["op"])["at"] = other["at"] + 1
    return "exclusion"


def granted_too_early(entries: list[Entry]) -> str:
    asked = {e["op"]: e["at"] for e in entries if e.get("ask") == "acquire"}
    one, other = next(
        (one, other)
        for one, other in pairwise(granted(entries))
        if asked[other["op"]] < over(entries, one["op"])["at"] - 1
    )
    other["at"] = over(entries, one["op"])["at"] - 1
    return "exclusion"


def never_over(entries: list[Entry]) -> str:
    entries.remove(over(entries, granted(entries)[3]["op"]))
    return "exclusion"


def overtaken(entries: list[Entry]) -> str:
    """A claim that entered while another waited is served before it."""
    asked = {e["op"]: e["at"] for e in entries if e.get("ask") == "acquire"}
    queued = {e["op"]: e["at"] for e in entries if e.get("got") == "queued"}
    found = granted(entries)
    for one, other in pairwise(found):
        if queued.get(one["op"], 1 << 60) < asked[other["op"]]:
            one["token"], other["token"] = other["token"], one["token"]
            ends = over(entries, one["op"]), over(entries, other["op"])
            one["at"], other["at"] = other["at"], one["at"]
            ends[0]["at"], ends[1]["at"] = ends[1]["at"], ends[0]["at"]
            return "order"
    raise AssertionError("nobody stood in line before another asked")


def update_lost(entries: list[Entry]) -> str:
    writes = [entry for entry in entries if "write" in entry and entry["admitted"]]
    writes[3]["value"] = writes[2]["value"] + 7
    return "register"


def stale_write_admitted(entries: list[Entry]) -> str:
    writes = [entry for entry in entries if "write" in entry and entry["admitted"]]
    writes[4]["token"] = writes[1]["token"]
    return "register"


def nobody_enters(entries: list[Entry]) -> str:
    heal = next(entry for entry in entries if "heal" in entry)
    heal["at"] = 0
    last = max(e["at"] for e in entries)
    op = 100_000
    place = ("lock", "silent", "exclusive", 1, 0)
    entries.append({"at": 1, "op": op, "by": "c9", "ask": "acquire", "places": (place,)})
    entries.append({"at": last + 4 * alive_us(MIX), "op": op, "got": "granted", "token": 1})
    return "liveness"


SPOILS: list[Callable[[list[Entry]], str]] = [
    same_token_twice,
    tokens_swapped,
    believes_too_long,
    granted_too_early,
    never_over,
    overtaken,
    update_lost,
    stale_write_admitted,
    nobody_enters,
]


@pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: spoil.__name__)
def test_a_spoilt_history_is_refused(
    right: list[Entry], spoil: Callable[[list[Entry]], str]
) -> None:
    entries = copy.deepcopy(right)
    expected = spoil(entries)
    assert expected in problems(entries)


def test_a_history_survives_its_file(right: list[Entry], tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    write_history(right, path)
    again = read_history(path)
    assert grants_of(again) == grants_of(right)
    assert problems(again) == set()


def test_a_file_that_is_no_history_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"at": 1, "heal": true}\n{"when": 2}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"history\.jsonl:2: an entry is"):
        read_history(path)
    path.write_text("nonsense\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"history\.jsonl:1: not a JSON object"):
        read_history(path)


def test_leases_of_one_lock() -> None:
    good = leases(500)
    assert check_leases(list(good)) == []
    rng = random.Random(7)
    for _ in range(300):
        spoilt = list(good)
        i = rng.randrange(1, len(good))
        token, asked, granted, end = spoilt[i]
        way = rng.randrange(4)
        if way == 0:
            spoilt[i] = (spoilt[i - 1][0], asked, granted, end)
        elif way == 1:
            spoilt[i] = (token, asked, spoilt[i - 1][3] - 1, end)
        elif way == 2:
            spoilt[i - 1] = (*spoilt[i - 1][:3], granted + 1)
        else:
            spoilt[i] = (spoilt[i - 1][0] - 1, granted - 1, granted, end)
        assert check_leases(spoilt), (i, way)


def test_both_checks_of_leases_agree(right: list[Entry]) -> None:
    for found in leases_of(grants_of(right)).values():
        assert len(found) > 5
        assert check_leases(found) == []


def test_one_wrong_lease_among_many() -> None:
    many = leases(100_000)
    assert check_leases(list(many)) == []
    token, asked, granted, _ = many[77_777]
    many[77_777] = (token, asked, granted, granted + 1000)
    assert {problem.check for problem in check_leases(many)} == {"exclusion"}


def test_an_answer_before_its_question_is_no_history() -> None:
    entries: list[Entry] = [{"at": 1, "op": 7, "got": "granted", "token": 3}]
    with pytest.raises(ValueError, match="answered before it is asked"):
        grants_of(entries)
