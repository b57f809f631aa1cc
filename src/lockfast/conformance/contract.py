"""The two halves of the contract: define a fixture `harness` and subclass each of them."""

from __future__ import annotations

from lockfast.conformance.admin import InspectStories, WatchStories
from lockfast.conformance.claims import (
    BoundStories,
    GrantStories,
    IdempotenceStories,
    RevokeStories,
)
from lockfast.conformance.leases import LeaseStories
from lockfast.conformance.modes import ConversionStories, ModeStories, SemaphoreStories
from lockfast.conformance.queueing import QueueStories, ReentryStories, WaitingStories
from lockfast.conformance.reading import LogStories, ReadingStories
from lockfast.conformance.recipes import RecipeStories
from lockfast.conformance.sessions import SessionStories
from lockfast.conformance.several import BreakStories, SeveralStories
from lockfast.conformance.waking import WakeStories


class WireContract(
    SessionStories,
    GrantStories,
    IdempotenceStories,
    BoundStories,
    RevokeStories,
    ModeStories,
    SemaphoreStories,
    ConversionStories,
    SeveralStories,
    BreakStories,
    ReadingStories,
    LogStories,
    WakeStories,
):
    """A store's replies to each command, and the wakes it sends."""


class ContendingApiContract(
    LeaseStories,
    WaitingStories,
    ReentryStories,
    InspectStories,
    WatchStories,
    RecipeStories,
):
    """The behaviour of clients of a store without a queue, whose claims contend."""


class ApiContract(ContendingApiContract, QueueStories):
    """The behaviour of clients of a store with a queue."""
