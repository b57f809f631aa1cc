"""Bugs planted in the etcd store: comparisons left out, leases forgotten, guesses trusted."""

from __future__ import annotations

from contextlib import ExitStack

from lockfast.core.modes import LOCK
from lockfast.stores.etcd import batches, steps
from lockfast.stores.etcd.batches import Committed
from lockfast.stores.etcd.layout import SEP, STRIDE, session_key
from lockfast.stores.etcd.owned import OwnClaim
from lockfast.stores.etcd.plan import Plan
from lockfast.stores.etcd.requests import Found, Keys
from lockfast.stores.etcd.view import Lines
from tests.sim.planted.bugs import bug, replace


def _always(keys: Keys, key: str) -> str:
    """Return a comparison that always holds."""
    return f'{{"key":"{keys.coded(key)}","target":"VERSION","result":"GREATER","version":"-1"}}'


@bug("etcd: a range is not compared", promise="exclusion", store="etcd")
def _(stack: ExitStack) -> None:
    def wrong(self: Keys, start: str, stop: str, revision: int) -> str:
        return _always(self, start)

    replace(stack, Keys, "nothing_since", wrong)


@bug("etcd: it is not compared that a lock is free", promise="exclusion", store="etcd")
def _(stack: ExitStack) -> None:
    right = Keys.absent

    def wrong(self: Keys, key: str, stop: str = "") -> str:
        return _always(self, key) if stop else right(self, key)

    replace(stack, Keys, "absent", wrong)


@bug("etcd: a key that was read is not compared", promise="tokens", store="etcd")
def _(stack: ExitStack) -> None:
    def wrong(self: Keys, key: str, mod: int) -> str:
        return _always(self, key)

    replace(stack, Keys, "unchanged", wrong)


@bug("etcd: keys without the session's lease", promise="left behind", store="etcd")
def _(stack: ExitStack) -> None:
    right = Keys.put

    def wrong(self: Keys, key: str, value: str, lease: int = 0) -> str:
        return right(self, key, value)

    replace(stack, Keys, "put", wrong)


@bug("etcd: one token for all grants", promise="tokens", store="etcd")
def _(stack: ExitStack) -> None:
    def wrong(self: Committed, epoch: int, position: int = 0) -> int:
        return epoch + self.slot.tokens + position + STRIDE * (self.answer.revision // 8 * 8)

    replace(stack, Committed, "token", wrong)


@bug("etcd: grants that travel together have one token", promise="tokens", store="etcd")
def _(stack: ExitStack) -> None:
    right = batches.Slot

    def wrong(order: int = 0, tokens: int = 0) -> batches.Slot:
        return right(order)

    replace(stack, batches, "Slot", wrong)


@bug("etcd: a claim that is granted is not compared", promise="liveness", store="etcd")
def _(stack: ExitStack) -> None:
    def wrong(self: Plan, of: tuple[str, int]) -> None:
        pass

    replace(stack, Plan, "_claim_stands", wrong)


@bug("etcd: whoever stands in line is overtaken by a clock", promise="order", store="etcd")
def _(stack: ExitStack) -> None:
    def wrong(others: object, now_ms: int, arrival: int) -> int:
        return 0

    replace(stack, steps, "lag_ms", wrong)


# Three defects of an earlier design of the store, as they would be in this one.


@bug("etcd: waiting claims outlive their sessions", promise="liveness", store="etcd")
def _(stack: ExitStack) -> None:
    """A holder and its waiters that die together leave a queue that nobody can end."""
    right = Keys.put

    def wrong(self: Keys, key: str, value: str, lease: int = 0) -> str:
        waits = key.startswith(f"n{SEP}{LOCK}{SEP}") and f"{SEP}w{SEP}" in key
        return right(self, key, value, 0 if waits else lease)

    replace(stack, Keys, "put", wrong)


@bug("etcd: a claim enters while its session ends", promise="left behind", store="etcd")
def _(stack: ExitStack) -> None:
    """Nothing ties it to its session: neither a comparison nor the lease."""
    put, unchanged, own_sessions = Keys.put, Keys.unchanged, session_key("")

    def wrong_put(self: Keys, key: str, value: str, lease: int = 0) -> str:
        return put(self, key, value, 0 if f"{SEP}h{SEP}" in key else lease)

    def wrong_unchanged(self: Keys, key: str, mod: int) -> str:
        return _always(self, key) if key.startswith(own_sessions) else unchanged(self, key, mod)

    replace(stack, Keys, "put", wrong_put)
    replace(stack, Keys, "unchanged", wrong_unchanged)


@bug("etcd: the known part of a queue is taken for all of it", promise="hand-over", store="etcd")
def _(stack: ExitStack) -> None:
    """With more waiters than a holder is told of, the others are not served by a release."""
    right = OwnClaim.granted

    def wrong(self: OwnClaim, token: int, mod: int, heirs: Found | None) -> None:
        right(self, token, mod, heirs if heirs is not None else Found([], 0))

    replace(stack, OwnClaim, "granted", wrong)


@bug("etcd: readers that leave together do not notice it", promise="hand-over", store="etcd")
def _(stack: ExitStack) -> None:
    def wrong(self: Plan, lines: Lines) -> list[str]:
        return []

    replace(stack, Plan, "_others", wrong)


# The start of a queue, which spares etcd the visit to deleted keys.


def _is_start(key: str) -> bool:
    return f"{SEP}a{SEP}" in key


@bug("etcd: a claim joins a queue before its start", promise="hand-over", store="etcd")
def _(stack: ExitStack) -> None:
    """The start is not deleted, so nobody sees the claim."""
    right = Keys.delete

    def wrong(self: Keys, key: str, stop: str = "") -> str:
        joins = _is_start(key) and stop.endswith("a ")
        return right(self, "nothing") if joins else right(self, key, stop)

    replace(stack, Keys, "delete", wrong)


@bug("etcd: a start is trusted after it has vanished", promise="hand-over", store="etcd")
def _(stack: ExitStack) -> None:
    right = Keys.present

    def wrong(self: Keys, key: str, stop: str = "") -> str:
        return _always(self, key) if _is_start(key) else right(self, key, stop)

    replace(stack, Keys, "present", wrong)


@bug("etcd: a queue starts behind its first claim", promise="hand-over", store="etcd")
def _(stack: ExitStack) -> None:
    right = Plan._mark

    def wrong(self: Plan, lines: Lines, rank: str, session: str) -> None:
        right(self, lines, f"{rank}~", session)

    replace(stack, Plan, "_mark", wrong)
