"""Lockfast: distributed locks with leases, fair queues and fencing tokens."""

from typing import TYPE_CHECKING, Any

from lockfast.api.blocking import (
    Changes,
    Client,
    Election,
    Lease,
    Lock,
    Lost,
    Membership,
    Observation,
    Once,
    Party,
    Permit,
    RWLock,
    Semaphore,
    Term,
    Tree,
    Watch,
    connect,
    lock,
)
from lockfast.api.exit_signals import release_on_exit_signals
from lockfast.api.observing import Subscription, observe
from lockfast.errors import (
    AccessDeniedError,
    AcquireTimeoutError,
    DeadlockError,
    InvalidNameError,
    LeaseLostError,
    LimitError,
    LockfastError,
    OutcomeUnknownError,
    RunFailedError,
    StaleTokenError,
    StoreBusyError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    UnsupportedError,
    WatchGapError,
)
from lockfast.flow.admin import ClaimInfo, DeadlockInfo, LockInfo, SessionInfo, WatchEvent
from lockfast.flow.groups import Leader, Member
from lockfast.flow.holding import LeaseState
from lockfast.flow.once import Outcome

if TYPE_CHECKING:
    from lockfast.flow.wait_graph import WaitGraph
    from lockfast.telemetry.stats import Stats

__version__ = "0.1.0"

__all__ = [
    "AccessDeniedError",
    "AcquireTimeoutError",
    "Changes",
    "ClaimInfo",
    "Client",
    "DeadlockError",
    "DeadlockInfo",
    "Election",
    "InvalidNameError",
    "Leader",
    "Lease",
    "LeaseLostError",
    "LeaseState",
    "LimitError",
    "Lock",
    "LockInfo",
    "LockfastError",
    "Lost",
    "Member",
    "Membership",
    "Observation",
    "Once",
    "Outcome",
    "OutcomeUnknownError",
    "Party",
    "Permit",
    "RWLock",
    "RunFailedError",
    "Semaphore",
    "SessionInfo",
    "StaleTokenError",
    "Stats",
    "StoreBusyError",
    "StoreError",
    "StoreMisconfiguredError",
    "StoreUnavailableError",
    "Subscription",
    "Term",
    "Tree",
    "UnsupportedError",
    "WaitGraph",
    "Watch",
    "WatchEvent",
    "WatchGapError",
    "connect",
    "lock",
    "observe",
    "release_on_exit_signals",
]


def __getattr__(name: str) -> Any:
    """Load what only few programs use: the types of `client.stats()` and `client.wait_graph()`."""
    if name == "Stats":
        from lockfast.telemetry.stats import Stats

        return Stats
    if name == "WaitGraph":
        from lockfast.flow.wait_graph import WaitGraph

        return WaitGraph
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
