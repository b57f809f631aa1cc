"""Requests that people write by hand, as the commands they mean."""

from __future__ import annotations

from typing import Any

import pytest

from lockfast.core import commands as c
from lockfast.core.codec import CodecError
from lockfast.stores.lockserver.routes import ROUTE_OF, command_from

AT = {"session": "s", "n": "1"}


@pytest.mark.parametrize(
    ("body", "mode"),
    [({"lock": "a/b"}, "exclusive"), ({"lock": "a/b", "mode": "shared"}, "shared")],
)
def test_a_claim_may_name_a_lock_instead_of_places(body: dict[str, Any], mode: str) -> None:
    command = command_from(ROUTE_OF[c.Enter], AT, {}, body)
    assert command == c.Enter("s", 1, (c.Place("lock", "a/b", mode),))


@pytest.mark.parametrize(
    "body",
    [
        {"lock": "a", "places": []},
        {"lock": "a", "session": "other"},
        {"lock": "a", "open": {"session": "other", "ttl_ms": 1000, "owner": ""}},
        ["lock", "a"],
        {},
    ],
)
def test_a_claim_that_contradicts_itself_is_refused(body: Any) -> None:
    with pytest.raises(CodecError):
        command_from(ROUTE_OF[c.Enter], AT, {}, body)


def test_a_session_that_is_opened_with_its_first_claim_is_that_of_the_path() -> None:
    opening = {"ttl_ms": 1000, "owner": "me"}
    command = command_from(ROUTE_OF[c.Enter], AT, {}, {"lock": "a", "open": opening})
    assert isinstance(command, c.Enter)
    assert command.open == c.Open("s", 1000, "me")


@pytest.mark.parametrize("n", ["", "x", "1.0", "٣", "9" * 20])
def test_a_claim_number_is_an_integer(n: str) -> None:
    with pytest.raises(CodecError, match="n has to be an integer"):
        command_from(ROUTE_OF[c.Enter], {**AT, "n": n}, {}, {"lock": "a"})
