"""Invalid arguments are refused with a typed error before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import lockfast
from lockfast import InvalidNameError, LimitError, LockfastError
from tests.api.worlds import CuttableStore, use

NOT_A_SPAN = [True, False, "5", b"5", None, [], 1j, object()]
NO_SPAN = [math.nan, math.inf, -math.inf, -1, -0.001, timedelta(seconds=-1)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> CuttableStore:
    made = CuttableStore()
    use(monkeypatch, made)
    return made


@pytest.fixture
def client(store: CuttableStore) -> Iterator[lockfast.Client]:
    with lockfast.connect("memory://") as connected:
        yield connected
        assert store.sent == [], "something was sent all the same"


SPANS: dict[str, Callable[[lockfast.Client, Any], object]] = {
    "timeout of acquire": lambda client, span: client.lock("a").acquire(timeout=span),
    "ttl": lambda client, span: client.lock("a", ttl=span),
    "max_hold": lambda client, span: client.lock("a", max_hold=span),
    "lock_delay": lambda client, span: client.lock("a", lock_delay=span),
    "ttl of connect": lambda client, span: lockfast.connect("memory://", ttl=span),
    "connect_timeout": lambda client, span: lockfast.connect("memory://", connect_timeout=span),
    "ageing_step": lambda client, span: lockfast.connect("memory://", ageing_step=span),
    "deadlock_after": lambda client, span: lockfast.connect("memory://", deadlock_after=span),
    "at_least": lambda client, span: client.once("a", at_least=span, at_most=60),
    "at_most": lambda client, span: client.once("a", at_least=1, at_most=span),
}
MAY_BE_NONE = {"timeout of acquire", "ttl", "max_hold", "lock_delay", "ttl of connect"}


@pytest.mark.parametrize("what", SPANS)
@pytest.mark.parametrize("span", NOT_A_SPAN, ids=lambda span: type(span).__name__)
def test_what_is_not_a_span_is_a_type_error(
    client: lockfast.Client, what: str, span: object
) -> None:
    if span is None and what in MAY_BE_NONE:
        return
    with pytest.raises(TypeError, match=r"seconds or a timedelta, not "):
        SPANS[what](client, span)


@pytest.mark.parametrize("what", SPANS)
@pytest.mark.parametrize("span", NO_SPAN, ids=repr)
def test_a_span_is_finite_and_not_negative(
    client: lockfast.Client, what: str, span: object
) -> None:
    with pytest.raises(ValueError, match=r"finite and not negative"):
        SPANS[what](client, span)


@pytest.mark.parametrize("what", [what for what in SPANS if what != "timeout of acquire"])
@pytest.mark.parametrize("span", [10**400, 1e300, timedelta.max], ids=["10**400", "1e300", "max"])
def test_a_span_of_ages_is_refused(client: lockfast.Client, what: str, span: object) -> None:
    """It would overflow in a rank, in a store's number or in a wait."""
    with pytest.raises(ValueError, match=r"ttl|max_hold|lock_delay|_timeout|_step|_after|at_"):
        SPANS[what](client, span)


@pytest.mark.parametrize(
    "timeout", [10**400, 1e300, timedelta.max], ids=["10**400", "1e300", "max"]
)
def test_a_timeout_of_ages_waits_as_long_as_it_takes(
    monkeypatch: pytest.MonkeyPatch, timeout: Any
) -> None:
    use(monkeypatch, CuttableStore())
    with (
        lockfast.connect("memory://") as client,
        client.lock("a").acquire(timeout=timeout) as lease,
    ):
        assert lease.lost.wait(0) is False


@pytest.mark.parametrize("ttl", [0, 0.05, 24 * 3600 + 1, timedelta(days=2)], ids=str)
def test_a_ttl_has_bounds(client: lockfast.Client, ttl: Any) -> None:
    with pytest.raises(ValueError, match=r"from 0\.1 seconds to 24 hours"):
        client.lock("a", ttl=ttl)


def test_a_max_hold_of_nothing_is_refused(client: lockfast.Client) -> None:
    with pytest.raises(ValueError, match=r"at least 0\.1 seconds"):
        client.lock("a", max_hold=0)


@pytest.mark.parametrize("span", [1, 1.5, timedelta(milliseconds=1500), 0.1, 86400])
def test_what_is_a_span_is_taken(client: lockfast.Client, span: Any) -> None:
    client.lock("a", ttl=span, max_hold=span)


@pytest.mark.parametrize("priority", [True, 1.0, "1", None])
def test_a_priority_is_an_int(client: lockfast.Client, priority: Any) -> None:
    with pytest.raises(TypeError, match="priority must be an int"):
        client.lock("a", priority=priority)


@pytest.mark.parametrize("priority", [1001, -1001, 10**30])
def test_a_priority_has_bounds(client: lockfast.Client, priority: int) -> None:
    with pytest.raises(ValueError, match="from -1000 to 1000"):
        client.lock("a", priority=priority)


# ── names ────────────────────────────────────────────────────────────────────────────

BAD_NAMES: list[tuple[object, str]] = [
    ("", "empty"),
    (None, "expected a str"),
    (5, "expected a str"),
    (b"a", "expected a str"),
    ("a" * 513, "513 bytes"),
    ("é" * 257, "514 bytes"),
    ("a\nb", "control"),
    ("a\x00", "control"),
    ("\x1f", "control"),
    ("a\x7f", "control"),
    ("a\x85", "control"),
    ("a\u2028b", "control"),
    ("\ud800", "surrogate"),
    ("e\u0301", "NFC"),
    ("ﬁ\u0301"[1:] + "a" + "\u212b", "NFC"),
    ("/a", "segment"),
    ("a/", "segment"),
    ("a//b", "segment"),
    (".", "segment"),
    ("..", "segment"),
    ("a/../b", "segment"),
    ("a/./b", "segment"),
]

NAMED: dict[str, Callable[[lockfast.Client, Any], object]] = {
    "lock": lambda client, name: client.lock(name),
    "rwlock": lambda client, name: client.rwlock(name),
    "tree": lambda client, name: client.tree(name),
    "semaphore": lambda client, name: client.semaphore(name, 1),
    "all": lambda client, name: client.all("fine", name),
    "election": lambda client, name: client.election(name),
    "party": lambda client, name: client.party(name),
    "once": lambda client, name: client.once(name, at_least=1, at_most=2),
    "inspect": lambda client, name: client.inspect(name),
}


@pytest.mark.parametrize("what", NAMED)
@pytest.mark.parametrize(("name", "why"), BAD_NAMES, ids=lambda value: ascii(value)[:20])
def test_a_bad_name_is_refused(client: lockfast.Client, what: str, name: object, why: str) -> None:
    with pytest.raises(InvalidNameError, match=why) as caught:
        NAMED[what](client, name)
    assert caught.value.name == name
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("name", "why"), BAD_NAMES, ids=lambda value: ascii(value)[:20])
def test_a_bad_name_is_not_revoked(client: lockfast.Client, name: Any, why: str) -> None:
    if name is None:
        return  # in that case the error is about a session
    with pytest.raises(InvalidNameError, match=why):
        client.revoke(name, reason="test")


@pytest.mark.parametrize("prefix", [None, 5, b"a", "a\n", "\ud800", "a\x85"], ids=ascii)
def test_a_bad_prefix_is_refused(client: lockfast.Client, prefix: Any) -> None:
    for call in (client.list, client.watch):
        with pytest.raises(InvalidNameError):
            call(prefix)


def test_long_names_are_cut_in_messages(client: lockfast.Client) -> None:
    with pytest.raises(InvalidNameError) as caught:
        client.lock("x" * 100_000)
    assert len(str(caught.value)) < 300


# ── the rest ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("what", ["owner", "metadata"])
@pytest.mark.parametrize(
    ("text", "kind", "why"),
    [
        (5, TypeError, "must be a str"),
        (b"x", TypeError, "must be a str"),
        ("x\n", ValueError, "control"),
        ("x\x1b[31m", ValueError, "control"),
        ("x\x7f", ValueError, "control"),
        ("x\x9b31m", ValueError, "control"),
        ("\udcff", ValueError, "surrogate"),
        ("x" * 5000, LimitError, "5000, the limit is"),
        ("é" * 4000, LimitError, "8000, the limit is"),
    ],
    ids=lambda value: ascii(value)[:12],
)
def test_owner_and_metadata_are_short_plain_text(
    client: lockfast.Client, what: str, text: Any, kind: type[Exception], why: str
) -> None:
    with pytest.raises(kind, match=why) as caught:
        lockfast.connect("memory://", **{what: text})
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (5, TypeError),
        ("\n", ValueError),
        ("", ValueError),
        ("  ", ValueError),
        ("x" * 5000, LimitError),
    ],
)
def test_a_reason_is_short_plain_text(
    client: lockfast.Client, reason: Any, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="reason"):
        client.revoke("a", reason=reason)


def test_revoke_takes_a_name_or_a_session(client: lockfast.Client) -> None:
    with pytest.raises(TypeError, match="exactly one of"):
        client.revoke(reason="test")
    with pytest.raises(TypeError, match="exactly one of"):
        client.revoke("a", session="s", reason="test")
    with pytest.raises(TypeError, match="session"):
        client.revoke(session=5, reason="test")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["nonsense", "", "lock\x1fa", "LOCK"])
def test_a_kind_that_there_is_not_is_refused(client: lockfast.Client, kind: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: client.inspect("a", kind=kind),
        lambda: client.list("a", kind=kind),
        lambda: client.watch("a", kind=kind),
        lambda: client.revoke("a", kind=kind, reason="test"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="kind"):
            call()


@pytest.mark.parametrize(
    ("after", "error"), [("1", TypeError), (1.0, TypeError), (True, TypeError), (-1, ValueError)]
)
def test_a_position_is_a_number(
    client: lockfast.Client, after: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="after"):
        client.watch(after=after)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "1", 10**10])
def test_a_semaphore_has_a_limit(client: lockfast.Client, limit: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="limit"):
        client.semaphore("a", limit)


@pytest.mark.parametrize("permits", [0, -1, 4, True, 1.5])
def test_permits_are_within_the_limit(client: lockfast.Client, permits: Any) -> None:
    with pytest.raises((TypeError, LimitError), match="permits"):
        client.semaphore("a", 3).acquire(permits=permits)


def test_several_at_once_are_at_least_one(client: lockfast.Client) -> None:
    with pytest.raises(TypeError, match="at least one"):
        client.all()


def test_a_window_does_not_end_before_it_may(client: lockfast.Client) -> None:
    with pytest.raises(ValueError, match="shorter than"):
        client.once("a", at_least=10, at_most=5)


def test_every_error_on_purpose_has_one_root() -> None:
    for name in lockfast.errors.__all__:
        assert issubclass(getattr(lockfast.errors, name), LockfastError)
        assert getattr(lockfast, name) is getattr(lockfast.errors, name)
