"""A history told to people: timed lanes in a terminal."""

from __future__ import annotations

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
    """The story line by line, a column for each lane."""
    lines = list(_lines(entries))
    lanes = lanes_of(entries)
    yield "     time   " + "".join(lane.ljust(_WIDTH) for lane in lanes)
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


def lanes_of(entries: Sequence[Entry]) -> list[str]:
    """Clients in order of name, then the store (or the nodes of it) and the resource."""
    clients = {entry["by"] for entry in entries if "ask" in entry}
    lanes = sorted(clients, key=lambda name: (len(name), name))
    nodes = sorted({entry["on"] for entry in entries if "store" in entry and "on" in entry})
    return [*lanes, *(nodes or ["store"]), "resource"]


def short_tokens(entries: Sequence[Entry]) -> dict[int, int]:
    """A small number for each token, in their order."""
    tokens = sorted({entry["token"] for entry in entries if entry.get("got") == "granted"})
    return {token: i for i, token in enumerate(tokens, 1)}


def shortened(text: str, short: dict[int, int]) -> str:
    """A text with those small numbers in place of the tokens."""
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
            # Ballots that came to nothing are left to the picture.
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
