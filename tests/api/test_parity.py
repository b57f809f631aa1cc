"""The two APIs are alike: the same names, parameters, defaults, annotations and docstrings.

Every permitted difference is listed here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import lockfast
import lockfast.aio
from lockfast.api import aio, blocking

TWINS = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}

NOT_AWAITED = {
    "Changes.__aiter__",
    "Changes.close",
    "Client.watch",
    "Election.observe",
    "Lease.on_lost",
    "Lock.__call__",
    "Lost.is_set",
    "Observation.__aiter__",
    "Observation.close",
    "Once.__call__",
    "Party.watch",
    "RWLock.read",
    "RWLock.update",
    "RWLock.write",
    "Tree.read",
    "Tree.write",
    "Watch.__aiter__",
    "Watch.close",
    "connect",
    "default_client",
    "lock",
}
"""Functions of the asyncio API that are not coroutines, because they send nothing."""

ACQUIRING = {"Election.campaign", "Lock.acquire", "Party.join", "Semaphore.acquire"}
"""Functions that return an `Acquiring`, to be awaited or entered with `async with`."""

WORDS: dict[str, list[tuple[str, str]]] = {
    "Client": [("of a `with` block", "of an `async with` block")],
    "connect": [
        (
            "raise now if there is none.",
            "raise now if there is none: `await connect(…, check=True)`, or `async with`.",
        )
    ],
    "Lease": [
        (
            "at the end of the block.",
            "at the end of the block, and cancels the task inside the block if the lease is lost.",
        )
    ],
    "Lease.execute_with_fence": [
        (
            "the token passes a single time.",
            "the token passes a single time. A guard for blocking programs runs in a worker "
            "thread, and the operation with it.",
        )
    ],
    "Lease.on_lost": [("on a new thread", "on the event loop that runs now")],
    "Lock": [
        ("shared by threads", "shared by tasks"),
        ("`with lock as lease:`", "`async with lock as lease:`"),
    ],
}
"""For each docstring that differs: the words of the blocking API and of the asyncio API."""

ANNOTATIONS = [("Iterator", "AsyncIterator")]


def members_of(face: Any) -> dict[str, Callable[..., Any] | property | type]:
    """Return everything public of an API by its module, under the names of the blocking API."""
    found: dict[str, Callable[..., Any] | property | type] = {}
    for name in face.__all__:
        thing = getattr(face, name)
        found[name] = thing
        if not inspect.isclass(thing):
            continue
        for base in thing.__mro__:
            if not base.__module__.startswith(face.__name__):
                continue
            for inner, value in vars(base).items():
                twin = TWINS.get(inner, inner)
                if not inner.startswith("_") or twin in (*TWINS.values(), "__init__", "__call__"):
                    found[f"{base.__name__}.{twin}"] = value
    return found


BLOCKING = members_of(blocking)
AIO = members_of(aio)
BOTH = sorted(BLOCKING.keys() & AIO.keys())
FUNCTIONS = [name for name in BOTH if inspect.isfunction(BLOCKING[name])]


def own_name(name: str) -> str:
    """Return the name of a member in the asyncio API."""
    backwards = {blocking_name: aio_name for aio_name, blocking_name in TWINS.items()}
    owner, dot, inner = name.rpartition(".")
    return f"{owner}{dot}{backwards.get(inner, inner)}"


def test_the_faces_have_the_same_names() -> None:
    # Lease keeps the blocks that must be cancelled on a loss.
    aio_only = {name for name in AIO if name.startswith("Acquiring")} | {"Lease.__init__"}
    assert set(BLOCKING) == set(AIO) - aio_only
    assert ["Acquiring", *blocking.__all__] == aio.__all__
    assert len(FUNCTIONS) > 60


def test_what_is_public_of_the_package_is_public_of_both() -> None:
    shared = set(lockfast.aio.__all__) - {"Acquiring"}
    assert shared <= set(blocking.__all__)
    assert shared == set(blocking.__all__) & set(lockfast.__all__)
    for name in shared:
        assert getattr(lockfast, name) is getattr(blocking, name)
        assert getattr(lockfast.aio, name) is getattr(aio, name)


@pytest.mark.parametrize("name", [name for name in BOTH if inspect.isclass(BLOCKING[name])])
def test_classes_derive_alike(name: str) -> None:
    one, other = BLOCKING[name], AIO[name]
    assert isinstance(one, type)
    assert isinstance(other, type)
    assert [base.__name__ for base in one.__mro__] == [base.__name__ for base in other.__mro__]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_defaults_and_annotations_are_alike(name: str) -> None:
    one, other = BLOCKING[name], AIO[name]
    assert callable(one)
    assert callable(other)
    expected, found = inspect.signature(one), inspect.signature(other)
    assert [as_blocking(it) for it in found.parameters.values()] == [
        as_blocking(it) for it in expected.parameters.values()
    ]
    answer, given = str(expected.return_annotation), as_blocking(found.return_annotation)
    if answer != given:
        for before, after in ANNOTATIONS:
            answer = answer.replace(before, after)
    assert given == answer


def as_blocking(annotation: object) -> str:
    """Return an annotation without the coroutine around its result."""
    return re.sub(r"(?:Coroutine\[Any, Any, |Acquiring\[)([^]]*)\]", r"\1", str(annotation))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_may_wait_is_awaited(name: str) -> None:
    assert not inspect.iscoroutinefunction(BLOCKING[name])
    waits = own_name(name) not in NOT_AWAITED | ACQUIRING and not name.endswith(".__init__")
    if own_name(name) in ACQUIRING:
        assert "Acquiring[" in str(inspect.signature(AIO[name]).return_annotation)  # type: ignore[arg-type]
    assert inspect.iscoroutinefunction(AIO[name]) == waits


def test_the_list_of_what_is_not_awaited_is_up_to_date() -> None:
    assert {own_name(name) for name in FUNCTIONS} >= NOT_AWAITED


def words_of(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").split())


@pytest.mark.parametrize("name", BOTH)
def test_docstrings_are_alike(name: str) -> None:
    text = words_of(BLOCKING[name])
    for before, after in WORDS.get(name, []):
        assert before in text
        text = text.replace(before, after)
    assert words_of(AIO[name]) == text


@pytest.mark.parametrize("name", BOTH)
def test_everything_public_is_documented(name: str) -> None:
    if not name.rpartition(".")[2].startswith("__"):
        assert words_of(BLOCKING[name])
