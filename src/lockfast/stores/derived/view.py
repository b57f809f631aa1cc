"""The lock table's rows, derived from what was read.

Each store extends `DerivedRows`: it adds the claims of a resource when it has read them, and reads
more when the table asks for rows that are not there. The table's changes stay in these rows; the
store compares them with `before` and writes the difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeAlias, TypeVar

from lockfast.core import rows as r
from lockfast.core.commands import HOLDING, Event, Place
from lockfast.core.lines import FAR_MS, place_at, share
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.rows import Claim, Meta, ResourceRow, Session, copied
from lockfast.stores.derived.steps import Instant
from lockfast.stores.derived.stored import RELATIVE

Name: TypeAlias = tuple[str, str]
"""Kind and name of a resource."""
ClaimId: TypeAlias = tuple[str, int]
"""Session and number of a claim."""


class Owner(Protocol):
    """What each claim stores of its session."""

    @property
    def ttl_ms(self) -> int: ...
    @property
    def owner(self) -> str: ...
    @property
    def process(self) -> str: ...
    @property
    def inbox(self) -> str: ...


OwnerT = TypeVar("OwnerT", bound=Owner)


class DerivedRows(MemoryRows, Generic[OwnerT]):
    """The row port for one run of the table."""

    __slots__ = ("before", "instant", "logged", "owners")

    def __init__(self, instant: Instant) -> None:
        super().__init__()
        self.instant = instant
        self.before: dict[ClaimId, Claim | None] = {}
        """The claims, as read."""
        self.owners: dict[str, OwnerT] = {}
        self.logged: list[Event] = []

    def append(self, event: Event) -> None:
        self.logged.append(event)

    # ── adding what was read ─────────────────────────────────────────────────────────

    def add_claim(self, claim: Claim, owner: OwnerT) -> Claim:
        """Add a claim, unless another of its places has added it; return it as it was read."""
        of = (claim.session, claim.n)
        found = self.before.get(of)
        if found is None:
            found = self.before[of] = claim
            self.owners.setdefault(claim.session, owner)
            self.put(r.claim_key(*of), copied(claim))
        return found

    def add_place(self, row: ResourceRow, claim: Claim) -> Place:
        """Count a claim in the row of a resource, and put it into its queue there."""
        place, ref = place_at(claim, row), r.claim_ref(claim.session, claim.n)
        if claim.state == HOLDING:
            line = "h"
            row.held[place.mode] = row.held.get(place.mode, 0) + share(place)
            row.holders += 1
            row.retained += claim.block > 1
            if claim.wants:
                row.converting = ref
        elif claim.passed >> claim.places.index(place) & 1:
            line = "v"
            row.reserved[place.mode] = row.reserved.get(place.mode, 0) + share(place)
            row.reservations += 1
        else:
            line = "w"
            row.waiting += 1
        self.put(r.line_prefix(line, row.kind, row.name) + claim.rank, ref)
        return place

    def add_resource(self, row: ResourceRow) -> None:
        """Add the row of a resource whose claims were added, if the resource is in use."""
        prefix = r.line_prefix("h", row.kind, row.name)
        if row.holders == 1:
            ((key, ref),) = super().scan(prefix, r.after_prefix(prefix), 1)
            row.sole = f"{key.removeprefix(prefix)}{r.SEPARATOR}{ref}"
            self.delete(key)
        if row.holders or row.waiting or row.reservations or row.closed_ms:
            self.put(r.resource_key(row.kind, row.name), row)

    def meta(self, arrival: int) -> Meta:
        """Return the meta row: tokens are relative, and `arrival` is that of the next claim."""
        return Meta(RELATIVE - 1, arrival - 1, 0 if self.has_due else FAR_MS)

    def guest(self, session: str) -> Session:
        """Return the row of a session of which only its claims are known."""
        owner = self.owners[session]
        return Session(
            session, owner.ttl_ms, owner.owner, "", owner.inbox, owner.process, 0,
            self.instant.now_ms + owner.ttl_ms,
        )  # fmt: skip

    # ── with the table's changes ─────────────────────────────────────────────────────

    @property
    def has_due(self) -> bool:
        """Whether something that was read has ended by now and is to be removed by the table."""
        until = r.due_key(self.instant.now_ms + 1, "")
        return bool(super().scan(r.DUE_PREFIX, until, 1))

    def stored(self, session: str, n: int) -> Claim | None:
        found: Claim | None = super().get(r.claim_key(session, n))
        return found

    def resource_row(self, kind: str, name: str) -> ResourceRow:
        return super().get(r.resource_key(kind, name)) or ResourceRow(kind, name)

    def claims(self) -> dict[ClaimId, Claim]:
        prefix = f"c{r.SEPARATOR}"
        found = super().scan(prefix, r.after_prefix(prefix), FAR_MS)
        return {(claim.session, claim.n): claim for _, claim in found}

    def changes(self) -> Iterator[tuple[ClaimId, Claim | None, Claim | None]]:
        """Yield each claim as it was read and as it is now, also if it is unchanged."""
        after = self.claims()
        for of in {**self.before, **after}:
            yield of, self.before.get(of), after.get(of)
