"""An observer that raises, blocks or is too slow affects no client."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

import pytest

import lockfast
from lockfast.telemetry import delivery as module
from lockfast.telemetry.delivery import QUEUE_MAX, Delivery


def _blocked_until(release: threading.Event) -> Callable[[object], None]:
    def observe(event: object) -> None:
        release.wait(30)

    return observe


def test_events_arrive_in_order() -> None:
    got: list[int] = []
    delivery = Delivery(got.append)
    for number in range(1000):
        delivery(number)
    assert delivery.flush()
    assert got == list(range(1000))
    assert delivery.delivered == 1000
    delivery.close()


def test_an_observer_that_raises_gets_the_next_event_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    got = []

    def fail_on_odd(number: int) -> None:
        if number % 2:
            raise RuntimeError("odd")
        got.append(number)

    delivery = Delivery(fail_on_odd)
    with caplog.at_level(logging.WARNING, "lockfast"):
        for number in range(10):
            delivery(number)
        assert delivery.flush()
    assert got == [0, 2, 4, 6, 8]
    assert delivery.errors == 5
    assert [record.getMessage().count("failed on") for record in caplog.records] == [1]
    delivery.close()


def test_a_blocked_observer_costs_the_emitter_nothing_and_drops_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = threading.Event()
    delivery = Delivery(_blocked_until(release))
    with caplog.at_level(logging.WARNING, "lockfast"):
        for number in range(QUEUE_MAX + 100):
            delivery(number)
    assert delivery.dropped in (99, 100)  # one may already be with the observer
    assert [record.getMessage().count("too slow") for record in caplog.records] == [1]
    release.set()
    delivery.close()


def test_a_blocked_observer_does_not_hold_up_another() -> None:
    release = threading.Event()
    got: list[object] = []
    with (
        lockfast.connect("memory://", observers=[_blocked_until(release)]) as client,
        lockfast.observe(got.append) as subscription,
    ):
        with client.lock("a"):
            pass
        assert subscription.flush()
        assert "LeaseReleased" in {type(event).__name__ for event in got}
        release.set()


def test_an_observer_that_blocks_or_raises_costs_no_lease() -> None:
    release = threading.Event()

    def fail(event: object) -> None:
        raise RuntimeError("always")

    with lockfast.connect("memory://", ttl=1, observers=[_blocked_until(release), fail]) as client:
        lease = client.lock("a").acquire()
        time.sleep(2.5)  # several keep-alives, each an event
        lease.check()
        lease.release()
        release.set()


def test_a_thread_that_had_nothing_to_do_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.01)
    got: list[int] = []
    delivery = Delivery(got.append)
    for round_ in range(5):
        delivery(round_)
        assert delivery.flush()
        until = time.monotonic() + 10
        while delivery._thread is not None and time.monotonic() < until:
            time.sleep(0.005)
        assert delivery._thread is None
    assert got == [0, 1, 2, 3, 4]


def test_many_threads_lose_nothing() -> None:
    got: list[int] = []
    delivery = Delivery(got.append)

    def emit() -> None:
        for _ in range(500):
            delivery(1)

    threads = [threading.Thread(target=emit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert delivery.flush()
    assert len(got) == 4000
    delivery.close()


def test_a_forked_child_starts_empty_and_delivers_its_own() -> None:
    got: list[int] = []
    delivery = Delivery(got.append)
    delivery(1)
    assert delivery.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        delivery(2)
        delivered = delivery.flush() and got[-1] == 2 and delivery.delivered == 1
        os.write(writer, b"y" if delivered else b"n")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"y"
    os.close(reader)
    os.close(writer)
    delivery.close()


@pytest.mark.parametrize("wrong", [None, 3, "name"])
def test_what_cannot_be_called_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError):
        lockfast.observe(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        lockfast.connect("memory://", observers=[wrong])  # type: ignore[list-item]
