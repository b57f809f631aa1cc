"""`once(wait=True)` on a store without a log of events is refused before anything runs.

Waiting for the end of a run reads the log. The first call ran the job, and the others ended with
UnsupportedError, but only if they came while it ran or after it.
"""

from __future__ import annotations

import pytest

import lockfast
import lockfast.aio
from lockfast import UnsupportedError

URL = "quorum+memory://3/once-that-waits"


@pytest.mark.parametrize("connect", [lockfast.connect, lockfast.aio.connect])
def test_a_majority_refuses_to_wait_before_anything_runs(connect: type) -> None:
    with pytest.raises(UnsupportedError, match=r"once\(wait=True\)"):
        connect(URL).once("migrate", at_least=300, at_most=3600, wait=True)
