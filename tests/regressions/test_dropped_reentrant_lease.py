"""A re-entrant lease that nobody has any more is given back, as any other.

The client kept it to enter it again, so it was never collected: renewed for ever, with
no warning, and out of reach if the thread that took it had ended.
"""

from __future__ import annotations

import gc
import threading
import warnings

import lockfast


def test_it_is_given_back() -> None:
    with lockfast.connect("memory://dropped-reentrant") as client:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            thread = threading.Thread(target=client.lock("a", reentrant=True).acquire)
            thread.start()
            thread.join()
            gc.collect()
        assert [warning.category for warning in caught] == [ResourceWarning]
        client.lock("a").acquire(timeout=30).release()
