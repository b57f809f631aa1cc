"""Where the etcd store is known to differ from the lock table, as the shortest scripts.

None of them grants a lock twice or lets a token go back. Each must still differ: a change that
removes a difference removes it from this list.
"""

from __future__ import annotations

import pytest

from lockfast.conformance.commands import MismatchError, replay
from lockfast.core.commands import Enter, Leave, Open, Place, Resize
from lockfast.sim.promises import Step
from tests.etcd.model import ModelNetwork
from tests.etcd.test_reference import StoreSteps, reference

SCRIPTS = {
    # a semaphore that is closed and empty shows the limit of its last claim, not that of a resize
    153: [
        Step(
            command=Enter(
                session="s3.0",
                n=1,
                places=(Place(kind="semaphore", name="p", mode="permit", weight=4, limit=4),),
                actor="",
                queue=True,
                priority=0,
                head_start_ms=0,
                max_hold_ms=0,
                lock_delay_ms=0,
                block=1,
                value=None,
                open=Open(
                    session="s3.0",
                    ttl_ms=600,
                    owner="owner of s3.0",
                    metadata="m",
                    inbox="inbox of s3.0",
                    process="",
                ),
                window_ms=0,
            ),
            now_ms=1000103,
            wall_us=1000103000,
        ),
        Step(
            command=Leave(session="s3.0", n=1, places=(), close_ms=0),
            now_ms=1000296,
            wall_us=1000296000,
        ),
        Step(
            command=Open(
                session="s1.0",
                ttl_ms=2000,
                owner="owner of s1.0",
                metadata="",
                inbox="inbox of s1.0",
                process="",
            ),
            now_ms=1000418,
            wall_us=999201134,
        ),
        Step(
            command=Enter(
                session="s3.0",
                n=7,
                places=(Place(kind="semaphore", name="p", mode="permit", weight=4, limit=4),),
                actor="",
                queue=True,
                priority=0,
                head_start_ms=200,
                max_hold_ms=0,
                lock_delay_ms=0,
                block=1,
                value=None,
                open=None,
                window_ms=0,
            ),
            now_ms=1000425,
            wall_us=999208134,
        ),
        Step(
            command=Leave(session="s3.0", n=7, places=(), close_ms=50),
            now_ms=1000440,
            wall_us=999223134,
        ),
        Step(
            command=Enter(
                session="s1.0",
                n=4,
                places=(Place(kind="semaphore", name="p", mode="permit", weight=1, limit=4),),
                actor="task",
                queue=True,
                priority=0,
                head_start_ms=0,
                max_hold_ms=0,
                lock_delay_ms=0,
                block=1,
                value=None,
                open=None,
                window_ms=0,
            ),
            now_ms=1000451,
            wall_us=999234134,
        ),
        Step(
            command=Resize(kind="semaphore", name="p", limit=1), now_ms=1000458, wall_us=999241134
        ),
        Step(
            command=Leave(session="s1.0", n=4, places=(), close_ms=0),
            now_ms=1000471,
            wall_us=999254134,
        ),
    ],
}


@pytest.mark.parametrize("seed", SCRIPTS)
def test_it_still_differs(seed: int) -> None:
    with pytest.raises(MismatchError):
        replay(lambda: StoreSteps("etcd://model", ModelNetwork()), reference, SCRIPTS[seed])
