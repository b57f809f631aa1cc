"""After one acquire against a dead server the client kept retrying for ever.

It tried to release a claim that had never reached the store, once a second, with a warning each
time, and `close()` waited for that. A claim that certainly never arrived needs no leave.
"""

from __future__ import annotations

import logging
import threading

import pytest

import lockfast
from lockfast.core.commands import Close, Enter, Leave, Open, Renew
from lockfast.errors import OutcomeUnknownError, StoreMisconfiguredError
from tests.api.worlds import CuttableStore, use
from tests.conformance.cut import SlowWorld
from tests.processes.crew import until


@pytest.mark.parametrize("timeout", [0, 0.1, None])
def test_nothing_is_sent_after_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, timeout: float | None
) -> None:
    caplog.set_level(logging.WARNING, "lockfast")
    store = CuttableStore()
    use(monkeypatch, store)
    store.cut()
    before = threading.active_count()
    client = lockfast.connect("memory://", connect_timeout=0.1)
    with pytest.raises(lockfast.StoreUnavailableError, match="the connection is cut"):
        client.lock("a").acquire(timeout=timeout)
    until(lambda: threading.active_count() == before, "its keeper has stopped")
    assert {type(command) for command in store.refused} == {Enter}
    client.close()
    assert {type(command) for command in store.refused} == {Enter}
    assert all("is unreachable" in record.getMessage() for record in caplog.records)
    assert len(caplog.records) == (0 if timeout == 0 else 1)


def test_it_works_when_the_server_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store = CuttableStore()
    use(monkeypatch, store)
    store.cut()
    with lockfast.connect("memory://", connect_timeout=0.05) as client:
        assert_unavailable(client)
        assert_unavailable(client)
        store.mend()
        with client.lock("a"):
            pass
        assert [type(command) for command in store.sent].count(Enter) == 1


def assert_unavailable(client: lockfast.Client) -> None:
    with pytest.raises(lockfast.StoreUnavailableError):
        client.lock("a").acquire()


def test_a_wrong_password_is_as_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that refuses to serve the client has executed nothing."""
    store = CuttableStore()
    use(monkeypatch, store)
    before = threading.active_count()

    def refuse(command: object) -> bool:
        store.refused.append(command)  # type: ignore[arg-type]
        raise StoreMisconfiguredError("memory://", "wrong password")

    store.is_cut = refuse
    client = lockfast.connect("memory://")
    with pytest.raises(StoreMisconfiguredError):
        client.lock("a").acquire()
    until(lambda: threading.active_count() == before, "its keeper has stopped")
    assert [type(command) for command in store.refused] == [Enter]
    client.close()


def test_what_may_have_arrived_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an unknown outcome the session must still be opened and the claim released."""
    store = CuttableStore()
    use(monkeypatch, store)

    def lose(command: object) -> bool:
        if isinstance(command, Enter):
            raise OutcomeUnknownError("memory://", "no answer")
        return False

    store.is_cut = lose
    with lockfast.connect("memory://", connect_timeout=0.05) as client:
        with pytest.raises(OutcomeUnknownError):
            client.lock("a").acquire()
        until(lambda: any(isinstance(it, Leave) for it in store.sent), "it is given back")
    assert [type(command) for command in store.sent] == [Open, Leave, Close]


def test_an_outage_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    world = SlowWorld()
    caplog.set_level(logging.WARNING, "lockfast")

    async def story() -> None:
        client = world.client(ttl=1500)
        lease = await client.lock("a").acquire()
        world.store.is_cut = lambda command: isinstance(command, Renew)
        await world.sleep(1100_000)  # the first keep-alive is due after 500 s at the latest
        world.store.is_cut = lambda command: False
        await world.sleep(60_000)
        lease.check()
        await lease.release()
        await client.close()

    world.run(story())
    messages = [record.getMessage() for record in caplog.records]
    failures = [text for text in messages if "unreachable" in text]
    tried = sum(isinstance(command, Renew) for _, command in world.store.sent)
    assert tried > 100
    assert 1 <= len(failures) <= 12
    assert "is reachable again" in messages[-1]
