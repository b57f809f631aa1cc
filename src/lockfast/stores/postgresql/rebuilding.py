"""Derive resources and their queues from the claims, for `lockfast doctor`.

Claims and sessions are authoritative: everything else in a namespace can be derived from them.
`doctor` finds damage by deriving and comparing it, and a repair writes what was derived.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from lockfast.core import rows as r
from lockfast.core.commands import HOLDING, REVOKED, WAITING
from lockfast.core.lines import fits, share
from lockfast.core.rows import Claim, ResourceRow

REASON: Final = "the namespace was repaired"
BY: Final = "lockfast doctor"
UNLIMITED: Final = 1 << 62

ResourceKey = tuple[str, str]
LineKey = tuple[str, str, str, str]
"""Line (h, v or w), kind, name, rank."""


class Derived(NamedTuple):
    """The resources in use and the rows of their lines, which name claims."""

    resources: dict[ResourceKey, ResourceRow]
    lines: dict[LineKey, str]


class Repaired(NamedTuple):
    """The claims that change: those to write, and those to delete."""

    changed: list[Claim]
    orphans: list[Claim]


def derive(claims: Iterable[Claim], stored: Mapping[ResourceKey, ResourceRow]) -> Derived:
    """Derive resources and lines from claims; only stored rows have limits and closing times."""
    derived = Derived({}, {})
    for claim in claims:
        if claim.state in (HOLDING, WAITING):
            for i in range(len(claim.places)):
                _stand(derived, stored, claim, i)
    for key, row in stored.items():
        if row.closed_ms and key not in derived.resources:
            derived.resources[key] = _empty(row)
    return derived


def _stand(
    derived: Derived, stored: Mapping[ResourceKey, ResourceRow], claim: Claim, i: int
) -> None:
    place = claim.places[i]
    key = place[:2]
    row = derived.resources.get(key)
    if row is None:
        row = _empty(stored.get(key) or ResourceRow(*key))
        derived.resources[key] = row
    row.limit = row.limit or place.limit
    ref = r.claim_ref(claim.session, claim.n)
    if claim.state == HOLDING:
        row.held[place.mode] = row.held.get(place.mode, 0) + share(place)
        row.holders += 1
        row.retained += claim.block > 1
        if claim.wants:
            row.converting = ref
        derived.lines["h", *key, claim.rank] = ref
    elif claim.passed >> i & 1:
        row.reserved[place.mode] = row.reserved.get(place.mode, 0) + share(place)
        row.reservations += 1
        derived.lines["v", *key, claim.rank] = ref
    else:
        row.waiting += 1
        derived.lines["w", *key, claim.rank] = ref


def _empty(row: ResourceRow) -> ResourceRow:
    return ResourceRow(row.kind, row.name, limit=row.limit, closed_ms=row.closed_ms)


def disagreements(
    derived: Derived,
    resources: Mapping[ResourceKey, ResourceRow],
    lines: Mapping[LineKey, str],
) -> list[str]:
    """Return the resources whose stored rows disagree with their claims."""
    written = dict(lines)
    plain: dict[ResourceKey, ResourceRow] = {}
    for key, row in resources.items():
        if row.sole:
            rank, ref = row.sole.split(r.SEPARATOR, 1)
            written["h", *key, rank] = ref
        plain[key] = replace(row, sole="")
    wrong = {key for key in plain.keys() | derived.resources.keys()
             if plain.get(key) != derived.resources.get(key)}  # fmt: skip
    wrong |= {line[1:3] for line in written.keys() | derived.lines.keys()
              if written.get(line) != derived.lines.get(line)}  # fmt: skip
    return [f"{kind} {name!r}" for kind, name in sorted(wrong)]


def repair(claims: Iterable[Claim], sessions: Iterable[str]) -> Repaired:
    """Change claims so that all holders are compatible.

    Holders stay, in token order; one that conflicts with those before it is revoked. Waiting claims
    keep their ranks and lose their reservations: a reservation is only valid beside the holders it
    was made with. Their keep-alives grant what can be granted.
    """
    known = frozenset(sessions)
    repaired = Repaired([], [])
    held: dict[ResourceKey, dict[str, int]] = {}
    for claim in sorted(claims, key=lambda claim: claim.token):
        if claim.session not in known:
            repaired.orphans.append(claim)
        elif claim.state == WAITING and claim.passed:
            claim.passed = 0
            repaired.changed.append(claim)
        elif claim.state == HOLDING:
            if _fits(claim, held):
                for place in claim.places:
                    counts = held.setdefault(place[:2], {})
                    counts[place.mode] = counts.get(place.mode, 0) + share(place)
            else:
                claim.state, claim.reason, claim.by = REVOKED, REASON, BY
                claim.wants, claim.places = "", ()
                repaired.changed.append(claim)
    return repaired


def _fits(claim: Claim, held: Mapping[ResourceKey, dict[str, int]]) -> bool:
    # Permits may exceed the limit: it may have been lowered since they were granted.
    return all(fits(place, UNLIMITED, held.get(place[:2], {})) for place in claim.places)
