"""One flow, three runtimes: each scenario is written once and ends the same on all."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lockfast.core.commands import Revoke, RevokeSession
from lockfast.errors import (
    AcquireTimeoutError,
    LeaseLostError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockfast.flow.acquire import check, release
from lockfast.flow.admin import revoke_lock
from lockfast.flow.client import Core
from lockfast.flow.holding import Holding, LeaseState
from tests.sim.stages import (
    CuttableStore,
    Stage,
    must_take,
    play_in_simulator,
    play_on_asyncio,
    play_on_threads,
    take,
)

Outcome = list[object]

SHORT_MS = 600
"""A TTL short enough to wait for in real time."""


def state(holding: Holding) -> LeaseState:
    assert holding.session is not None
    return holding.session.state_of(holding)


def cut(core: Core, off: bool) -> None:
    assert isinstance(core.store, CuttableStore)
    core.store.cut = off


def waiting(stage: Stage, name: str = "a") -> int:
    return stage.table.view(name).waiting_count


def holders(stage: Stage, name: str = "a") -> list[str]:
    return [claim.owner for claim in stage.table.view(name).holders]


# ── scenarios ────────────────────────────────────────────────────────────────────────


async def uncontended(stage: Stage) -> Outcome:
    core = stage.core("one")
    first = await must_take(core)
    seen: Outcome = [state(first), holders(stage)]
    check(first)
    await release(core, first)
    await release(core, first)
    seen += [state(first), holders(stage)]
    second = await must_take(core)
    seen += [second.token > first.token, first.n, second.n]
    await core.close()
    return [*seen, holders(stage)]


async def contended_in_order(stage: Stage) -> Outcome:
    cores = [stage.core(f"c{i}") for i in range(4)]
    first = await must_take(cores[0])
    order: list[str] = []
    tokens = [first.token]

    async def turn(core: Core) -> None:
        holding = await must_take(core)
        order.append(core.owner)
        tokens.append(holding.token)
        await release(core, holding)

    jobs = []
    for i, core in enumerate(cores[1:], 1):
        jobs.append(stage.start(turn(core), core.owner))
        await stage.until(lambda i=i: waiting(stage) == i)  # type: ignore[misc]
    await release(cores[0], first)
    for job in jobs:
        await job.join()
    for core in cores:
        await core.close()
    return [order, tokens == sorted(set(tokens)), holders(stage)]


async def not_at_once(stage: Stage) -> Outcome:
    holder, other = stage.core("holder"), stage.core("other")
    held = await must_take(holder)
    refused = await take(other, timeout_ms=0)
    seen: Outcome = [refused, waiting(stage)]
    await release(holder, held)
    taken = await take(other, timeout_ms=0)
    seen.append(taken is not None)
    await holder.close()
    await other.close()
    return seen


async def timed_out(stage: Stage) -> Outcome:
    holder, other = stage.core("holder"), stage.core("other")
    held = await must_take(holder)
    began_ms = stage.runtime.now_ms()
    with pytest.raises(AcquireTimeoutError, match="held by holder") as caught:
        await take(other, timeout_ms=60)
    took_ms = stage.runtime.now_ms() - began_ms
    await stage.until(lambda: waiting(stage) == 0)
    await release(holder, held)
    again = await must_take(other)
    await holder.close()
    await other.close()
    return [caught.value.timeout, took_ms >= 60, again.token > held.token]


async def cancelled_while_waiting(stage: Stage) -> Outcome:
    holder, other, third = stage.core("holder"), stage.core("other"), stage.core("third")
    held = await must_take(holder)
    job = stage.start(must_take(other), "other")
    await stage.until(lambda: waiting(stage) == 1)
    behind = stage.start(must_take(third), "third")
    await stage.until(lambda: waiting(stage) == 2)
    job.cancel()
    with pytest.raises(stage.stopped):
        await job.join()
    await stage.until(lambda: waiting(stage) == 1)
    await release(holder, held)
    served = await behind.join()
    seen: Outcome = [holders(stage), served.token > held.token]
    for core in (holder, other, third):
        await core.close()
    return seen


async def lost_when_cut_off(stage: Stage) -> Outcome:
    core, rival = stage.core("core", SHORT_MS), stage.core("rival")
    held = await must_take(core)
    told = stage.runtime.signal()
    held.on_end += (told.set,)
    waiter = stage.start(must_take(rival), "rival")
    await stage.until(lambda: waiting(stage) == 1)
    cut(core, True)
    seen: Outcome = [await told.wait(10 * SHORT_MS), state(held)]
    with pytest.raises(LeaseLostError, match="was not renewed in time"):
        check(held)
    with pytest.raises(LeaseLostError):
        await release(core, held)
    rivals = await waiter.join()
    seen.append(rivals.token > held.token)
    cut(core, False)
    await release(rival, rivals)
    # The old session has ended; the next claim opens a new one.
    again = await must_take(core)
    seen += [again.session is held.session, again.token > rivals.token, state(again)]
    await core.close()
    await rival.close()
    return seen


async def waits_on_in_a_new_session(stage: Stage) -> Outcome:
    """A waiter whose session was ended enters again, at the tail."""
    holder, other, third = stage.core("holder"), stage.core("other"), stage.core("third")
    held = await must_take(holder)
    first = stage.start(must_take(other), "other")
    await stage.until(lambda: waiting(stage) == 1)
    second = stage.start(must_take(third), "third")
    await stage.until(lambda: waiting(stage) == 2)
    [session] = other.sessions()
    stage.table.apply(RevokeSession(session.id, "admin", "make room"))
    await stage.until(
        lambda: [c.owner for c in stage.table.view("a").waiting] == ["third", "other"]
    )
    await release(holder, held)
    thirds = await second.join()
    await release(third, thirds)
    others = await first.join()
    seen: Outcome = [others.token > thirds.token > held.token, others.session is not session]
    for core in (holder, other, third):
        await core.close()
    return seen


async def held_too_long(stage: Stage) -> Outcome:
    core, rival = stage.core("core"), stage.core("rival")
    held = await must_take(core, max_hold_ms=150)
    told = stage.runtime.signal()
    held.on_end += (told.set,)
    rivals = await must_take(rival)
    seen: Outcome = [await told.wait(5000), state(held), rivals.token > held.token]
    with pytest.raises(LeaseLostError, match="max_hold"):
        check(held)
    # Only this lease has ended, not its session.
    other = await must_take(core, "b")
    seen += [other.session is held.session, state(other)]
    await core.close()
    await rival.close()
    return seen


async def revoked(stage: Stage) -> Outcome:
    core, admin = stage.core("core"), stage.core("admin")
    held = await must_take(core)
    kept = await must_take(core, "b")
    told = stage.runtime.signal()
    held.on_end += (told.set,)
    seen: Outcome = [await revoke_lock(admin, "lock", "a", "admin", "make room")]
    seen += [await told.wait(5000), state(held), state(kept)]
    with pytest.raises(LeaseLostError, match="make room") as caught:
        check(held)
    seen.append(caught.value.by)
    again = await must_take(admin)
    seen.append(again.token > held.token)
    await core.close()
    await admin.close()
    return seen


async def revoked_while_waiting(stage: Stage) -> Outcome:
    holder, other = stage.core("holder"), stage.core("other")
    held = await must_take(holder)
    job = stage.start(must_take(other), "other")
    await stage.until(lambda: waiting(stage) == 1)
    [waiter] = stage.table.view("a").waiting
    stage.table.apply(Revoke(waiter.session, waiter.n, "admin", "go away"))
    with pytest.raises(LeaseLostError, match="go away"):
        await job.join()
    await release(holder, held)
    await holder.close()
    await other.close()
    return [holders(stage)]


async def release_unheard(stage: Stage) -> Outcome:
    """A release that is not answered is retried in the background."""
    core, rival = stage.core("core"), stage.core("rival")
    held = await must_take(core)
    cut(core, True)
    with pytest.raises(OutcomeUnknownError, match="may not have arrived"):
        await release(core, held)
    seen: Outcome = [state(held), holders(stage)]
    cut(core, False)
    rivals = await must_take(rival)
    seen.append(rivals.token > held.token)
    await core.close()
    await rival.close()
    return seen


async def closed(stage: Stage) -> Outcome:
    core, rival = stage.core("core"), stage.core("rival")
    held = await must_take(core)
    job = stage.start(must_take(rival), "rival")
    await stage.until(lambda: waiting(stage) == 1)
    await core.close()
    rivals = await job.join()
    seen: Outcome = [state(held), rivals.token > held.token, holders(stage)]
    with pytest.raises(StoreUnavailableError, match="closed"):
        await must_take(core)
    await rival.close()
    return [*seen, holders(stage)]


async def closed_while_cut_off(stage: Stage) -> Outcome:
    """Closing is bounded in time, whatever the store does."""
    core = stage.core("core", SHORT_MS)
    await must_take(core)
    cut(core, True)
    began_ms = stage.runtime.now_ms()
    await core.close()
    return [stage.runtime.now_ms() - began_ms < 5000]


SCENARIOS: dict[str, tuple[Callable[[Stage], Coroutine[Any, Any, Outcome]], Outcome]] = {
    "uncontended": (uncontended, ["held", ["one"], "released", [], True, 1, 2, []]),
    "contended in order": (contended_in_order, [["c1", "c2", "c3"], True, []]),
    "not at once": (not_at_once, [None, 0, True]),
    "timed out": (timed_out, [0.06, True, True]),
    "cancelled while waiting": (cancelled_while_waiting, [["third"], True]),
    "lost when cut off": (
        lost_when_cut_off,
        [True, "lost", True, False, True, "held"],
    ),
    "waits on in a new session": (waits_on_in_a_new_session, [True, True]),
    "held too long": (held_too_long, [True, "lost", True, True, "held"]),
    "revoked": (revoked, [1, True, "lost", "held", "admin", True]),
    "revoked while waiting": (revoked_while_waiting, [[]]),
    "release unheard": (release_unheard, ["released", ["core"], True]),
    "closed": (closed, ["lost", True, ["rival"], []]),
    "closed while cut off": (closed_while_cut_off, [True]),
}

STAGES = {
    "threads": play_on_threads,
    "asyncio": play_on_asyncio,
    "simulator": play_in_simulator,
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_same_outcome(scenario: str, stage: str) -> None:
    play, expected = SCENARIOS[scenario]
    assert STAGES[stage](play) == expected
