"""Mutants of Lua scripts are single changes that still compile."""

from __future__ import annotations

import re
from importlib import import_module
from itertools import islice

import pytest

from tests.mutation import lua, plan
from tests.mutation.mutants import path_of

SCRIPTS = [
    module for package in plan.TESTS for module in plan.tests_of(package) if module.endswith(".lua")
]

_STATEMENT = re.compile(r"^ *\$[A-Z_]+$", re.MULTILINE)
_INSERTED = re.compile(r"\$([A-Z_]+)")

SOURCE = """\
-- if a == 1 then, in a comment
local function first(line, n)
  if n <= #line and line ~= '== 1' then
    line.count = n - 1
    forget(line)
  end
  return -n
end
"""


def test_each_change_is_found_once() -> None:
    found = [
        (edit.where, SOURCE[edit.start : edit.stop], edit.text) for edit in lua.edits_of(SOURCE)
    ]
    assert found == [
        ("first", "n <= #line and line ~= '== 1'", "not (n <= #line and line ~= '== 1')"),
        ("first", "<=", "<"),
        ("first", "and", "or"),
        ("first", "~=", "=="),
        ("first", "line.count = n - 1", "-- left out"),
        ("first", "-", "+"),
        ("first", "1", "2"),
        ("first", "forget(line)", "-- left out"),
    ]


@pytest.mark.parametrize("script", SCRIPTS)
def test_mutants_compile(script: str) -> None:
    """One that does not would be killed by any test, and raise the share for nothing."""
    compiler = import_module("lupa.lua51").LuaRuntime()
    source = path_of(script).read_text(encoding="utf-8")
    failed = []
    for edit in islice(lua.edits_of(source), 0, None, 4):
        mutated = source[: edit.start] + edit.text + source[edit.stop :]
        try:
            compiler.compile(_INSERTED.sub(r"\1", _STATEMENT.sub("", mutated)))
        except Exception as error:
            failed.append(f"{edit.change(source)}: {error}")
    assert failed == []
