"""The lock-order witness warned of an order in which nobody had taken anything.

A lock kept for its next user is held by the session all the time, so whatever was taken
meanwhile seemed to be taken while holding it.
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
                pass  # it is wanted, so the client gives it up
            with client.lock("a", retain=True):
                pass
    assert caplog.text == ""
