"""Chaining the loss to the body's error does not create a cycle.

The loss was raised while the body's error was being handled, so it already had that error as its
context; attaching it there as well made the chain circular, and code that follows `__context__` (an
error reporter, a test) never returned.
"""

from __future__ import annotations

import pytest

import lockfast


def test_the_chain_of_an_error_ends() -> None:
    with lockfast.connect("memory://loss-behind-an-error") as client:
        with pytest.raises(ZeroDivisionError) as caught:
            with client.lock("a", max_hold=0.1) as lease:
                assert lease.lost.wait(30)
                raise ZeroDivisionError
    links: list[BaseException] = [caught.value]
    while links[-1].__context__ is not None:
        assert len(links) < 10
        links.append(links[-1].__context__)
    assert [type(link) for link in links] == [ZeroDivisionError, lockfast.LeaseLostError]
