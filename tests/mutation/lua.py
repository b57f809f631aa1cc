"""Mutants of the Lua scripts: the same kinds of changes as in Python, found by a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"(?P<skipped>--[^\n]*|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"|\s+)"
    r"|(?P<name>\$?[A-Za-z_]\w*)|(?P<number>\d[\w.]*)|(?P<symbol>==|~=|<=|>=|\.\.\.?|.)"
)
_FUNCTION: Final = re.compile(r"^\s*(?:local )?function ([\w.]+)")
_CONDITION: Final = re.compile(r"^(\s*(?:else)?if )(.+)( then)$")
_STATEMENT: Final = re.compile(r"^(\s*)([\w.]+\(.*\)|[\w.]+(?:\[[^=]*\]|\.\w+) = .+)$")
"""A call, or an assignment to a field, on one line."""
_GOES_ON: Final = re.compile(r"([=,({+*/-]|\.\.|\b(and|or|not|return))\s*$")
"""The end of a line whose statement goes on in the next."""
_CONTINUES: Final = re.compile(r"\s*(and|or|\.\.|==|~=|[<>+*/])")
"""The beginning of a line that continues a statement."""
_OTHER: Final = {
    "==": "~=",
    "~=": "==",
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "+": "-",
    "-": "+",
    "and": "or",
    "or": "and",
    "not": "",
    "true": "false",
    "false": "true",
    "0": "1",
    "1": "2",
    "2": "3",
}
_KEYWORDS: Final = frozenset(("and", "elseif", "if", "not", "or", "return", "until", "while"))


class Edit(NamedTuple):
    """One place in a script, and what to write there instead."""

    where: str
    """The function, or the script's body."""
    start: int
    stop: int
    text: str

    def change(self, source: str) -> str:
        before = " ".join(source[self.start : self.stop].split())
        line = source[source.rfind("\n", 0, self.start) + 1 : source.find("\n", self.stop)].strip()
        shown = "" if before == line else f" in `{line[:60]}`"
        return f"`{before[:60]}` -> `{self.text[:60]}`{shown}"


def edits_of(source: str) -> Iterator[Edit]:
    where, at = "body", 0
    lines = source.splitlines(keepends=True)
    for i, line in enumerate(lines):
        plain = line.rstrip("\n")
        if found := _FUNCTION.match(plain):
            where = found[1]
        elif plain and not line[0].isspace() and not plain.startswith(("end", "--", ")")):
            where = "body"
        is_whole = not (
            _GOES_ON.search(lines[i - 1] if i else "")
            or _CONTINUES.match(lines[i + 1] if i + 1 < len(lines) else "")
            or any(plain.count(one) != plain.count(other) for one, other in ("()", "[]", "{}"))
        )
        yield from _of_line(plain, where, at, is_whole)
        at += len(line)


def _of_line(line: str, where: str, at: int, is_whole: bool) -> Iterator[Edit]:
    if found := _CONDITION.match(line):
        yield Edit(where, at + found.start(2), at + found.end(2), f"not ({found[2]})")
    elif is_whole and (found := _STATEMENT.match(line)):
        yield Edit(where, at + found.start(2), at + found.end(2), "-- left out")
    before = ""
    for token in _TOKEN.finditer(line):
        text = token[0]
        if token["skipped"]:
            continue
        is_operand = bool(re.match(r"[\w)\]]", before[-1:])) and before not in _KEYWORDS
        if text in _OTHER and (text != "-" or is_operand) and before != "#":
            yield Edit(where, at + token.start(), at + token.end(), _OTHER[text])
        before = text
