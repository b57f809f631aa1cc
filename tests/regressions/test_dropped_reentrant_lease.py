"""An unreferenced re-entrant lease is released like any other.

The client kept a reference for re-entry, so the lease was never collected: it was renewed for ever,
without a warning, and was unreachable once its thread had ended.
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
