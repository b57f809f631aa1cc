"""The loss behind a body's error does not make a ring of the chain.

Raised while the body's error was on its way, the loss had that error behind itself
already; hanging it there as well made a chain without an end, on which whatever follows
`__context__` (a reporter of errors, a test) never came back.
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
