"""The part of PromQL that our dashboards and alert rules use: parse it, and check its names.

A mistyped metric or label makes an alert that never fires, which is easy to miss. The grammar is
small on purpose: anything unknown is an error, so an expression that uses more must extend it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

TOKEN = re.compile(
    r"""\s*(?:
      (?P<duration>\[(?:\d+[smhd]|\$__rate_interval)\])
    | (?P<number>\d+(?:\.\d+)?)
    | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<symbol>=~|!~|!=|==|>=|<=|[-+*/(){},=<>])
    )""",
    re.VERBOSE,
)
FUNCTIONS = {"rate": 1, "increase": 1, "histogram_quantile": 2}
AGGREGATIONS = {"sum", "min", "max", "avg", "count"}
COMPARISONS = {"==", "!=", ">", "<", ">=", "<="}


class PromQLError(ValueError):
    """The expression cannot be parsed, or uses a name that does not exist."""


class Series(NamedTuple):
    """A metric as exported: histograms have three."""

    labels: frozenset[str]


class Checker:
    """Parses one expression against the metrics that exist."""

    def __init__(self, text: str, known: dict[str, Series]) -> None:
        self._known = known
        self._tokens = list(_tokens(text))
        self._at = 0

    def check(self) -> frozenset[str]:
        """Return the labels of the result; raise PromQLError."""
        labels = self._boolean()
        if self._at < len(self._tokens):
            raise PromQLError(f"unexpected {self._tokens[self._at][1]!r}")
        return labels

    # ── grammar, loosest binding first ───────────────────────────────────────────────

    def _boolean(self) -> frozenset[str]:
        labels = self._comparison()
        while self._peek() in ("and", "or", "unless"):
            self._next()
            self._same(labels, self._comparison())
        return labels

    def _comparison(self) -> frozenset[str]:
        labels = self._sum()
        if self._peek() in COMPARISONS:
            self._next()
            self._same(labels, self._sum())
        return labels

    def _sum(self) -> frozenset[str]:
        labels = self._product()
        while self._peek() in ("+", "-"):
            self._next()
            labels = self._same(labels, self._product())
        return labels

    def _product(self) -> frozenset[str]:
        labels = self._operand()
        while self._peek() in ("*", "/"):
            self._next()
            labels = self._same(labels, self._operand())
        return labels

    def _operand(self) -> frozenset[str]:
        kind, text = self._next()
        if kind == "number":
            return SCALAR
        if text == "(":
            labels = self._boolean()
            self._expect(")")
            return labels
        if kind != "name":
            raise PromQLError(f"unexpected {text!r}")
        if text in AGGREGATIONS:
            return self._aggregation()
        if text in FUNCTIONS:
            return self._call(text)
        return self._selector(text)

    def _aggregation(self) -> frozenset[str]:
        by: frozenset[str] = frozenset()
        if self._peek() == "by":
            self._next()
            by = self._label_list()
        self._expect("(")
        labels = self._boolean()
        self._expect(")")
        if not by <= labels:
            raise PromQLError(f"there is no label {', '.join(sorted(by - labels))} to sum by")
        return by

    def _call(self, name: str) -> frozenset[str]:
        self._expect("(")
        arguments = [self._boolean()]
        while self._peek() == ",":
            self._next()
            arguments.append(self._boolean())
        self._expect(")")
        if len(arguments) != FUNCTIONS[name]:
            raise PromQLError(f"{name} takes {FUNCTIONS[name]} arguments")
        labels = arguments[-1]
        if name == "histogram_quantile":
            if "le" not in labels:
                raise PromQLError("histogram_quantile needs the label le")
            return labels - {"le"}
        return labels

    def _selector(self, name: str) -> frozenset[str]:
        if name not in self._known:
            raise PromQLError(f"there is no metric {name}")
        labels = self._known[name].labels
        if self._peek() == "{":
            self._next()
            while self._peek() != "}":
                _, label = self._next()
                if label not in labels:
                    raise PromQLError(f"{name} has no label {label}")
                if self._next()[1] not in ("=", "!=", "=~", "!~"):
                    raise PromQLError(f"no comparison after {label}")
                if self._next()[0] != "string":
                    raise PromQLError(f"{label} is compared with no text")
                if self._peek() == ",":
                    self._next()
            self._next()
        if self._at < len(self._tokens) and self._tokens[self._at][0] == "duration":
            self._next()
        if self._peek() == "offset":
            self._next()
            self._next()
            self._next()
        return labels

    def _label_list(self) -> frozenset[str]:
        self._expect("(")
        labels = set()
        while self._peek() != ")":
            labels.add(self._next()[1])
            if self._peek() == ",":
                self._next()
        self._next()
        return frozenset(labels)

    def _same(self, left: frozenset[str], right: frozenset[str]) -> frozenset[str]:
        """Vectors match on all their labels; a number matches anything."""
        if left is SCALAR or right is SCALAR:
            return right if left is SCALAR else left
        if left != right:
            raise PromQLError(f"{sorted(left)} cannot be combined with {sorted(right)}")
        return left

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise PromQLError("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, symbol: str) -> None:
        found = self._next()[1]
        if found != symbol:
            raise PromQLError(f"{symbol!r} expected, not {found!r}")


SCALAR: frozenset[str] = frozenset({"(scalar)"})


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    text = text.strip()
    while at < len(text):
        found = TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise PromQLError(f"cannot be read from {text[at : at + 20]!r} on")
        yield found.lastgroup, found.group(found.lastgroup)
        at = found.end()
