"""Find out what became of an enter whose reply was lost.

Such a claim may stand in line, may have been granted by whoever left since, or its request may
still be on its way. Whoever enters or leaves that number next asks here first. One transaction
writes the session's key anew, so that the request cannot be carried out any more (every enter
compares that key), and reads the keys that the claim can have. What it finds is final: the claim
is known from then on, or it is not stored and never will be.
"""

from __future__ import annotations

from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.errors import LeaseGoneError
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.owned import OwnSession
from lockfast.stores.etcd.requests import Range
from lockfast.stores.etcd.steps import locate


async def resolve(gateway: Gateway, own: OwnSession, n: int, until_ms: int) -> None:
    """Fence the enter of `n` and take over where the claim stands.

    Raises OutcomeUnknownError or StoreUnavailableError if `n` is still in doubt.
    """
    keys, key = gateway.keys, k.session_key(own.id)
    record, mod = own.record, own.mod
    location = own.location(n)
    reads = location.candidates(own.id, n) if location is not None else []
    while record is not None and n in own.doubted:
        fence = keys.put(key, k.encode(list(record)), record.lease)
        try:
            answer = await gateway.commit(
                [fence, *keys.reads(reads)],
                [keys.unchanged(key, mod)],
                until_ms,
                keys.reads([Range(key)]),
            )
        except LeaseGoneError:
            return  # nothing can be carried out under that lease; the step finds the session's end
        if answer.succeeded:
            own.mod = max(own.mod, answer.revision)
            found = [kv for i in range(len(reads)) for kv in answer.found(i + 1).kvs]
            if found:
                claim, _ = k.claim_from(k.parse_place(found[0].key), found[0])
                own.note(claim, found[0].mod)
            elif location is not None:
                # Breaking a deadlock may have given it another rank.
                moved = await locate(gateway, own.id, n, until_ms)
                own.moved(n, moved.rank if moved is not None else None)
            own.doubted.discard(n)
            return
        stored = answer.found(0).kvs
        if not stored:
            return
        mod = stored[0].mod
