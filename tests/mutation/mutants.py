"""Mutants: every place in a module or Lua script where one token could be another.

A mutant is named by its function and its change, not by its line, so that names (and the sample,
which is drawn by their hashes) survive edits elsewhere in the file.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutation import lua

SOURCE: Final = Path(__file__).parents[2] / "src"

_COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_SKIPPED_CALLS: Final = frozenset(("debug", "info", "warning", "exception", "log"))
"""Messages for people, which no test reads."""


class Mutant(NamedTuple):
    module: str
    """A module, or the path of a Lua script below the sources."""
    where: str
    """The function, with its class."""
    change: str
    number: int
    """Distinguishes identical changes in one function."""

    def __str__(self) -> str:
        again = f" (no. {self.number + 1})" if self.number else ""
        return f"{self.module} {self.where}: {self.change}{again}"

    @property
    def draw(self) -> str:
        return hashlib.sha256(str(self).encode()).hexdigest()


def path_of(module: str) -> Path:
    if module.endswith(".lua"):
        return SOURCE / module
    path = SOURCE / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def mutants_of(module: str) -> list[Mutant]:
    source = path_of(module).read_text(encoding="utf-8")
    changes: Iterable[tuple[str, str]]
    if module.endswith(".lua"):
        changes = ((edit.where, edit.change(source)) for edit in lua.edits_of(source))
    else:
        changes = (
            (where, f"`{_text(before)}` -> `{_text(after)}`")
            for where, before, after in _changes(ast.parse(source))
        )
    seen: dict[tuple[str, str], int] = {}
    found = []
    for where, change in changes:
        number = seen.get((where, change), 0)
        seen[where, change] = number + 1
        found.append(Mutant(module, where, change, number))
    return found


def mutated_script(mutant: Mutant) -> str:
    """Return the Lua script with this one mistake in it."""
    source = path_of(mutant.module).read_text(encoding="utf-8")
    left = mutant.number
    for edit in lua.edits_of(source):
        if edit.where == mutant.where and edit.change(source) == mutant.change:
            if not left:
                return source[: edit.start] + edit.text + source[edit.stop :]
            left -= 1
    raise LookupError(f"there is no mutant {mutant}")


def mutated(mutant: Mutant) -> ast.Module:
    """Return the module with this one mistake in it."""
    tree = ast.parse(path_of(mutant.module).read_text(encoding="utf-8"))
    left = mutant.number
    for where, before, after in _changes(tree):
        if where == mutant.where and mutant.change == f"`{_text(before)}` -> `{_text(after)}`":
            if not left:
                swapped = _Swap(before, after).visit(tree)
                assert isinstance(swapped, ast.Module)
                return ast.fix_missing_locations(swapped)
            left -= 1
    raise LookupError(f"there is no mutant {mutant}")


class _Swap(ast.NodeTransformer):
    def __init__(self, before: ast.AST, after: ast.AST) -> None:
        self._before = before
        self._after = after

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self._before:
            return ast.copy_location(self._after, node)
        return self.generic_visit(node)


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else f"{text[:60]} … {text[-25:]}"


def _changes(tree: ast.AST, where: str = "") -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """Yield each function, node, and possible replacement."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _changes(child, f"{where}.{child.name}" if where else child.name)
        elif child is getattr(tree, "returns", None):
            continue  # an annotation, which is never evaluated
        elif (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        ) or isinstance(child, ast.arguments | ast.Raise | ast.Assert | ast.JoinedStr):
            continue
        elif isinstance(child, ast.AnnAssign):
            if where and child.value is not None:
                yield from _of_node(child.value, where)
                yield from _changes(child.value, where)
        else:
            if where and not _is_said(child):
                yield from _of_node(child, where)
            if not _is_said(child):
                yield from _changes(child, where)


def _is_said(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring
    call = node.value if isinstance(node, ast.Expr) else node
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in _SKIPPED_CALLS
    )


def _of_node(node: ast.AST, where: str) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    for after in _alternatives(node):
        yield where, node, after


def _alternatives(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = copy.copy(node)
        other.ops = [_COMPARED[type(node.ops[0])]()]
        yield other
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
        yield ast.BinOp(node.left, _COMPUTED[type(node.op)](), node.right)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif type(node.value) is int and abs(node.value) <= 2:
            yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Constant):
        other_test = copy.copy(node)
        other_test.test = ast.UnaryOp(ast.Not(), node.test)
        if isinstance(node, ast.If):
            yield other_test
    elif isinstance(node, ast.Return) and node.value is not None:
        if not isinstance(node.value, ast.Constant):
            yield ast.Return(ast.Constant(None))
    elif (
        (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await))
        or isinstance(node, ast.AugAssign)
        or (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute))
    ):
        yield ast.Pass()
