"""What every guard promises, wherever it stores its floors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockfast.errors import InvalidNameError, LockfastError, StaleTokenError, UnsupportedError
from lockfast.guards import Guard, InvalidTokenError, MemoryGuard, SqliteGuard
from tests.guards.databases import LIBRARIES, open_database

KINDS = ("memory", *LIBRARIES)
TOKEN_MAX = 2**53 - 1


@contextmanager
def new_guard(kind: str, *, tree: bool = False) -> Iterator[Guard]:
    if kind == "memory":
        yield MemoryGuard(tree=tree)
        return
    database = open_database(kind, ":memory:")
    try:
        database.execute("BEGIN")
        yield SqliteGuard(database, tree=tree)
    finally:
        database.close()


@pytest.fixture(params=KINDS)
def guard(request: pytest.FixtureRequest) -> Iterator[Guard]:
    with new_guard(request.param) as made:
        yield made


@pytest.fixture(params=KINDS)
def tree_guard(request: pytest.FixtureRequest) -> Iterator[Guard]:
    with new_guard(request.param, tree=True) as made:
        yield made


def test_an_older_token_is_refused_once_a_newer_was_admitted(guard: Guard) -> None:
    guard.admit("orders/42", 17)
    with pytest.raises(StaleTokenError, match=r"'orders/42' refused: token 16 is older than 17"):
        guard.admit("orders/42", 16)
    guard.admit("orders/42", 18)


def test_the_same_token_passes_again(guard: Guard) -> None:
    guard.admit("orders/42", 17)
    guard.admit("orders/42", 17)


def test_once_refuses_the_same_token(guard: Guard) -> None:
    guard.admit("orders/42", 17, once=True)
    with pytest.raises(StaleTokenError, match="token 17 was already used"):
        guard.admit("orders/42", 17, once=True)
    guard.admit("orders/42", 18, once=True)


def test_a_shared_token_is_compared_but_not_remembered(guard: Guard) -> None:
    guard.admit("orders/42", 17)
    guard.admit("orders/42", 19, shared=True)
    guard.admit("orders/42", 18, shared=True)
    guard.admit("orders/42", 17, shared=True)
    assert guard.floor("orders/42") == 17
    with pytest.raises(StaleTokenError):
        guard.admit("orders/42", 16, shared=True)


def test_a_refusal_leaves_the_floor_and_says_what_it_met(guard: Guard) -> None:
    guard.admit("orders/42", 17)
    with pytest.raises(StaleTokenError) as refusal:
        guard.admit("orders/42", 3)
    assert (refusal.value.resource, refusal.value.token, refusal.value.floor) == (
        "orders/42",
        3,
        17,
    )
    assert guard.floor("orders/42") == 17


def test_a_name_that_was_never_written_admits_any_token(guard: Guard) -> None:
    guard.admit("orders/42", 17)
    assert guard.floor("orders/43") == 0
    guard.admit("orders/43", 1, once=True)
    guard.admit("orders", TOKEN_MAX)
    assert guard.floor("orders") == TOKEN_MAX


@pytest.mark.parametrize(
    "token",
    [True, False, 0, -1, TOKEN_MAX + 1, 10**5000, -(10**5000), 17.0, "17", b"17", None, [17]],
    ids=lambda token: type(token).__name__,
)
def test_what_cannot_be_a_token_is_refused_by_name(guard: Guard, token: object) -> None:
    with pytest.raises(InvalidTokenError, match="is not a token") as refusal:
        guard.admit("orders/42", token)  # type: ignore[arg-type]
    assert isinstance(refusal.value, LockfastError)
    assert guard.floor("orders/42") == 0


@pytest.mark.parametrize("name", ["", "a//b", "/a", "..", "a\x00b", "\ud800", "e\u0301", "x" * 513])
def test_what_cannot_be_a_name_is_refused(guard: Guard, tree_guard: Guard, name: str) -> None:
    for each in (guard, tree_guard):
        with pytest.raises(InvalidNameError):
            each.admit(name, 17)
        with pytest.raises(InvalidNameError):
            each.floor(name)


def test_shared_cannot_be_once(guard: Guard) -> None:
    with pytest.raises(UnsupportedError, match="drop one of them"):
        guard.admit("orders/42", 17, shared=True, once=True)


def test_a_writer_above_makes_older_tokens_beneath_stale(tree_guard: Guard) -> None:
    tree_guard.admit("warehouse", 20)
    for name in ("warehouse/eu", "warehouse/eu/bin-7"):
        for shared in (False, True):
            with pytest.raises(StaleTokenError, match="19 is older than 20"):
                tree_guard.admit(name, 19, shared=shared)
    tree_guard.admit("warehouse/eu/bin-7", 21)


def test_a_writer_beneath_makes_older_tokens_above_stale(tree_guard: Guard) -> None:
    tree_guard.admit("warehouse/eu/bin-7", 20)
    for name in ("warehouse", "warehouse/eu"):
        for shared in (False, True):
            with pytest.raises(StaleTokenError, match="19 is older than 20"):
                tree_guard.admit(name, 19, shared=shared)
    tree_guard.admit("warehouse", 21)


def test_siblings_in_a_tree_leave_each_other_alone(tree_guard: Guard) -> None:
    tree_guard.admit("warehouse/eu", 20)
    tree_guard.admit("warehouse/us", 10)
    tree_guard.admit("warehouse/e", 10)
    tree_guard.admit("warehouse/eu-2", 10)
    tree_guard.admit("warehouses", 10)
    assert tree_guard.floor("warehouse") == 20
    assert tree_guard.floor("warehouse/us/bin-1") == 10


def test_the_deepest_name_is_compared_with_all_256_levels(tree_guard: Guard) -> None:
    deepest = "/".join("a" * 256)
    tree_guard.admit("a", 20)
    with pytest.raises(StaleTokenError):
        tree_guard.admit(deepest, 19)
    tree_guard.admit(deepest, 21)
    assert tree_guard.floor("a") == 21


Step = tuple[str, int, str]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "a/b", "a/b/c", "a/b/d", "a/bb", "a-b", "b"]),
        st.integers(1, 8),
        st.sampled_from(["exclusive", "once", "shared"]),
    ),
    max_size=20,
)


def in_the_way(tree: bool, one: str, other: str) -> bool:
    """Return True if locks on the two names exclude each other."""
    return one == other or (tree and (one.startswith(other + "/") or other.startswith(one + "/")))


@pytest.mark.parametrize("tree", [False, True], ids=["plain", "tree"])
@pytest.mark.parametrize("kind", KINDS)
@given(steps=STEPS)
def test_refused_exactly_when_a_newer_writer_was_in_the_way(
    kind: str, tree: bool, steps: list[Step]
) -> None:
    """Any sequence of requests is decided as the list of earlier writers implies."""
    written: list[tuple[str, int]] = []
    with new_guard(kind, tree=tree) as guard:
        for name, token, how in steps:
            newest = max((t for n, t in written if in_the_way(tree, n, name)), default=0)
            assert guard.floor(name) == newest
            shared, once = how == "shared", how == "once"
            if token > newest or (token == newest and not once):
                guard.admit(name, token, shared=shared, once=once)
                if not shared:
                    written.append((name, token))
            else:
                with pytest.raises(StaleTokenError):
                    guard.admit(name, token, shared=shared, once=once)


def test_importing_guards_loads_no_database_library() -> None:
    code = (
        "import sys; sys.path[:] = sys.argv[1:]; import lockfast.guards; "
        "print(sorted({'sqlite3', '_sqlite3', 'apsw', 'asyncio'} & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, *sys.path], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
