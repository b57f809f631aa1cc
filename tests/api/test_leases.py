"""What a holder can rely on, whatever the store, the network or the body of the block does."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lockfast
from lockfast import (
    AcquireTimeoutError,
    DeadlockError,
    LeaseLostError,
    LeaseState,
    LimitError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UnsupportedError,
)
from lockfast.core import commands as c
from lockfast.core.table import Limits
from lockfast.ports import Capabilities
from tests.api.worlds import CuttableStore, fresh_url, use

TTL = 0.5
PATIENCE = 30


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> CuttableStore:
    made = CuttableStore()
    use(monkeypatch, made)
    return made


@pytest.fixture
def client(store: CuttableStore) -> Iterator[lockfast.Client]:
    with lockfast.connect("memory://", ttl=TTL, connect_timeout=0.2) as connected:
        yield connected
        store.mend()


def until(true: Callable[[], object]) -> None:
    """Wait for the effect of another thread."""
    for _ in range(PATIENCE * 200):
        if true():
            return
        time.sleep(0.005)
    raise AssertionError("it never became true")


# ── the store is out of reach ────────────────────────────────────────────────────────


def test_a_holder_cut_off_is_told_by_its_own_clock(
    client: lockfast.Client, store: CuttableStore
) -> None:
    """With no replies, the lease is lost no later than the store expires it."""
    lease = client.lock("a").acquire()
    store.cut()
    deadline = lease.deadline
    assert lease.lost.wait(PATIENCE)
    assert lease._core.runtime.now_ms() / 1000 >= deadline, "and not before its deadline"
    with pytest.raises(LeaseLostError, match="not renewed in time"):
        lease.check()
    store.mend()
    again = client.lock("a").acquire(timeout=PATIENCE)
    assert again.token > lease.token
    again.release()


def test_the_end_of_max_hold_is_told_with_nothing_answering(
    client: lockfast.Client, store: CuttableStore
) -> None:
    heard: list[lockfast.Lease] = []
    lease = client.lock("a", ttl=3600, max_hold=0.2).acquire()
    lease.on_lost(heard.append)
    store.cut()
    until(lambda: heard == [lease])
    with pytest.raises(LeaseLostError, match="max_hold"):
        lease.check()


def test_the_first_look_after_a_pause_tells_the_truth(
    client: lockfast.Client, store: CuttableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if no thread has run yet that could have noticed."""
    lease = client.lock("a", ttl=60).acquire()
    runtime = client._core.runtime
    asleep_s = 100
    now_ms = runtime.now_ms
    assert lease.state == "held"
    for clock in {runtime, lease._holding.session.runtime}:  # type: ignore[union-attr]
        monkeypatch.setattr(clock, "now_ms", lambda: now_ms() + asleep_s * 1000)
    assert lease.lost.is_set()
    assert lease.state == "lost"
    assert lease.remaining == 0.0


def test_a_keep_alive_that_fails_makes_a_lease_uncertain_and_one_that_succeeds_certain(
    client: lockfast.Client, store: CuttableStore
) -> None:
    lease = client.lock("a", ttl=9).acquire()
    store.cut(c.Renew)
    until(lambda: lease.state is LeaseState.UNCERTAIN)
    lease.check()
    assert lease.remaining > 0
    store.mend()
    until(lambda: lease.state is LeaseState.HELD)
    lease.release()


def test_a_release_that_is_not_answered_says_so_and_goes_on(
    client: lockfast.Client, store: CuttableStore
) -> None:
    lease = client.lock("a", ttl=20).acquire()
    store.cut(c.Leave)
    with pytest.raises(
        OutcomeUnknownError, match=r"retried in the background.*expires within"
    ) as caught:
        lease.release()
    assert f"token {lease.token}" in str(caught.value)
    assert lease.state == "released"
    assert client.lock("a").try_acquire() is None
    store.mend()
    client.lock("a").acquire(timeout=PATIENCE).release()


def test_a_block_whose_release_is_not_answered_ends_well(
    client: lockfast.Client, store: CuttableStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The work was done under the lock, so there is no reason to raise."""
    with client.lock("a"):
        store.cut(c.Leave)
    assert "may not have arrived" in caplog.text


def test_an_unreachable_store_is_an_error_after_the_connect_timeout(
    client: lockfast.Client, store: CuttableStore
) -> None:
    store.cut()
    with pytest.raises(StoreUnavailableError, match="cut"):
        client.lock("a").acquire(timeout=PATIENCE)
    with pytest.raises(StoreUnavailableError):
        client.lock("a").try_acquire()
    store.mend()
    with client.lock("a"):
        pass


def test_a_timeout_is_kept_though_the_queue_cannot_be_left(
    client: lockfast.Client, store: CuttableStore
) -> None:
    holder = client.lock("a", ttl=20).acquire()
    # Only the leave of the claim that gives up is dropped.
    store.cut(c.Leave)
    with pytest.raises(
        AcquireTimeoutError, match="removed from the queue in the background"
    ) as caught:
        client.lock("a", ttl=20).acquire(timeout=0.1)
    assert caught.value.leaving
    assert client.inspect("a").waiting_count == 1
    store.mend()
    until(lambda: client.inspect("a").waiting_count == 0)
    holder.release()


def test_a_claim_already_queued_waits_through_an_outage(
    client: lockfast.Client, store: CuttableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outage is longer than connect_timeout and longer than the session's TTL."""
    use(monkeypatch, CuttableStore(table=store.table))
    with lockfast.connect("memory://", ttl=TTL) as other:
        holder = other.lock("a").acquire()
        taken: list[lockfast.Lease] = []
        waiter = threading.Thread(
            target=lambda: taken.append(client.lock("a").acquire(timeout=PATIENCE))
        )
        waiter.start()
        until(lambda: other.inspect("a").waiting_count == 1)
        (claim,) = other.inspect("a").waiting
        store.cut()
        until(lambda: not other.inspect("a").waiting)
        entered = len(store.refused)
        until(lambda: len(store.refused) > entered + 5)
        store.mend()
        until(lambda: other.inspect("a").waiting)
        assert other.inspect("a").waiting[0].session != claim.session
        holder.release()
        waiter.join(PATIENCE)
        taken.pop().release()


# ── abandoned ────────────────────────────────────────────────────────────────────────


def test_a_lease_that_is_dropped_warns_and_is_given_back(client: lockfast.Client) -> None:
    lease: Any = client.lock("a").acquire()
    token = lease.token
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del lease
        gc.collect()
    (warning,) = caught
    assert warning.category is ResourceWarning
    assert f"'a' (token {token})" in str(warning.message)
    client.lock("a").acquire(timeout=PATIENCE).release()


def test_a_re_entrant_lease_that_is_dropped_is_given_back_too(client: lockfast.Client) -> None:
    lease: Any = client.lock("a", reentrant=True).acquire()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del lease
        gc.collect()
    assert [warning.category for warning in caught] == [ResourceWarning]
    with client.lock("a").acquire(timeout=PATIENCE):
        pass


@pytest.mark.parametrize("end", ["released", "lost", "closed"])
def test_a_lease_that_is_over_is_dropped_in_silence(client: lockfast.Client, end: str) -> None:
    lease: Any = client.lock("a").acquire()
    if end == "released":
        lease.release()
    elif end == "lost":
        client.revoke("a", reason="test")
        assert lease.lost.wait(PATIENCE)
    else:
        client.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del lease
        gc.collect()


def test_a_lease_can_be_neither_pickled_nor_copied(client: lockfast.Client) -> None:
    with client.lock("a") as lease:
        attempts: list[Callable[[], object]] = [
            lambda: pickle.dumps(lease),
            lambda: copy.copy(lease),
            lambda: copy.deepcopy(lease),
        ]
        for attempt in attempts:
            with pytest.raises(UnsupportedError, match="pass its token instead"):
                attempt()
        assert lease.state == "held"


def test_what_is_shown_of_a_lease(client: lockfast.Client) -> None:
    with client.lock("a") as lease:
        assert repr(lease).startswith(f"<Lease 'a' token={lease.token} held, ")
    assert repr(lease).endswith("released>")
    assert repr(client.lock("a")) == "<Lock 'a' on memory://>"


# ── blocks ───────────────────────────────────────────────────────────────────────────


def chain_of(error: BaseException) -> list[type[BaseException]]:
    """Return an error and all its causes and contexts; fail on a cycle."""
    found: list[BaseException] = []
    link: BaseException | None = error
    while link is not None:
        assert link not in found, "the chain is a ring"
        found.append(link)
        link = link.__cause__ or link.__context__
    return [type(link) for link in found]


def test_the_error_of_the_body_wins_and_the_loss_is_behind_it(client: lockfast.Client) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        with client.lock("a", max_hold=0.1) as lease:
            lease.lost.wait(PATIENCE)
            try:
                raise KeyError("first")
            except KeyError:
                raise ZeroDivisionError from None
    assert chain_of(caught.value)[0] is ZeroDivisionError
    assert LeaseLostError in chain_of(caught.value)


def test_an_error_of_the_body_is_left_alone_when_nothing_is_lost(client: lockfast.Client) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        with client.lock("a"):
            raise ZeroDivisionError
    assert chain_of(caught.value) == [ZeroDivisionError]


def test_a_lost_lease_cannot_be_entered(client: lockfast.Client) -> None:
    lease = client.lock("a").acquire()
    client.revoke("a", reason="test")
    assert lease.lost.wait(PATIENCE)
    with pytest.raises(LeaseLostError):
        with lease:
            pytest.fail("the body ran without the lock")


def test_blocks_of_one_recipe_may_be_nested_in_many_threads(client: lockfast.Client) -> None:
    """`with` keeps its lease per thread, so no thread ends the block of another."""
    outer, inner = client.lock("outer", reentrant=True), client.lock("inner", reentrant=True)
    problems: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                with outer as first, inner as second:
                    with outer as again:
                        assert again.token == first.token
                    first.check()
                    second.check()
                assert first.state is second.state is LeaseState.RELEASED
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert problems == []
    assert client.list() == []


def test_re_entry_goes_by_thread_and_client(client: lockfast.Client) -> None:
    with client.lock("a", reentrant=True) as lease:
        (other,) = [lockfast.connect("memory://")]
        assert other.lock("a", reentrant=True).try_acquire() is None
        other.close()
        found: list[lockfast.Lease | None] = []
        thread = threading.Thread(
            target=lambda: found.append(client.lock("a", reentrant=True).try_acquire())
        )
        thread.start()
        thread.join(PATIENCE)
        assert found == [None]
        assert client.lock("a", reentrant=True).acquire() is lease
        lease.release()


def test_waiting_for_ever_for_oneself_is_told_at_once(client: lockfast.Client) -> None:
    with client.lock("a"):
        with pytest.raises(DeadlockError, match=r"already holds.*reentrant=True"):
            client.lock("a").acquire()
        with pytest.raises(AcquireTimeoutError):
            client.lock("a").acquire(timeout=0.05)


# ── callbacks ────────────────────────────────────────────────────────────────────────


def test_a_callback_that_fails_hurts_nobody_else(
    client: lockfast.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: failed.append(args.exc_value))

    def fail(lease: lockfast.Lease) -> None:
        raise ZeroDivisionError

    lease = client.lock("a").acquire()
    other = client.lock("b").acquire()
    lease.on_lost(fail)
    lease.on_lost(lambda lease: heard.append(lease.name))
    client.revoke("a", reason="test")
    until(lambda: heard == ["a"] and len(failed) == 1)
    before = client.sessions()[0].renewals
    until(lambda: client.sessions()[0].renewals > before + 2)
    assert other.state == "held", "the keeper is still at work"
    other.release()


def test_a_callback_may_use_the_client(client: lockfast.Client) -> None:
    taken: list[lockfast.Lease] = []
    lease = client.lock("a").acquire()
    lease.on_lost(lambda lost: taken.append(client.lock("a").acquire(timeout=PATIENCE)))
    client.revoke("a", reason="test")
    until(lambda: taken)
    assert taken[0].token > lease.token
    taken.pop().release()


def test_a_loss_is_told_once(client: lockfast.Client, store: CuttableStore) -> None:
    heard: list[str] = []
    lease = client.lock("a", max_hold=0.1).acquire()
    lease.on_lost(lambda lease: heard.append(lease.name))
    assert lease.lost.wait(PATIENCE)
    store.cut()
    kept = client.lock("a")
    assert kept.name == "a"
    until(lambda: not lease._holding.session.alive())  # type: ignore[union-attr]
    assert heard == ["a"]


# ── limits and capabilities ──────────────────────────────────────────────────────────


def test_a_queue_that_is_full_is_a_limit_error(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, CuttableStore(Limits(waiting_max=1)))
    with lockfast.connect("memory://") as client:
        waiter = threading.Thread(target=lambda: client.lock("a").acquire().release())
        with client.lock("a"):
            waiter.start()
            until(lambda: client.inspect("a").waiting_count == 1)
            with pytest.raises(LimitError, match="the queue of 'a' would be 2, the limit is 1"):
                client.lock("a").acquire(timeout=PATIENCE)
            assert client.lock("a").try_acquire() is None
        waiter.join(PATIENCE)


def test_too_many_claims_of_a_session_are_a_limit_error(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, CuttableStore(Limits(claims_max=2)))
    with lockfast.connect("memory://") as client:
        with client.lock("a"), client.lock("b"):
            with pytest.raises(LimitError, match="would be 3, the limit is 2"):
                client.lock("c").acquire()
        with client.lock("c"):
            pass


def test_sessions_that_are_over_do_not_count_as_ttls_in_use(client: lockfast.Client) -> None:
    leases = [client.lock(f"n{i}", ttl=10 + i).acquire() for i in range(8)]
    with pytest.raises(LimitError, match="different TTLs"):
        client.lock("x", ttl=5).acquire()
    for lease in leases:
        client.revoke(session=lease.session, reason="test")
        assert lease.lost.wait(PATIENCE)
    client.lock("x", ttl=5).acquire().release()


def test_what_a_store_has_not_declared_is_refused_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = CuttableStore(capabilities=Capabilities(priority=False, watch=False, revoke=False))
    use(monkeypatch, store)
    with lockfast.connect("memory://") as client:
        calls: list[Callable[[], object]] = [
            client.lock("a", priority=5).acquire,
            client.lock("a", priority=5).try_acquire,
            client.watch().__next__,
            lambda: client.revoke(session="s", reason="test"),
        ]
        for call in calls:
            with pytest.raises(UnsupportedError):
                call()
        assert store.sent == []
        with client.lock("b"):
            pass
    assert [type(command) for command in store.sent] == [c.Enter, c.Leave, c.Close]


# ── clients ──────────────────────────────────────────────────────────────────────────


def test_closing_ends_a_watch_at_once() -> None:
    """It does not wait until the next keep-alive is due."""
    client = lockfast.connect(fresh_url(), ttl=3600)
    ended: list[Exception] = []
    watch = client.watch(after=0)

    def follow() -> None:
        try:
            next(watch)
        except Exception as error:
            ended.append(error)

    watching = threading.Thread(target=follow, daemon=True)
    watching.start()
    until(lambda: client.sessions())
    client.close()
    watching.join(PATIENCE)
    assert not watching.is_alive()
    assert isinstance(ended[0], StoreUnavailableError | StopIteration)


def test_nothing_is_left_behind_by_a_client(client: lockfast.Client) -> None:
    before = threading.active_count()
    with lockfast.connect(fresh_url()) as other, other.lock("a"), other.lock("b", ttl=7):
        assert threading.active_count() == before + 2
    until(lambda: threading.active_count() == before)


def test_a_closed_client_loses_its_leases_and_says_so(
    client: lockfast.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    lease = client.lock("a").acquire()
    client.close()
    with pytest.raises(LeaseLostError, match="closed"):
        lease.check()
    assert caplog.text == "", "closing is no reason to warn"
