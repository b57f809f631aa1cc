"""A name stands for exactly one lock, and never for a file."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import lockfast
import lockfast.aio
from lockfast import InvalidNameError
from lockfast.api.template import namer
from tests.api.worlds import fresh_url

NASTY = [
    *("..", ".", "/", "//", "\\", "~", "$HOME", "C:", "-wal", "-gate", "locks.db"),
    *("%", "%2F", "%2E", "%00", "\x00", "\x1f", "\n", "\x7f", "\x85", "\u2028"),
    *("'", '"', ";", "--", "*", "?", "_", "[a]", "{a}", "{", "}", "(", "&"),
    *(" ", "\u00a0", "\u200b", "\u202e", "\ufeff", "\ufffd", "\U0010ffff", "\ud800"),
    *("a", "A", "ä", "a\u0308", "ß", "ss", "ı", "I", "ﬁ", "fi", "K", "\u212a", "x" * 120),
]
hostile = st.one_of(
    st.text(st.characters(), max_size=8),
    st.lists(st.sampled_from(NASTY), max_size=6).map("".join),
    st.text(st.characters(categories=["Lu", "Ll", "Mn", "Lm"]), max_size=8),
)

NAMES_PER_EXAMPLE = 100
EXAMPLES = {"memory": 10, "sqlite": 100}


@pytest.fixture(params=["memory", "sqlite"])
def client(request: pytest.FixtureRequest, quick_path: Path) -> Iterator[lockfast.Client]:
    url = fresh_url() if request.param == "memory" else f"sqlite://{quick_path}/here/locks.db"
    with lockfast.connect(url) as connected:
        yield connected


def test_ten_thousand_hostile_names(
    request: pytest.FixtureRequest,
    client: lockfast.Client,
    quick_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each gives a typed error or a lock of exactly that name; never an alias or a stray file."""
    monkeypatch.chdir(tmp_path)
    seen = 0
    store = request.node.callspec.params["client"]

    @settings(
        max_examples=EXAMPLES[store],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(hostile, min_size=NAMES_PER_EXAMPLE, max_size=NAMES_PER_EXAMPLE, unique=True))
    def hold_them_all(names: list[str]) -> None:
        nonlocal seen
        seen += len(names)
        leases: dict[str, lockfast.Lease] = {}
        for name in names:
            try:
                lock = client.lock(name)
            except InvalidNameError:
                continue
            # All are held at the same time: an alias would find its lock held.
            lease = lock.try_acquire()
            assert lease is not None, f"{name!r} is taken for another of {list(leases)!r}"
            assert lease.name == lock.name == name
            leases[name] = lease
        assert [info.name for info in client.list()] == sorted(leases)
        for name, lease in leases.items():
            (holder,) = client.inspect(name).holders
            assert holder.token == lease.token
            lease.release()
        assert client.list() == []

    hold_them_all()
    assert seen >= EXAMPLES[store] * NAMES_PER_EXAMPLE
    here = {path.name for path in (quick_path / "here").glob("*")}
    assert here <= {"locks.db", "locks.db-wal", "locks.db-shm", "locks.db-gate"}
    assert [path for path in quick_path.iterdir() if path.name != "here"] == []
    assert os.listdir(tmp_path) == []


class Job(str, Enum):  # noqa: UP042 — a StrEnum prints its value
    """Equal to its value, but formatted as `Job.NIGHTLY`."""

    NIGHTLY = "nightly"


class Shouted(str):
    def __str__(self) -> str:
        return self.upper()

    def __format__(self, spec: str) -> str:
        return self.upper()


@pytest.mark.parametrize("name", [Job.NIGHTLY, Shouted("nightly")], ids=["enum", "subclass"])
def test_equal_names_are_one_lock_whatever_their_type(client: lockfast.Client, name: str) -> None:
    with client.lock(name) as lease:
        assert client.lock("nightly").try_acquire() is None
        assert type(lease.name) is str
        assert [info.name for info in client.list()] == ["nightly"]
        assert client.inspect(name).holder_count == 1
        assert [info.name for info in client.list(name)] == ["nightly"]


# ── names from arguments ─────────────────────────────────────────────────────────────

TEMPLATES = ["{a}:{b}", "{a}/{b}", "{a}.{b}", "x-{a}--{b}-y", "{a} {b}", "{a}/x/{b}", "{a}%:{b}/c"]
values = st.one_of(
    st.text(st.characters(), max_size=6),
    st.lists(st.sampled_from([*NASTY[:24], ":", "-", " ", "x", "2E", "2F", "25"]), max_size=5).map(
        "".join
    ),
)


def of_two(a: object, b: object = "default") -> None: ...


@pytest.mark.parametrize("template", TEMPLATES)
def test_different_arguments_never_give_one_name(template: str) -> None:
    names: dict[str, tuple[str, str]] = {}

    @settings(
        max_examples=400, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.tuples(values, values), st.tuples(values, values))
    def compare(one: tuple[str, str], other: tuple[str, str]) -> None:
        assume(one != other)
        name_of = namer(template, of_two)
        for arguments in (one, other, (one[0] + other[0], one[1]), (one[0], other[0] + one[1])):
            try:
                name = name_of(*arguments)
            except InvalidNameError:
                continue
            assert names.setdefault(name, arguments) == arguments

    compare()


@pytest.mark.parametrize(
    ("template", "arguments", "name"),
    [
        ("report:{a}", ("monday",), "report:monday"),
        ("report:{a}", (7,), "report:7"),
        ("report:{a}", ("a/b",), "report:a%2Fb"),
        ("report:{a}", ("100%",), "report:100%25"),
        ("report:{a}", ("",), "report:%"),
        ("{a}", (".",), "%2E"),
        ("{a}", ("..",), "%2E%2E"),
        ("{a}", ("a.b",), "a.b"),
        ("{a}", ("\n",), "%0A"),
        ("{a}:{b}", ("x:y", "z"), "x%3Ay:z"),
        ("{a}:{b}", ("x", "y:z"), "x:y%3Az"),
        ("{a}-{b}", ("x",), "x-default"),
        ("{{a}}-{a}", ("x",), "{a}-x"),
        ("{{a}}", (), "{a}"),
    ],
)
def test_names_from_arguments(template: str, arguments: tuple[Any, ...], name: str) -> None:
    def one(a: object = "", b: object = "default") -> None: ...

    assert namer(template, one)(*arguments) == name


@pytest.mark.parametrize(
    "template",
    [
        "{c}",
        "{}",
        "{0}",
        "{a.x}",
        "{a[0]}",
        "{a!r}",
        "{a:>5}",
        "{a",
        "a}",
        "{a}{b}",
        "{a}x{b}",
        "{a}%{b}",
    ],
)
def test_a_template_that_makes_no_sense_is_refused_at_once(template: str) -> None:
    """The error is raised when the function is decorated, not when it is called."""
    with lockfast.connect(fresh_url()) as client, pytest.raises(InvalidNameError):
        client.lock(template)(of_two)


def generates() -> Iterator[int]:
    yield 1


async def async_generates() -> Any:
    yield 1


async def awaits() -> None: ...


def plain() -> None: ...


NOT_BLOCKING: list[Callable[..., Any]] = [
    generates,
    async_generates,
    awaits,
    functools.partial(awaits),
    functools.partial(generates),
]


@pytest.mark.parametrize("function", NOT_BLOCKING)
def test_a_body_that_would_run_without_the_lock_is_refused(function: Callable[..., Any]) -> None:
    """Calling these only starts them; they would run after the lock is released."""
    with lockfast.connect(fresh_url()) as client:
        with pytest.raises(TypeError):
            client.lock("a")(function)
        with pytest.raises(TypeError):
            client.once("a", at_least=1, at_most=2)(function)


@pytest.mark.parametrize("function", [generates, async_generates, plain, functools.partial(plain)])
def test_asyncio_decorates_coroutine_functions_only(function: Callable[..., Any]) -> None:
    client = lockfast.aio.connect(fresh_url())
    with pytest.raises(TypeError):
        client.lock("a")(function)
    with pytest.raises(TypeError):
        client.once("a", at_least=1, at_most=2)(function)


def test_partials_and_callables_can_be_decorated() -> None:
    class Builder:
        def __call__(self, day: str) -> list[str]:
            return [info.name for info in connected.list()]

    with lockfast.connect(fresh_url()) as connected:
        build: Any = connected.lock("report:{day}")(Builder())
        assert build("monday") == ["report:monday"]
        bound: Any = connected.lock("report:{day}")(functools.partial(Builder(), day="friday"))
        assert bound() == ["report:friday"]


def test_a_decorated_function_is_still_itself() -> None:
    with lockfast.connect(fresh_url()) as client:
        decorated = client.lock("a")(plain)
        assert decorated.__name__ == "plain"
        assert decorated.__module__ == __name__
        assert decorated.__wrapped__ is plain  # type: ignore[attr-defined]


def test_wrong_arguments_are_reported_with_the_name_of_the_function() -> None:
    with lockfast.connect(fresh_url()) as client:

        @client.lock("report:{day}")
        def build(day: str) -> str:
            return day

        wrong: Any = build
        with pytest.raises(TypeError, match=r"build\(\) missing a required argument: 'day'"):
            wrong()
        with pytest.raises(TypeError, match=r"build\(\) got an unexpected keyword argument 'dya'"):
            wrong("monday", dya="friday")
