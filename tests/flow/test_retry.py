"""Retry policies: when a request is repeated, and what the last error says."""

from __future__ import annotations

from lockfast.errors import StoreUnavailableError
from lockfast.flow.retry import BACKOFF_MAX_MS, RETRY_MS, Backoff, Retry
from tests.flow.worlds import Clock


def failure(what: str, advice: str = "") -> StoreUnavailableError:
    return StoreUnavailableError("memory://", what, advice)


def pauses(backoff: Backoff, count: int) -> list[int]:
    found = []
    for _ in range(count):
        backoff.failed(1000)
        found.append(backoff.at_ms - 1000)
    return found


def test_each_pause_is_twice_the_previous_one() -> None:
    backoff = Backoff(60_000)
    assert pauses(backoff, 4) == [RETRY_MS, 2 * RETRY_MS, 4 * RETRY_MS, 8 * RETRY_MS]
    assert pauses(backoff, 10)[-1] == BACKOFF_MAX_MS


def test_no_pause_exceeds_the_longest() -> None:
    assert pauses(Backoff(101), 6)[-1] == 101


def test_a_success_ends_the_backoff() -> None:
    backoff = Backoff(60_000)
    pauses(backoff, 5)
    backoff.succeeded()
    assert backoff.at_ms == 0
    assert pauses(backoff, 1) == [RETRY_MS]


def test_a_request_is_repeated_while_there_is_time_for_the_pause() -> None:
    clock = Clock()
    retry = Retry(clock, 5000)
    clock.at_ms = 5000 - RETRY_MS - 1
    assert retry.failed(failure("refused")) is None
    clock.at_ms += 1
    error = failure("refused")
    assert retry.failed(error) is error


def test_an_attempt_has_the_time_that_is_left_and_at_least_a_millisecond() -> None:
    retry = Retry(Clock(), 100)
    assert [retry.left_ms(at_ms) for at_ms in (0, 60, 100, 200)] == [100, 40, 1, 1]


def test_the_last_error_names_the_cause_before_it() -> None:
    clock = Clock()
    retry = Retry(clock, 5000)
    assert retry.failed(failure("connection refused", "start it")) is None
    assert retry.failed(failure("timed out")) is None
    clock.at_ms = 5000
    error = retry.failed(failure("timed out"))
    assert isinstance(error, StoreUnavailableError)
    assert error.what == "timed out (before that: connection refused, start it)"
