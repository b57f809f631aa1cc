"""Bugs planted in the etcd store: comparisons left out, leases forgotten, guesses trusted."""

from __future__ import annotations

from contextlib import ExitStack

from lockfast.stores.etcd import steps
from lockfast.stores.etcd.owned import OwnSession
from lockfast.stores.etcd.plan import Plan, _Maker
from lockfast.stores.etcd.requests import Keys
from lockfast.stores.etcd.transport import Json
from lockfast.stores.etcd.view import Known
from tests.sim.planted.bugs import bug, replace


def _always(keys: Keys, key: str) -> Json:
    """A comparison that holds whatever is stored."""
    return {"key": keys.coded(key), "target": "VERSION", "result": "GREATER", "version": "-1"}


@bug("etcd: a range is not compared", promise="exclusion", store="etcd")
def _(stack: ExitStack) -> None:
    def wrong(self: Keys, start: str, stop: str, revision: int) -> Json:
        return _always(self, start)

    replace(stack, Keys, "nothing_since", wrong)


@bug("etcd: a guess is sent without comparing it", promise="exclusion", store="etcd")
def _(stack: ExitStack) -> None:
    right = steps.assumed

    def wrong(context: steps.Context, own: OwnSession) -> Known | None:
        known = right(context, own)
        if known is not None:
            known.revision = 1 << 50  # nothing is newer
        return known

    replace(stack, steps, "assumed", wrong)


@bug("etcd: a key that was read is not compared", promise="tokens", store="etcd")
def _(stack: ExitStack) -> None:
    def wrong(self: Keys, key: str, mod: int) -> Json:
        return _always(self, key)

    replace(stack, Keys, "unchanged", wrong)


@bug("etcd: keys without the session's lease", promise="left behind", store="etcd")
def _(stack: ExitStack) -> None:
    right = Keys.put

    def wrong(self: Keys, key: str, value: str, lease: int = 0) -> Json:
        return right(self, key, value)

    replace(stack, Keys, "put", wrong)


@bug("etcd: one token for all grants", promise="tokens", store="etcd")
def _(stack: ExitStack) -> None:
    right = Plan.token

    def wrong(self: Plan, token: int, slot: object, revision: int) -> int:
        return right(self, token, slot, revision // 8 * 8)  # type: ignore[arg-type]

    replace(stack, Plan, "token", wrong)


@bug("etcd: grants that travel together have one token", promise="tokens", store="etcd")
def _(stack: ExitStack) -> None:
    right = Plan.proposal

    def wrong(self: Plan, keys: Keys, leases: object, wants: object) -> object:
        return right(self, keys, leases, wants)._replace(tokens=0)  # type: ignore[arg-type]

    replace(stack, Plan, "proposal", wrong)


@bug("etcd: a claim that is granted is not compared", promise="liveness", store="etcd")
def _(stack: ExitStack) -> None:
    def wrong(self: _Maker, of: tuple[str, int]) -> None:
        pass

    replace(stack, _Maker, "claim_stands", wrong)


@bug("etcd: whoever stands in line is overtaken by a clock", promise="order", store="etcd")
def _(stack: ExitStack) -> None:
    def wrong(tail: object, now_ms: int, arrival: int) -> int:
        return 0

    replace(stack, steps, "lag_ms", wrong)
