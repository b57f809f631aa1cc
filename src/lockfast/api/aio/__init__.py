"""The asyncio API. Each name has a counterpart in `blocking`; a test keeps the two in step."""

from lockfast.api.aio.acquiring import Acquiring
from lockfast.api.aio.client import Client, Watch, connect, default_client, lock
from lockfast.api.aio.groups import Changes, Election, Observation, Once, Party
from lockfast.api.aio.lease import Lease, Lost, Membership, Permit, Term
from lockfast.api.aio.recipes import Lock, RWLock, Semaphore, Tree

__all__ = [
    "Acquiring",
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
