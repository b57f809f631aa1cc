"""The lock-order check warned of an order in which no locks had been acquired.

A retained lock is held by the session all the time, so whatever was acquired in between seemed to
be acquired while holding it.
"""

from __future__ import annotations

import logging

import pytest

import lockfast


def test_a_kept_lock_that_nobody_uses_shows_no_order(caplog: pytest.LogCaptureFixture) -> None:
    url = "memory://witness-and-kept"
    with lockfast.connect(url, debug=True) as client, lockfast.connect(url) as other:
        with caplog.at_level(logging.WARNING, "lockfast"):
            for name in ("a", "b"):
                with client.lock(name, retain=True):
                    pass
            with other.lock("a"):
                pass  # it is wanted, so the client releases it
            with client.lock("a", retain=True):
                pass
    assert caplog.text == ""
