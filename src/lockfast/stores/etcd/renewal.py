"""Keep-alives: etcd's of the lease, and ours, which proves what a session has."""

from __future__ import annotations

from typing import Final

from lockfast.core import commands as c
from lockfast.core import rows as r
from lockfast.core.checksum import checksum_of
from lockfast.core.commands import REVOKED
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.knowledge import Want
from lockfast.stores.etcd.outcome import Instant, Outcome
from lockfast.stores.etcd.plan import first_due_ms
from lockfast.stores.etcd.requests import KEEP_ALIVE, OPERATIONS_MAX, Kv, revision_of
from lockfast.stores.etcd.rows import (
    claim_from,
    decode,
    living_key,
    record_key,
    resource_alone,
    resource_from,
    stored_key,
)
from lockfast.stores.etcd.shared import Account, Shared
from lockfast.stores.etcd.steps import Step

CHECKED_TOGETHER: Final = 100


async def renew(
    gateway: Gateway,
    shared: Shared,
    command: c.Renew,
    until_s: float,
    instant: Instant | None = None,
) -> Outcome:
    """Renew the lease, then the session. A lease that is gone shows in the second step."""
    if instant is None or instant.by_lease:
        lease = {"ID": str(shared.lease_of(command.session))}
        await gateway.call(KEEP_ALIVE, lease, until_s)
    step = Step(gateway, shared, command, until_s, instant)
    await _read_account(step, command)
    return await step.run()


async def _check_alone(step: Step, session: str) -> None:
    """See that the claims are still there that the rows of their resources have."""
    keys, alone = step.shared.keys, step.shared.alone_of(session)
    held = list(alone.held.items())
    for at in range(0, len(held), CHECKED_TOGETHER):
        part = held[at : at + CHECKED_TOGETHER]
        # Only if it was written since has the row to be read: then it says who holds.
        compares = [keys.unchanged(resource_alone(one.word), one.mod) for _, one in part]
        reads = [keys.range(resource_alone(one.word)) for _, one in part]
        body = {"compare": compares, "failure": reads}
        answer = await step.gateway.txn(body, step.until_s, repeatable=True)
        for (n, one), response in zip(part, answer.get("responses", ()), strict=False):
            found = keys.found(response).kvs
            if not found or not _has(found[0], session, n):
                alone.drop(n)
            elif alone.held.get(n) == one:
                alone.held[n] = one._replace(mod=found[0].mod)


def _has(row: Kv, session: str, n: int) -> bool:
    """Whether the row of a resource has a claim as its only holder."""
    _, kind, name, _ = row.key.split(r.SEPARATOR)
    _, holder = resource_from(kind, name, row.value)
    return holder is not None and holder.packed[1][:2] == [session, n]


async def _read_account(step: Step, command: c.Renew) -> None:
    """Read the session, and those of its claims that have changed since the last time.

    So a keep-alive of ten thousand locks reads none of them.
    """
    shared, keys = step.shared, step.shared.keys
    prefix = r.claims_prefix(command.session)
    stop = r.after_prefix(prefix)
    account = shared.accounts.get(command.session, Account(0, {}))
    wants = [Want(record_key(command.session)), Want(living_key(command.session))]
    for n in command.waiting:
        wants.append(Want(r.claim_key(command.session, n)))
        for place in shared.places.get((command.session, n), ()):
            wants.append(Want.resource(stored_key(r.resource_key(*place[:2]))))
    wants = list(dict.fromkeys(wants))[: OPERATIONS_MAX - 2]
    await _check_alone(step, command.session)
    reads = [keys.range(want.start, want.stop, want.limit) for want in wants]
    reads.append(keys.range(r.DUE_PREFIX, r.after_prefix(r.DUE_PREFIX), 1, keys_only=True))
    while True:
        changed = keys.range(prefix, stop, since=account.revision + 1 if account.revision else 0)
        answer = await step.gateway.txn(
            {"success": [*reads, changed]}, step.until_s, repeatable=True
        )
        *known, due, claims = [keys.found(response) for response in answer["responses"]]
        entries = dict(account.tokens)
        for kv in claims.kvs:
            claim, _ = claim_from(decode(kv.value), kv.mod)
            entries[claim.n] = None if claim.state == REVOKED else claim.token
        if len(entries) == claims.count:
            break
        account = Account(0, {})  # some are gone: read them all
    shared.accounts[command.session] = Account(revision_of(answer), entries)
    alone = shared.alone_of(command.session)
    for n in entries:
        alone.drop(n)  # it has a row of its own by now
    entries = {**entries, **{n: held.token for n, held in list(alone.held.items())}}
    shared.numbers_of(command.session).forget_below(command.lowest)
    shared.claims[command.session] = len(entries)
    shared.due_ms = first_due_ms(due.kvs)
    step.known.revision = revision_of(answer)
    for want, found in zip(wants, known, strict=True):
        step.known.learn(want, found)
    pairs = [(n, token) for n, token in entries.items() if token is not None]
    step.account = (len(pairs), checksum_of(pairs))
