"""The asyncio API: the names of `lockfast`, with `await`, `async with` and `async for`."""

from lockfast.api.aio import (
    Client,
    Election,
    Lease,
    Lock,
    Membership,
    Once,
    Party,
    Permit,
    RWLock,
    Semaphore,
    Term,
    Tree,
    connect,
    lock,
)

__all__ = [
    "Client",
    "Election",
    "Lease",
    "Lock",
    "Membership",
    "Once",
    "Party",
    "Permit",
    "RWLock",
    "Semaphore",
    "Term",
    "Tree",
    "connect",
    "lock",
]
