"""`acquire(timeout=0)` did not name the holder, although the store had reported it.

And a semaphore requested with another limit than it has reported the requested limit and its own in
each other's place.
"""

from __future__ import annotations

import pytest

import lockfast


@pytest.mark.parametrize("retain", [False, True], ids=["plain", "kept"])
def test_a_lock_that_is_not_to_be_had_names_its_holder(retain: bool) -> None:
    url = f"memory://who-{retain}"
    with lockfast.connect(url, owner="alice") as alice, lockfast.connect(url, owner="bob") as bob:
        with alice.lock("a", retain=retain) as lease:
            for client in (alice, bob):
                lock = client.lock("a", retain=retain)
                with pytest.raises(lockfast.AcquireTimeoutError) as caught:
                    lock.acquire(timeout=0)
                assert len(caught.value.holders) == 1
                assert f"held by alice (token {lease.token}" in str(caught.value)
                assert lock.try_acquire() is None


def test_another_limit() -> None:
    with lockfast.connect("memory://who-limit") as client:
        with client.semaphore("api", 3):
            with pytest.raises(lockfast.LimitError) as caught:
                client.semaphore("api", 5).acquire()
        assert (caught.value.value, caught.value.limit) == (5, 3)
        assert str(caught.value) == (
            "semaphore 'api' is in use with limit=3, not 5; "
            "use that limit, or resize() the semaphore"
        )
