"""The blocking API. Each name has a counterpart in `aio`; a test keeps the two in step."""

from lockfast.api.blocking.client import Client, Watch, connect, default_client, lock
from lockfast.api.blocking.groups import Changes, Election, Observation, Once, Party
from lockfast.api.blocking.lease import Lease, Lost, Membership, Permit, Term
from lockfast.api.blocking.recipes import Lock, RWLock, Semaphore, Tree

__all__ = [
    "Changes",
    "Client",
    "Election",
    "Lease",
    "Lock",
    "Lost",
    "Membership",
    "Observation",
    "Once",
    "Party",
    "Permit",
    "RWLock",
    "Semaphore",
    "Term",
    "Tree",
    "Watch",
    "connect",
    "default_client",
    "lock",
]
