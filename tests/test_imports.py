"""What `import lockfast` loads, in a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FORBIDDEN = {
    # costly, and useless to blocking code
    "asyncio",
    "concurrent.futures",
    "inspect",
    "dataclasses",
    "logging",
    "socket",
    "ssl",
    "subprocess",
    "sqlite3",
    "typing_extensions",
    "importlib.metadata",
    "urllib.parse",
    "argparse",
    # other parts of this package
    "lockfast.aio",
    "lockfast.api.aio",
    "lockfast.cli",
    "lockfast.conformance",
    "lockfast.events",
    "lockfast.guards",
    "lockfast.runtimes.aio",
    "lockfast.logs",
    "lockfast.metrics",
    "lockfast.otel",
    "lockfast.sim",
    "lockfast.telemetry",
    "lockfast.stores.sqlite",
    "lockfast.stores.redis",
    "lockfast.stores.etcd",
    "lockfast.stores.postgresql",
    # extras and tools
    "apsw",
    "asimpy",
    "httpx2",
    "hypothesis",
    "kazoo",
    "obstore",
    "opentelemetry",
    "prometheus_client",
    "psycopg",
    "pytest",
    "redis",
    "rich",
    "starlette",
    "textual",
    "uvicorn",
}

SCRIPT = """
import json, sys, time
before = set(sys.modules)
start = time.perf_counter()
{statement}
spent = time.perf_counter() - start
print(json.dumps([spent, sorted(set(sys.modules) - before)]))
"""


def loaded_by(statement: str) -> tuple[float, set[str]]:
    """Return how long a statement took in a fresh interpreter, and which modules it loaded."""
    code = SCRIPT.format(statement=statement)
    # -I: nothing from the environment; -S would hide installed extras, which must not be loaded
    # even if they are installed.
    path = json.dumps(sys.path)
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path[:] = {path}\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    spent, modules = json.loads(done.stdout)
    return spent, set(modules)


def test_importing_lockfast_loads_little() -> None:
    loaded_by("import lockfast")  # so that byte code exists
    best, modules = min(loaded_by("import lockfast") for _ in range(3))
    print(f"import lockfast: {best * 1000:.1f} ms, {len(modules)} modules")
    assert "lockfast.api.blocking" in modules
    assert modules & FORBIDDEN == set()


def test_a_blocking_client_of_memory_needs_no_event_loop() -> None:
    _, modules = loaded_by(
        "import lockfast; lockfast.connect('memory://').lock('a').acquire().release()"
    )
    assert modules & {"asyncio", "sqlite3", "lockfast.api.aio", "lockfast.runtimes.aio"} == set()


def test_without_an_observer_no_event_is_even_defined() -> None:
    _, modules = loaded_by(
        "import lockfast; lockfast.connect('memory://').lock('a').acquire().release()"
    )
    assert modules & {"lockfast.events", "lockfast.flow.observed", "lockfast.telemetry"} == set()


def test_a_blocking_client_of_a_file_needs_no_event_loop(tmp_path: object) -> None:
    _, modules = loaded_by(
        f"import lockfast; lockfast.connect('sqlite://{tmp_path}/l.db').lock('a').acquire().release()"
    )
    assert "sqlite3" in modules
    assert modules & {"asyncio", "apsw", "lockfast.api.aio", "lockfast.runtimes.aio"} == set()


def test_guards_load_no_client_code() -> None:
    _, modules = loaded_by("import lockfast.guards")
    ours = {name for name in modules if name.startswith("lockfast.")}
    # `lockfast` itself is loaded with any part of it; what matters is that guards need nothing that
    # waits, opens or connects.
    assert modules & {"asyncio", "sqlite3", "socket", "ssl"} == set()
    assert {"lockfast.guards", "lockfast.errors"} <= ours


def test_the_redis_guard_is_loaded_when_asked_for_and_without_the_driver() -> None:
    _, before = loaded_by("import lockfast.guards")
    _, after = loaded_by("from lockfast.guards import AsyncRedisGuard, RedisGuard")
    assert after - before >= {"lockfast.guards.redis"}
    assert (before | after) & {"redis", "hiredis"} == set()


@pytest.mark.parametrize("name", ["lockfast", "lockfast.aio", "lockfast.guards"])
def test_names_are_there_to_be_found(name: str) -> None:
    """Everything in `__all__` exists, and nothing public is missing from it."""
    module = __import__(name, fromlist=["x"])
    exported = set(module.__all__)
    assert exported == {n for n in exported if hasattr(module, n)}
    assert sorted(module.__all__) == list(module.__all__)
