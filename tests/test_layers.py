"""The arrows between the layers, kept true by reading every import.

errors ← core ← ports ← flow · runtimes · stores ← api
         beside them: guards, server, cli, sim, conformance
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent / "src" / "lockfast"

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "core": {"errors"},
    "ports": {"errors", "core"},
    "events": {"core"},
    "drawing": set(),
    "process_observer": set(),
    "flow": {"errors", "core", "ports", "events"},
    "runtimes": {"errors", "core", "ports"},
    "stores": {"errors", "core", "ports", "runtimes"},
    "telemetry": {"drawing", "errors", "core", "flow", "events", "runtimes"},
    "api": {
        "errors",
        "core",
        "ports",
        "flow",
        "runtimes",
        "stores",
        "events",
        "process_observer",
        "telemetry",
    },
    "metrics": {"api", "errors", "telemetry"},
    "otel": {"api", "errors", "events", "runtimes", "telemetry"},
    "logs": {"api", "events", "flow"},
    "aio": {"api", "errors", "flow"},
    "": {"api", "errors", "flow", "telemetry"},
    # Beside them. Code on the resource's side knows nothing of clients:
    "guards": {"errors", "core", "events", "process_observer", "runtimes"},
    # The public API, for frameworks:
    "integrations": {"", "aio", "api", "errors", "guards"},
    "server": {"", "drawing", "errors", "core", "ports", "flow", "runtimes", "stores", "telemetry"},
    "cli": {
        *("", "api", "errors", "core", "flow", "runtimes", "server", "sim", "stores"),
        *("telemetry", "logs", "playground"),
    },
    "__main__": {"cli"},
    "sim": {
        "drawing",
        "errors",
        "core",
        "ports",
        "flow",
        "runtimes",
        "stores",
        "guards",
        "conformance",
    },
    "playground": {
        *("", "api", "core", "drawing", "errors", "flow", "guards", "ports", "runtimes"),
        *("server", "stores", "testing"),
    },
    "testing": {"", "api", "errors", "core", "ports", "flow", "runtimes", "stores"},
    "conformance": {"", "api", "errors", "core", "ports", "flow", "runtimes", "stores", "sim"},
}
"""For each part of the package, which others it may import; "" is `lockfast` itself."""

CLOCKS = {"time", "datetime"}
RANDOM = {"random", "secrets", "uuid"}
CONCURRENCY = {
    "_thread",
    "asyncio",
    "concurrent",
    "contextvars",
    "multiprocessing",
    "queue",
    "sched",
    "selectors",
    "signal",
    "threading",
}
WORLD = {"fcntl", "io", "mmap", "os", "pathlib", "select", "socket", "sqlite3", "ssl", "subprocess"}

NEVER: dict[str, set[str]] = {
    "errors": CLOCKS | RANDOM | CONCURRENCY | WORLD,
    "core": CLOCKS | RANDOM | CONCURRENCY | WORLD,
    "ports": CLOCKS | RANDOM | CONCURRENCY | WORLD,
    "flow": CLOCKS | RANDOM | CONCURRENCY | WORLD,
}
"""Modules of the standard library that must not be imported; the runtime provides them."""

STANDARD_ONLY = set(MAY_IMPORT) - {
    *("stores", "integrations", "server", "sim", "cli", "conformance", "metrics", "otel"),
    "playground",
}
"""Parts that import only the standard library, even when used."""


class Import(NamedTuple):
    path: Path
    line: int
    module: str
    """In full: `lockfast.core.rows`, `os.path`."""
    names: tuple[str, ...]

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.module}"


def part_of(path: Path) -> str:
    """Return the part of the package that a file belongs to."""
    inside = path.relative_to(ROOT)
    first = inside.parts[0]
    return first.removesuffix(".py").replace("__init__", "") if len(inside.parts) == 1 else first


def part_of_module(module: str, names: tuple[str, ...]) -> set[str]:
    """Return the parts that an import of `lockfast…` reaches."""
    parts = module.split(".")[1:]
    if parts:
        return {parts[0]}
    return {name if name in MAY_IMPORT else "" for name in names or ("",)}


def imports_of(path: Path) -> Iterator[Import]:
    """Return every import of a file, including those inside functions."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name, ())
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            names = tuple(alias.name for alias in node.names)
            yield Import(path, node.lineno, node.module or "", names)


FILES = sorted(ROOT.rglob("*.py"))
IMPORTS = [found for path in FILES for found in imports_of(path)]


def test_every_part_has_its_place() -> None:
    assert {part_of(path) for path in FILES} <= set(MAY_IMPORT)
    assert len(FILES) > 30


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_arrows_point_one_way(part: str) -> None:
    allowed = MAY_IMPORT[part] | {part}
    wrong = [
        str(found)
        for found in IMPORTS
        if part_of(found.path) == part
        and found.top == "lockfast"
        and not part_of_module(found.module, found.names) <= allowed
    ]
    assert wrong == []


@pytest.mark.parametrize("store", ["etcd", "zookeeper"])
def test_stores_that_share_a_layer_do_not_know_each_other(store: str) -> None:
    others = {"etcd", "zookeeper"} - {store}
    folders = [ROOT / "stores" / name for name in (store, "derived")]
    reached = {
        found.module: str(found)
        for found in IMPORTS
        if found.path.parent in folders and found.module.startswith("lockfast.stores.")
    }
    forbidden = {f"lockfast.stores.{name}" for name in others}
    assert not [text for name, text in reached.items() if name.startswith(tuple(forbidden))]


OF_NAMED_TUPLES = {"_replace", "_fields", "_field_defaults", "_make", "_asdict"}


@pytest.mark.parametrize("folder", ["derived", "etcd", "zookeeper"])
def test_no_file_uses_the_private_state_of_another(folder: str) -> None:
    """What begins with an underscore is used through `self` only, except for kazoo's client."""
    wrong = []
    for path in sorted((ROOT / "stores" / folder).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
                continue
            is_dunder = node.attr.endswith("__") or node.attr in OF_NAMED_TUPLES
            owner = ast.unparse(node.value)
            if not is_dunder and owner not in ("self", "client", "client._connection"):
                wrong.append(f"{path.name}:{node.lineno} uses {owner}.{node.attr}")
    assert wrong == []


@pytest.mark.parametrize("part", NEVER)
def test_pure_parts_get_the_world_through_ports(part: str) -> None:
    wrong = [
        str(found) for found in IMPORTS if part_of(found.path) == part and found.top in NEVER[part]
    ]
    assert wrong == []


@pytest.mark.parametrize("part", sorted(STANDARD_ONLY))
def test_the_package_needs_nothing_but_the_standard_library(part: str) -> None:
    import sys

    wrong = [
        str(found)
        for found in IMPORTS
        if part_of(found.path) == part
        and found.top != "lockfast"
        and found.top not in sys.stdlib_module_names
    ]
    assert wrong == []


def test_promises_are_stated_without_the_table() -> None:
    """A mistake in the table would be invisible if the model were derived from it."""
    for name in ("model.py", "promises.py", "checker.py"):
        path = ROOT / "sim" / name
        reached = {found.module for found in imports_of(path)}
        assert path.exists()
        assert not reached & {"lockfast.core.table", "lockfast.core.lines", "lockfast.core.modes"}


def test_pytest_is_imported_by_the_conformance_suite_only() -> None:
    where = {part_of(found.path) for found in IMPORTS if found.top in ("pytest", "hypothesis")}
    assert where <= {"conformance"}
    without = {
        found.path.name
        for found in IMPORTS
        if part_of(found.path) == "conformance" and found.top == "pytest"
    }
    assert not without & {"__init__.py", "commands.py"}, "these serve the simulator too"


@pytest.mark.parametrize(
    ("text", "module", "parts"),
    [
        ("import lockfast.core.table", "lockfast.core.table", {"core"}),
        ("def f():\n    from lockfast.flow import watch", "lockfast.flow", {"flow"}),
        ("from lockfast import errors, connect", "lockfast", {"errors", ""}),
        ("if TYPE_CHECKING:\n    import lockfast", "lockfast", {""}),
    ],
)
def test_imports_are_found_wherever_they_are(
    tmp_path: Path, text: str, module: str, parts: set[str]
) -> None:
    path = tmp_path / "some.py"
    path.write_text(text)
    (found,) = imports_of(path)
    assert found.module == module
    assert part_of_module(found.module, found.names) == parts
