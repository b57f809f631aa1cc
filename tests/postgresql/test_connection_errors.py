"""What a refused or lost request tells its caller: done, not done, or unknown."""

from __future__ import annotations

import pytest

from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.stores.postgresql.connection import BEGIN, COMMIT, lost_connection, refusal

STEP = ("SELECT 1", ())


def test_terminated_before_the_commit_means_not_done() -> None:
    error = refusal([BEGIN, STEP], "57P01", "terminating connection", "x")
    assert isinstance(error, StoreUnavailableError)


def test_terminated_after_the_commit_is_not_reported_as_not_done() -> None:
    """The server answers COMMIT before it checks for a termination, then closes the connection."""
    error = refusal([STEP, COMMIT], "57P01", "terminating connection", "x")
    assert isinstance(error, OutcomeUnknownError)


@pytest.mark.parametrize("sent", [True, False])
def test_a_connection_lost_with_a_commit_under_way_is_unknown(sent: bool) -> None:
    assert isinstance(lost_connection([STEP, COMMIT], sent, "reset", "x"), OutcomeUnknownError)


def test_a_flight_that_never_left_was_not_carried_out() -> None:
    assert isinstance(lost_connection([STEP], False, "reset", "x"), StoreUnavailableError)
    assert isinstance(lost_connection([STEP], True, "reset", "x"), OutcomeUnknownError)
