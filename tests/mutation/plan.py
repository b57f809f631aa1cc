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
_OF_GUARDS: Final = tuple(
    f"tests/guards/test_{name}.py" for name in ("memory", "semantics", "sqlite", "sqlite_names")
)
_OF_FLOW: Final = (
    "tests/flow",
    "tests/api/test_leases.py",
    _OF_MEMORY,
    "tests/sim/test_one_flow_three_runtimes.py",
    *(f"tests/primitives/test_{name}.py" for name in ("retained", "conversion", "once", "several")),
    *(f"tests/api/test_{name}.py" for name in ("waiting", "aio", "arguments")),
)
_OF_PARTS_OF_FLOW: Final = {
    "acquire": (
        *("regressions/test_timeout_names_the_holder", "regressions/test_last_try_cut_short"),
        *("regressions/test_who_is_in_the_way", "regressions/test_refused_session"),
    ),
    "admin": ("primitives/test_watch", "drawing/test_drawings"),
    "client": (
        *("regressions/test_owner_of_a_forked_child", "regressions/test_actor_of_a_forked_child"),
        "regressions/test_closed_and_busy_workers",
    ),
    "convert": (
        *("primitives/test_conversion", "primitives/test_rwlock"),
        "regressions/test_deadlock_of_a_conversion_names_its_cycle",
    ),
    "deadlock": (
        *(
            "regressions/test_youngest_of_a_deadlock",
            "regressions/test_deadlock_beside_a_long_wait",
        ),
        "regressions/test_deadlock_of_three_clients_with_two_ttls",
    ),
    "emitter": ("observe/test_events", "observe/test_delivery", "observe/test_logs"),
    "groups": ("primitives/test_election", "primitives/test_party"),
    "holding": ("observe/test_events",),
    "keeper": ("regressions/test_keeper_survives_what_it_reads", "observe/test_events"),
    "log_lines": ("observe/test_logs",),
    "observed": ("observe/test_events", "observe/test_logs", "observe/test_sim_events"),
    "once": ("primitives/test_once", "primitives/test_once_wait"),
    "retained": (
        *("regressions/test_margin_is_given_to_the_work", "primitives/test_retained"),
        "observe/test_events",
        *("regressions/test_loser_of_a_kept_lock", "regressions/test_kept_locks_of_one_client"),
        *("regressions/test_callbacks_of_a_kept_lock", "regressions/test_wanted_wake_unheard"),
    ),
    "session_claims": ("observe/test_events", "regressions/test_margin_is_given_to_the_work"),
    "session_life": ("observe/test_events",),
    "watch": (
        *("primitives/test_watch", "primitives/test_election"),
        *(
            "regressions/test_watch_of_a_closed_client",
            "regressions/test_watch_behind_hidden_events",
        ),
    ),
}
"""Tests that kill mutants of one module in particular, run before those of the whole package."""

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
        "flow": _OF_FLOW,
        **{
            f"flow/{module}": (*(f"tests/{test}.py" for test in tests), *_OF_FLOW)
            for module, tests in _OF_PARTS_OF_FLOW.items()
        },
        **{
            f"flow/{name}": (*_OF_FLOW, f"{_SEARCHES}::test_quorum")
            for name in ("capabilities", "contention")
        },
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
