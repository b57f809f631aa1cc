"""A store that is busy with other requests of the client was logged as unreachable.

With some hundred callers on one lock at etcd or ZooKeeper, the log said within milliseconds that
the store was unreachable and reachable again, and an alert on outages fired.
"""

from __future__ import annotations

import logging

import pytest

import lockfast
from lockfast.errors import StoreBusyError, StoreUnavailableError


@pytest.mark.parametrize(("kind", "failures"), [(StoreBusyError, 0), (StoreUnavailableError, 1)])
def test_only_an_unreachable_store_is_reported(
    kind: type[StoreUnavailableError], failures: int, caplog: pytest.LogCaptureFixture
) -> None:
    with lockfast.connect("memory://") as client:
        outage = client._core.emitter.outage
        outage.failed(kind("etcd://here", "did not get round to it", "retry"))
        assert outage.failures == failures
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == failures
