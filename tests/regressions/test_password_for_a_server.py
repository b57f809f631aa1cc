"""A password for a lock server is refused: it was ignored, so that requests carried no token."""

from __future__ import annotations

import pytest

import lockfast
import lockfast.aio

URLS = ["http://127.0.0.1:7601", "https://locks.example", "quorum+https://a,b,c"]


@pytest.mark.parametrize("connect", [lockfast.connect, lockfast.aio.connect])
@pytest.mark.parametrize("url", URLS)
def test_it_takes_a_token(url: str, connect: object) -> None:
    assert callable(connect)
    with pytest.raises(lockfast.StoreMisconfiguredError, match="takes a token, not a password"):
        connect(f"{url}?password_file=/run/secrets/locks")
    with pytest.raises(lockfast.StoreMisconfiguredError, match="takes a token, not a password"):
        connect(url, password=lambda: "secret")
