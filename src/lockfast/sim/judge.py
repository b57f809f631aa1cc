"""`lockfast check`: judge a history recorded from real clients. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from lockfast.sim.checker import Problem, check_history
from lockfast.sim.entries import HistoryError
from lockfast.sim.history import Entry, read_history
from lockfast.sim.linear import Verdict, explain, unexplained


class Judgement(NamedTuple):
    """The verdict on a history."""

    entries: Sequence[Entry]
    problems: Sequence[Problem]
    undecided: Sequence[str]
    """Names with too much concurrency to find an order, or to rule one out."""

    @property
    def operations(self) -> int:
        return sum("ask" in entry for entry in self.entries)

    @property
    def code(self) -> int:
        """The exit code: 0 if every promise was kept, 1 if one was broken."""
        return 1 if self.problems else 0

    def lines(self) -> Iterator[str]:
        """Return the verdict as text for people."""
        for problem in self.problems:
            yield f"FAILED {problem}"
        for name in self.undecided:
            yield f"undecided: {name!r}"
        yield f"{self.operations} operations, {len(self.problems)} promises broken"


def judge_file(path: Path, *, forgets: bool = False) -> Judgement:
    """Judge a recorded history. Raises HistoryError if the file is not a history.

    With `forgets`, the store may lose acknowledged writes, so only tokens are judged.
    """
    entries = sorted(read_history(path), key=itemgetter("at"))
    try:
        problems = check_history(entries, forgets=forgets)
        verdicts = {} if forgets else explain(entries)
    except HistoryError as error:
        raise HistoryError(f"{path}: {error}") from None
    problems += [unexplained(at) for at, found in verdicts.items() if found is Verdict.IMPOSSIBLE]
    undecided = [at[1] for at, found in verdicts.items() if found is Verdict.UNKNOWN]
    return Judgement(entries, problems, undecided)
