"""Which fast tests must detect a mutant in which module, the most effective first.

Fast tests need no server, so of the stores those parts are sampled that run without one: in the
simulator, or as functions. Code that only opens sockets is left to the tests with real servers.
"""

from __future__ import annotations

from typing import Final

from tests.mutation.mutants import SOURCE

TARGETS: Final = {"core": 90, "flow": 90, "stores": 80, "guards": 80}
"""How many of a hundred mutants must be killed."""

_SEARCHES: Final = "tests/mutation/test_searches.py"
_OF_MEMORY: Final = f"{_SEARCHES}::test_memory"
_OF_SQLITE: Final = (f"{_SEARCHES}::test_sqlite", "tests/stores")
_OF_REDIS: Final = (f"{_SEARCHES}::test_redis",)
_OF_ETCD: Final = (f"{_SEARCHES}::test_etcd", "tests/sim/test_etcd_cluster.py")
_OF_QUORUM: Final = (f"{_SEARCHES}::test_quorum", "tests/quorum/test_conformance_memory.py")
_OF_PARTS: Final = ("tests/stores", "tests/api/test_urls.py", "tests/history")
_OF_GUARDS: Final = ("tests/guards",)

TESTS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "core": {
        "core": (
            _OF_MEMORY,
            *(f"tests/core/test_{name}.py" for name in ("table", "modes", "names", "codec")),
            *(
                f"tests/core/test_{name}.py"
                for name in ("table_model", "ends", "deadlock", "placement")
            ),
            "--deselect=tests/core/test_ends.py::test_a_hundred_thousand_claims_end_in_short_steps",
        ),
        "core/names": ("tests/core/test_names.py", "tests/api/test_names.py"),
    },
    "flow": {
        "flow": (
            _OF_MEMORY,
            "tests/sim/test_one_flow_three_runtimes.py",
            "tests/api/test_leases.py",
            *(f"tests/primitives/test_{name}.py" for name in ("retained", "conversion", "once")),
        ),
    },
    "stores": {
        **{
            f"stores/sqlite/{name}": _OF_SQLITE
            for name in ("file", "gate", "hot", "log", "packing", "rows", "spilled", "processes")
        },
        "stores/sqlite/wake_listener": _OF_SQLITE,
        **{f"stores/redis/{name}": _OF_REDIS for name in ("codec", "protocol")},
        **{
            f"stores/etcd/{name}": _OF_ETCD
            for name in (
                *(
                    "batches",
                    "execution",
                    "gateway",
                    "journal",
                    "layout",
                    "owned",
                    "plan",
                    "reading",
                ),
                *("requests", "sessions", "shortcuts", "steps", "view", "wire"),
            )
        },
        **{
            f"stores/quorum/{name}": _OF_QUORUM
            for name in ("codec", "messages", "node", "session_records", "wire")
        },
        "stores/memory": (_OF_MEMORY, "tests/conformance/test_wire.py"),
        **{f"stores/{name}": _OF_PARTS for name in ("registry", "private_files")},
    },
    "guards": {
        **{f"guards/{name}": _OF_GUARDS for name in ("admission", "memory", "sqlite")},
    },
}
"""The tests for the modules of each package; a folder stands for all of its modules."""


def tests_of(package: str) -> dict[str, tuple[str, ...]]:
    """Return the sampled modules of a package, with their tests."""
    found = {}
    for path, tests in TESTS[package].items():
        whole = SOURCE / "lockfast" / path
        files = sorted(whole.glob("*.py")) if whole.is_dir() else [whole.with_suffix(".py")]
        for file in files:
            if file.stem != "__init__":
                found[".".join(file.relative_to(SOURCE).with_suffix("").parts)] = tests
    return found
