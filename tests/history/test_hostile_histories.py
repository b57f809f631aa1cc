"""Whatever a history or a mix file contains, reading it ends in a verdict or a typed error."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from lockfast.sim.entries import HistoryError
from lockfast.sim.history import LINE_MAX, encode_entry
from lockfast.sim.judge import judge_file
from lockfast.sim.mix import TEXT_MAX, Mix, MixError, mix_of_seed, read_case, write_mix
from lockfast.sim.timeline import page
from lockfast.sim.world import World

HISTORIES = 1000
MIXES = 1000

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    10**30,
    -(10**30),
    1.5,
    float("inf"),
    float("nan"),
    "",
    "exclusive",
    "granted",
    "\x1b[2J\u202e",
    "x" * 5000,
    [],
    {},
    [[]],
    [None, None, None, None, None],
    [{"kind": "lock", "name": "a", "mode": "exclusive"}] * 300,
    [{"kind": "lock", "name": "a", "mode": "permit", "weight": 10**9, "limit": 1}],
    {"at": {"at": {}}},
)


@pytest.fixture(scope="module")
def good() -> list[list[str]]:
    """Return the lines of some valid histories."""
    return [
        [
            encode_entry(entry)
            for entry in World(Mix({workload: {}}, {"pause": {}}), 3).run().entries
        ]
        for workload in ("turns", "upgrades", "permits", "several", "kept", "meddling")
    ]


def hostile(good: list[list[str]], rng: random.Random) -> str:
    """Return the start of a valid history with parts changed, repeated, reordered or cut."""
    lines = rng.choice(good)[: rng.randrange(1, 40)]
    for _ in range(rng.randrange(1, 5)):
        i = rng.randrange(len(lines))
        way = rng.randrange(10)
        if way == 0:
            lines[i] = lines[i][: rng.randrange(len(lines[i]) + 1)]
        elif way == 1:
            lines.insert(rng.randrange(len(lines)), lines[i])
        elif way == 2:
            rng.shuffle(lines)
        elif way < 6:
            lines[i] = _mixed(lines[i], rng.choice(lines), rng)
        else:
            lines[i] = _spoilt(lines[i], rng)
    return "\n".join(lines) + "\n"


def _mixed(line: str, other: str, rng: random.Random) -> str:
    """Return an entry with a value of another one; each is valid on its own."""
    try:
        entry, theirs = json.loads(line), json.loads(other)
        field = rng.choice(sorted(entry.keys() & theirs.keys()))
        return json.dumps({**entry, field: theirs[field]})
    except (ValueError, AttributeError, IndexError):
        return line


def _spoilt(line: str, rng: random.Random) -> str:
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    if not isinstance(entry, dict) or not entry:
        return line
    field = rng.choice(list(entry))
    way = rng.randrange(4)
    if way == 0:
        del entry[field]
    elif way == 1:
        entry[rng.choice(("got", "ask", "of", "op", "mode", "until", "places"))] = rng.choice(ODD)
    elif way == 2 and isinstance(entry[field], list) and entry[field]:
        entry[field][rng.randrange(len(entry[field]))] = rng.choice(ODD)
    else:
        entry[field] = rng.choice(ODD)
    return json.dumps(entry)


def test_a_hostile_history_is_judged_or_refused(good: list[list[str]], tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    judged = refused = 0
    for seed in range(HISTORIES):
        text = hostile(good, random.Random(f"hostile {seed}"))
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            judgement = judge_file(path)
        except HistoryError:
            refused += 1
            continue
        except Exception as error:
            raise AssertionError(f"history {seed}: {error!r}") from error
        judged += 1
        page(judgement.entries, judgement.problems, title="hostile")
    assert judged > HISTORIES // 20
    assert refused > HISTORIES // 4


@pytest.mark.parametrize(
    "text",
    [
        '{"at":' + "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        '{"at":1,"op":1,"ask":"acquire","places":' + "[" * 5000 + "]" * 5000 + "}",
        '{"at":' + "9" * 5000 + "}",
        '{"at":1e400,"heal":true}',
        "\x00" * 100,
        "x" * (LINE_MAX + 5),
        '{"at":1,"op":1,"ask":"acquire","places":[{"kind":"lock","name":"a","mode":"x"}]}',
        '{"at":1,"op":1,"ask":"convert","of":1,"mode":"permit"}',
        '{"at":1,"got":"granted","op":7}',
    ],
    ids=[
        "deep",
        "deeper",
        "deep places",
        "digits",
        "infinite",
        "zeros",
        "long",
        "mode",
        "to",
        "op",
    ],
)
def test_what_no_history_says_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(HistoryError, match=r"history\.jsonl"):
        judge_file(path)


def test_a_span_of_centuries_can_be_drawn(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(
        f'{{"at":{-(1 << 53)},"heal":true}}\n{{"at":{1 << 53},"heal":true}}\n', encoding="utf-8"
    )
    judgement = judge_file(path)
    assert len(page(judgement.entries, judgement.problems, title="long")) < 50_000


def test_a_hostile_mix_is_read_or_refused() -> None:
    read = refused = 0
    for seed in range(MIXES):
        rng = random.Random(f"hostile mix {seed}")
        lines = write_mix(mix_of_seed(seed)).splitlines()
        for _ in range(rng.randrange(1, 3)):
            i = rng.choice([i for i, line in enumerate(lines) if line])
            key = lines[i].partition(" = ")[0]
            lines[i] = rng.choice(
                (
                    f"{key} = {json.dumps(rng.choice(ODD[:15]))}",
                    f"{key} = {rng.choice((0, 1, 7, 900, 10**7))}",
                    f"{key} = {rng.choice((1, 7, 900))}",
                    f"{key} = [0, {rng.choice((1, 900))}]",
                    f"{key} = [1, 50]",
                    f"{key} = [9, 1]",
                    f"{key} = 1979-05-27T07:32:00Z",
                    f"[workloads.{key}]",
                    "workloads = 3",
                    lines[i][: len(lines[i]) // 2],
                    f"{key} = {'[' * 3000}",
                )
            )
        try:
            mix = read_case("\n".join(lines)).mix
        except MixError:
            refused += 1
            continue
        except Exception as error:
            raise AssertionError(f"mix {seed}: {error!r}") from error
        read += 1
        if read % 20 == 0:
            # Whatever can be read can be run, up to a bounded number of operations.
            bounded = Mix(mix.workloads, mix.faults, mix.store, 2, operations=5)
            World(bounded, seed).run()
    assert read > MIXES // 20
    assert refused > MIXES // 4


def test_a_mix_file_has_a_size() -> None:
    with pytest.raises(MixError, match="longer than"):
        read_case("#" * (TEXT_MAX + 1))
