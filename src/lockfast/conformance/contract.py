"""The two halves of the contract: give a fixture `harness` and derive a class from each."""

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
    """What a store answers to each command, and whom it wakes."""


class ContendingApiContract(
    LeaseStories,
    WaitingStories,
    ReentryStories,
    InspectStories,
    WatchStories,
    RecipeStories,
):
    """What users see of a store whose claims contend, in no order."""


class ApiContract(ContendingApiContract, QueueStories):
    """What users see of a store through a client."""
