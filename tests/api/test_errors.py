"""Errors can be pickled, as multiprocessing, concurrent.futures and Celery require."""

from __future__ import annotations

import pickle

import pytest

import lockfast
from lockfast import errors
from lockfast.guards import InvalidTokenError

EXAMPLES = [
    errors.AcquireTimeoutError("a", 5.0, holders=("x",), ahead=2),
    errors.LeaseLostError("a", 17, "it expired", session="s", by="bob", ago_ms=3),
    errors.StaleTokenError("a", 16, 17, once=True),
    errors.DeadlockError("a", ("b held by c",)),
    errors.RunFailedError("a"),
    errors.UnsupportedError("what", "why", "advice"),
    errors.InvalidNameError("", "it is empty"),
    errors.LimitError("what", 2, 1, "advice"),
    errors.WatchGapError(1, 2, 3, ()),
    errors.StoreError("redis", "what", "advice"),
    errors.StoreUnavailableError("redis", "what", "advice"),
    errors.StoreBusyError("redis", "what", "advice"),
    errors.OutcomeUnknownError("redis", "what", "advice"),
    errors.StoreMisconfiguredError("redis", "what", "advice"),
    errors.AccessDeniedError("redis", "what", "advice"),
    InvalidTokenError(0, "tokens begin at 1"),
]


def test_there_is_an_example_of_every_public_error() -> None:
    public = {getattr(lockfast, name) for name in errors.__all__} - {errors.LockfastError}
    assert public <= {type(example) for example in EXAMPLES}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: errors.LockfastError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_a_timeout_of_zero_is_not_a_time() -> None:
    assert "was not acquired at once" in str(errors.AcquireTimeoutError("a", 0))
    assert "was not acquired within 5 s" in str(errors.AcquireTimeoutError("a", 5.0))
