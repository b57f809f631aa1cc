"""A lone waiter listens for itself: its lock comes to it without a detour through the keeper."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

import lockfast
from lockfast.core.commands import WAKE_GRANTED, WAKE_LOOK, Blocker, Wake
from lockfast.runtimes.threads import run
from lockfast.stores.sqlite.ear import Mouth, SqliteEar
from tests.processes.crew import PATIENCE_S, Crew, until
from tests.stores import roles

TTL = 60.0
"""A wake that is not heard would be found by a keep-alive only after a third of it."""


def ear_of(client: lockfast.Client) -> Any:
    (session,) = client._core.sessions()
    return session.ear


def opened(crew: Crew) -> lockfast.Client:
    client = crew.client(ttl=TTL)
    with client.lock("opening"):
        pass
    return client


def leads(client: lockfast.Client) -> bool:
    return bool(ear_of(client)._leading.is_led())


def in_thread(work: Any) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    return thread, results


def test_the_keeper_sleeps_on(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = crew.start(roles.hold)
    holder.hears("held")
    client = opened(crew)
    by_keeper: list[object] = []
    monkeypatch.setattr(SqliteEar, "_read_datagrams", by_keeper.append)
    thread, leases = in_thread(client.lock("a").acquire)
    until(lambda: leads(client), "the waiter listens")
    crew.await_waiting("a", 1)
    holder.tell("release")
    thread.join(PATIENCE_S)
    (lease,) = leases
    assert not by_keeper
    assert not leads(client)
    lease.release()


def test_when_there_are_two_the_keeper_listens_too(crew: Crew) -> None:
    holder = crew.start(roles.hold)
    holder.hears("held")
    client = opened(crew)
    in_the_way = crew.client(ttl=TTL).lock("b").acquire()
    first, leases = in_thread(client.lock("b").acquire)
    until(lambda: leads(client), "the first waiter listens")
    assert not ear_of(client)._leading.is_with_keeper
    second, more_leases = in_thread(client.lock("a").acquire)
    until(lambda: ear_of(client)._leading.is_with_keeper, "the keeper listens too")
    crew.await_waiting("a", 1)
    holder.tell("release")
    second.join(PATIENCE_S)
    in_the_way.release()
    first.join(PATIENCE_S)
    for lease in (*leases, *more_leases):
        lease.release()
    assert len(leases) == len(more_leases) == 1


def test_nobody_leads_while_somebody_else_waits() -> None:
    """Also if that one never led: it came second, and the first has gone."""
    ear = SqliteEar("s", True, lambda wake: None, lambda inbox: None)
    try:
        first, second, third = _Leader(), _Leader(), _Leader()
        assert ear.lead(first)
        assert not ear.lead(second)
        second.leads = False
        first.waits = first.leads = False
        ear.follow()
        assert not ear.lead(third)
        assert ear._leading.is_with_keeper
        second.waits = third.waits = third.leads = False
        assert ear.lead(first)
    finally:
        ear.close()


def test_a_signal_handler_may_wait_while_the_waiter_it_interrupts_listens(crew: Crew) -> None:
    holder = crew.start(roles.hold)
    holder.hears("held")
    client = opened(crew)
    in_the_way = crew.client(ttl=TTL).lock("b").acquire()
    tokens: list[int] = []

    def handle(*_: object) -> None:
        holder.tell("release")
        with client.lock("a").acquire(timeout=PATIENCE_S) as lease:
            tokens.append(lease.token)
        in_the_way.release()

    main = threading.get_ident()

    def interrupt() -> None:
        until(lambda: leads(client), "it listens")
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        watcher, _ = in_thread(interrupt)
        with client.lock("b"):
            assert tokens
        watcher.join(PATIENCE_S)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_it_is_told_of_what_others_hear(crew: Crew) -> None:
    """Of the end of its session, which is somebody else's doing."""
    client = opened(crew)
    in_the_way = crew.client(ttl=TTL).lock("a").acquire()
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            client.lock("a").acquire()
        except lockfast.LockfastError as error:
            caught.append(error)

    thread, _ = in_thread(wait)
    until(lambda: leads(client), "it listens")
    client.close()
    thread.join(PATIENCE_S)
    assert len(caught) == 1
    in_the_way.release()


def test_an_ear_that_is_closed_is_not_listened_at() -> None:
    ear = SqliteEar("s", True, lambda wake: None, lambda inbox: None)
    leader = _Leader()
    assert ear.lead(leader)
    ear.close()
    assert not ear.hear(None)
    assert not ear.lead(leader)
    ear.follow()


def test_a_leader_that_is_interrupted_loses_nothing_of_others() -> None:
    """It has read what was for another, and did not get to hand it on."""

    def interrupted(wake: Wake) -> None:
        raise KeyboardInterrupt

    ear = SqliteEar("s", True, interrupted, lambda inbox: None)
    mouth = Mouth()
    try:
        ear.watch_over(7, [Blocker("other", 1, "owner", "", 0, True, 5, 0)])
        assert ear.lead(_Leader())
        mouth.tell(Wake(ear.inbox, "s", 7, WAKE_GRANTED, 5))
        with pytest.raises(KeyboardInterrupt):
            ear.hear(None)
        assert run(ear.listen(None)) == [Wake(ear.inbox, "s", 7, WAKE_LOOK)]
    finally:
        mouth.close()
        ear.close()


class _Leader:
    waits = leads = True
