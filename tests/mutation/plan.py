"""Which fast tests must detect a mutant in which module or Lua script, the most effective first.

Fast tests need no server, so of the stores those parts are sampled that run without one: in the
simulator, on a model, or as functions. Code that only opens sockets is left to the tests with real
servers. Two exceptions start quickly: a lock server in the same process, and Redis for the nodes
of a majority.
"""

from __future__ import annotations

from typing import Final

from tests.mutation.mutants import SOURCE

TARGETS: Final = {"core": 90, "flow": 90, "stores": 80, "guards": 80, "server": 80}
"""How many of a hundred mutants must be killed."""

_SEARCHES: Final = "tests/mutation/test_searches.py"
_OF_MEMORY: Final = f"{_SEARCHES}::test_memory"
_OF_SQLITE: Final = (
    "tests/conformance/test_reference.py::test_three_writers_and_the_model_agree",
    f"{_SEARCHES}::test_sqlite",
    "tests/stores",
    "--deselect=tests/stores/test_sqlite_steps.py::test_a_spill_outside_the_transaction_would_be_seen",
)
_OF_REDIS: Final = (
    "tests/redis/test_scripts_on_the_model.py",
    "tests/redis/test_reference.py::test_scripts_and_table_agree_on_the_model",
    f"{_SEARCHES}::test_redis",
)
_OF_ETCD: Final = (
    "tests/etcd/test_reference.py::test_store_and_table_agree_on_the_model",
    f"{_SEARCHES}::test_etcd",
    "tests/sim/test_etcd_cluster.py",
)
_OF_BATCHES: Final = tuple(
    f"tests/etcd/test_together.py::test_{name}"
    for name in (
        "transactions_of_one_request_have_different_tokens",
        "a_transaction_that_waited_too_long_is_never_sent",
        "a_second_request_is_sent_once_as_many_wait_as_are_in_flight",
        "a_request_does_not_overtake_one_that_concerns_the_same_resource",
    )
)
_OF_OWNED: Final = ("tests/etcd/test_owned.py", "tests/etcd/test_conflicts.py")
_OF_ZOOKEEPER: Final = (
    "tests/zookeeper/test_reference.py::test_store_and_table_agree_on_the_model",
    f"{_SEARCHES}::test_zookeeper",
)
_OF_POSTGRESQL: Final = (
    "tests/postgresql/test_rebuilding.py",
    "tests/postgresql/test_reference.py::test_store_and_table_agree_on_the_model",
    f"{_SEARCHES}::test_postgresql",
    "tests/postgresql/test_connection_errors.py",
)
_OF_SESSION_WAKES: Final = (
    "tests/redis/test_session_wakes.py",
    "tests/regressions/test_forged_wakes.py::test_a_message_of_the_store_changed_on_its_way_is_not_believed",
)
_OF_NODE: Final = ("tests/quorum/test_reference.py",)
_OF_QUORUM: Final = (
    *(f"tests/quorum/test_{name}.py" for name in ("codec", "session_records", "renewals")),
    f"{_SEARCHES}::test_quorum",
    "tests/quorum/test_conformance_memory.py",
)
_OF_SHARDS: Final = tuple(
    f"tests/sharded/test_{name}.py" for name in ("merging", "reference", "shards")
)
_OF_HTTP: Final = (
    "tests/server/test_reference.py",
    "tests/server/test_conformance.py::TestWire",
)
_OF_HTTP_PARTS: Final = (
    "tests/stores/test_http_messages.py",
    "tests/stores/test_http_connections.py",
    *_OF_HTTP,
)
_OF_SERVER: Final = {
    "audit": ("audit", "border"),
    "border": ("border",),
    "config": ("identity", "rights"),
    "endpoints": ("limited", "reference", "border"),
    "identity": ("identity",),
    "jwt": ("identity",),
    "logins": ("logins",),
    "node_endpoints": ("node",),
    "node_service": ("node",),
    "quotas": ("identity", "rights"),
    "replies": ("reference", "border"),
    "requests": ("reference", "border"),
    "rights": ("rights", "identity"),
    "service": ("limited", "reference", "rights", "border"),
    "streams": ("rights", "border"),
    "tokens": ("identity", "logins"),
    "wakes": ("wakes", "rights"),
}
"""The tests of each module of the lock server."""
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
        "stores/redis/session_wakes": (*_OF_SESSION_WAKES, *_OF_REDIS),
        **{
            f"stores/redis/scripts/{name}.lua": _OF_REDIS
            for name in (
                *("enter", "enter_free", "enter_last", "leave", "leave_alone", "leave_next"),
                *("passing", "shard", "order", "rows", "writing", "lines", "table", "views"),
                *("open", "convert", "proclaim", "adopt", "renew", "close", "expel", "revoke"),
                *("revoke_session", "resize", "break", "watch", "look", "claims", "inspect"),
                *("listing", "sessions", "events"),
            )
        },
        **{
            f"stores/etcd/{name}": _OF_ETCD
            for name in (
                *("context", "execution", "gateway", "journal", "layout", "plan", "reading"),
                *("requests", "sessions", "steps", "view", "wire"),
            )
        },
        "stores/etcd/batches": (*_OF_BATCHES, *_OF_ETCD),
        **{f"stores/{name}": (*_OF_OWNED, *_OF_ETCD) for name in ("derived", "etcd/owned")},
        "stores/etcd/shortcuts": ("tests/etcd/test_long_lines.py", *_OF_ETCD),
        **{f"stores/quorum/{name}": _OF_QUORUM for name in ("messages", "session_records", "wire")},
        **{f"stores/quorum/{name}": (*_OF_NODE, *_OF_QUORUM) for name in ("codec", "node")},
        "stores/quorum/node.lua": _OF_NODE,
        **{
            f"stores/zookeeper/{name}": _OF_ZOOKEEPER
            for name in (
                *("context", "layout", "loaded", "loading", "owned", "plan", "reading"),
                *("sessions", "steps", "view", "wake_listener", "wire"),
            )
        },
        **{
            f"stores/postgresql/{name}": _OF_POSTGRESQL
            for name in (
                *("errors", "packing", "rebuilding", "rows", "shortcuts", "steps"),
                *("wake_listener", "wire"),
            )
        },
        **{f"stores/sharded/{name}": _OF_SHARDS for name in ("merging", "positions", "wire")},
        "stores/http": _OF_HTTP_PARTS,
        "stores/lockserver": ("tests/server/test_routes.py", *_OF_HTTP),
        "stores/memory": (_OF_MEMORY, "tests/conformance/test_wire.py"),
        **{f"stores/{name}": _OF_PARTS for name in ("registry", "private_files")},
    },
    "guards": {
        **{f"guards/{name}": _OF_GUARDS for name in ("admission", "memory", "sqlite")},
        **{
            f"guards/{name}": (f"tests/guards/test_{name}.py",)
            for name in ("files", "http", "objects")
        },
    },
    "server": {
        f"server/{module}": tuple(f"tests/server/test_{name}.py" for name in tests)
        for module, tests in _OF_SERVER.items()
    },
}
"""The tests for the modules of each package; a folder stands for all of its modules."""


def tests_of(package: str) -> dict[str, tuple[str, ...]]:
    """Return the sampled modules of a package, with their tests."""
    found = {}
    for path, tests in TESTS[package].items():
        whole = SOURCE / "lockfast" / path
        if path.endswith(".lua"):
            found[f"lockfast/{path}"] = tests
            continue
        files = sorted(whole.glob("*.py")) if whole.is_dir() else [whole.with_suffix(".py")]
        for file in files:
            if file.stem != "__init__":
                found[".".join(file.relative_to(SOURCE).with_suffix("").parts)] = tests
    return found
