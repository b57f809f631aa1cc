"""Render a history as text: timed lanes in a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from lockfast.sim.checker import Problem
from lockfast.sim.history import Entry

_WIDTH = 14


class Line(NamedTuple):
    at: int
    lane: str
    text: str
    bad: bool = False


def tell(entries: Sequence[Entry], problems: Iterable[Problem] = ()) -> Iterator[str]:
    """Return the story line by line, with a column for each lane."""
    lines = list(_lines(entries))
    lanes = lanes_of(entries)
    names = names_of(entries)
    titles = [names.get(lane, lane) for lane in lanes]
    yield "     time   " + "".join(f"{_clipped(title):{_WIDTH}}" for title in titles)
    for line in lines:
        indent = lanes.index(line.lane) * _WIDTH if line.lane in lanes else 0
        mark = "!" if line.bad else " "
        yield f"{line.at / 1000:9.1f} {mark} {' ' * indent}{line.text}"
    found = list(problems)
    short = short_tokens(entries)
    for problem in found:
        yield f"FAILED {shortened(str(problem), short)}"
    if not found:
        yield "All promises kept."


def _clipped(title: str) -> str:
    return title if len(title) < _WIDTH else f"{title[: _WIDTH - 2]}…"


def lanes_of(entries: Sequence[Entry]) -> list[str]:
    """Return the lanes: clients by owner and name, then the store or its nodes, the resource."""
    clients = {entry["by"] for entry in entries if "ask" in entry}
    owners = _owners_of(entries)
    lanes = sorted(clients, key=lambda name: (owners.get(name, ""), len(name), name))
    nodes = sorted({entry["on"] for entry in entries if "store" in entry and "on" in entry})
    if not nodes and any("store" in entry or "fault" in entry for entry in entries):
        nodes = ["store"]
    writes = any("write" in entry for entry in entries)
    return [*lanes, *nodes, *(["resource"] if writes else [])]


def names_of(entries: Sequence[Entry]) -> dict[str, str]:
    """Return what to call each client: its owner label if recorded, numbered if it has several."""
    owners = _owners_of(entries)
    lanes = [lane for lane in lanes_of(entries) if owners.get(lane)]
    shared = Counter(owners[lane] for lane in lanes)
    counted: Counter[str] = Counter()
    names: dict[str, str] = {}
    for lane in lanes:
        owner = owners[lane]
        counted[owner] += 1
        names[lane] = f"{owner} #{counted[owner]}" if shared[owner] > 1 else owner
    return names


def _owners_of(entries: Sequence[Entry]) -> dict[str, str]:
    return {entry["by"]: entry["owner"] for entry in entries if {"by", "owner"} <= entry.keys()}


def short_tokens(entries: Sequence[Entry]) -> dict[int, int]:
    """Assign each token a small number, in their order."""
    tokens = sorted({entry["token"] for entry in entries if entry.get("got") == "granted"})
    return {token: i for i, token in enumerate(tokens, 1)}


def shortened(text: str, short: dict[int, int]) -> str:
    """Replace the tokens in a text by these small numbers."""
    for token, number in short.items():
        text = text.replace(str(token), str(number))
    return text


def _lines(entries: Sequence[Entry]) -> Iterator[Line]:
    asked: dict[int, Entry] = {}
    short = short_tokens(entries)
    newest: dict[str, int] = {}
    for entry in entries:
        at = entry["at"]
        if "ask" in entry:
            asked[entry["op"]] = entry
            if entry["ask"] == "acquire":
                names = ", ".join(place[1] for place in entry["places"])
                yield Line(at, entry["by"], f"wants {names}")
        elif "got" in entry:
            yield from _answer(entry, asked[entry["op"]], short, at)
        elif "write" in entry:
            number = short.get(entry["token"], 0)
            stale = entry["token"] < newest.get(entry["write"], 0)
            newest[entry["write"]] = max(entry["token"], newest.get(entry["write"], 0))
            what = f"{entry['by']} writes {entry['value']} with token {number}"
            if not entry["admitted"]:
                yield Line(at, "resource", f"{what}: refused, it is stale", True)
            elif stale:
                yield Line(at, "resource", f"{what}: a stale write gets through", True)
            else:
                yield Line(at, "resource", what)
        elif "fault" in entry:
            lane = "store" if entry["on"] == "replica" else entry["on"]
            yield Line(at, lane, f"*** {entry['fault']}")
        elif entry.get("store") in ("expired", "revoked"):
            lane = entry.get("on", "store")
            yield Line(at, lane, f"token {short.get(entry['token'], '?')}: {entry['store']}")
        elif entry.get("store") == "granted" and "on" in entry and entry["token"] in short:
            # Ballots without a majority are shown only in the picture.
            yield Line(at, entry["on"], f"yes to {entry['by']}, {short[entry['token']]}")
        elif entry.get("store") == "begins" and "on" in entry:
            yield Line(at, entry["on"], "knows nothing")
        elif "resumed" in entry:
            yield Line(at, entry["resumed"], "*** goes on")


def _answer(entry: Entry, asked: Entry, short: dict[int, int], at: int) -> Iterator[Line]:
    by, what = asked["by"], entry["got"]
    if asked["ask"] == "convert":
        if what == "granted":
            what = f"token {short[entry['token']]}"
        yield Line(at, by, f"{asked['mode']}: {what}")
    elif asked["ask"] == "release":
        if what != "done":
            yield Line(at, by, f"release: {what}")
    elif what == "granted":
        yield Line(at, by, f"HOLDS, token {short[entry['token']]}")
    elif what == "over":
        why = {"released": "releases", "deadline": "lease expired (deadline)"}
        yield Line(at, by, why.get(entry["why"], f"lease ended: {entry['why']}"))
    elif what == "queued":
        yield Line(at, by, "waits in line")
    elif what not in ("entered",):
        yield Line(at, by, what)
