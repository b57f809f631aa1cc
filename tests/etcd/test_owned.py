"""What a store object remembers of its sessions and claims."""

from __future__ import annotations

import asyncio
import threading

import pytest

from lockfast.core.commands import HOLDING, WAKE_GRANTED, Done, Place, Wake
from lockfast.core.rows import Claim
from lockfast.runtimes.aio import LoopSignal
from lockfast.stores.etcd.layout import PlaceKey, Record
from lockfast.stores.etcd.owned import OwnClaim, OwnSession, OwnSessions
from tests.etcd.model import ModelNetwork


@pytest.fixture
def own() -> OwnSession:
    """A session whose only claim is at rank "1"."""
    made = OwnSession("s", threading.RLock())
    claim = Claim("s", 1, (Place("lock", "a", "exclusive"),), HOLDING, "1", "", 0, 0)
    made.claims[1] = OwnClaim(claim, "0", mod=7)
    return made


def test_a_claim_found_at_another_rank_is_remembered_there(own: OwnSession) -> None:
    """But not the revision of its old keys."""
    own.moved(1, "2")
    assert own.location(1) == PlaceKey("lock", "a", "", "2", "s", "0")
    assert own.claims[1].mod == 0


def test_a_claim_that_is_not_stored_is_forgotten(own: OwnSession) -> None:
    own.moved(1, None)
    assert own.location(1) is None


def test_a_claim_that_was_released_in_between_stays_forgotten(own: OwnSession) -> None:
    own.left(1)
    own.moved(1, "2")
    assert own.location(1) is None


def test_concurrent_callers_open_their_session_once(own: OwnSession) -> None:
    opened: list[str] = []

    async def open_first() -> Done:
        opened.append(own.id)
        await asyncio.sleep(0)  # the other callers are here now
        own.record = Record(1, 60_000, "", "", "", "", 0)
        return Done()

    async def tell() -> None:
        calls = (own.open_once("etcd", open_first, LoopSignal, lambda: 60_000) for _ in range(3))
        assert await asyncio.gather(*calls) == [Done(), None, None]

    asyncio.run(tell())
    assert opened == ["s"]


def test_a_session_of_the_same_process_is_woken_directly() -> None:
    """Wakes of other processes' sessions arrive through their watches."""
    delivered: list[Wake] = []
    sessions = OwnSessions(ModelNetwork())
    for session in ("s", "without a listener", "at home elsewhere"):
        sessions.begin(session).record = Record(1, 60_000, "", "", "", "", 0)
        sessions.begin(session).deliver = delivered.append
    sessions.begin("without a listener").deliver = None
    sessions.begin("at home elsewhere").leave_home()
    names = ("s", "without a listener", "at home elsewhere", "other")
    wakes = [Wake("", session, 1, WAKE_GRANTED, 17) for session in names]
    sessions.deliver(wakes)
    assert delivered == [wakes[0]]
