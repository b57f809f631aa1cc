"""Raising the epoch of tokens by hand: after a restore from a backup, revisions begin again."""

from __future__ import annotations

from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.requests import Keys, revision_of
from lockfast.stores.etcd.rows import EPOCH_KEY, STRIDE, Base, decode, encode


async def raise_epoch(gateway: Gateway, keys: Keys, wall_us: int, until_s: float) -> int:
    """Have all tokens from now on be at least `wall_us`; returns how much was added."""
    while True:
        answer = await gateway.txn({"success": [keys.range(EPOCH_KEY)]}, until_s, repeatable=True)
        stored = keys.found(answer["responses"][0]).kvs
        base = Base(*decode(stored[0].value)) if stored else Base(0)
        raised = max(base.epoch, wall_us - STRIDE * revision_of(answer))
        if raised == base.epoch and stored:
            return 0
        answer = await gateway.txn(
            {
                "compare": [keys.unchanged(EPOCH_KEY, stored[0].mod if stored else 0)],
                "success": [keys.put(EPOCH_KEY, encode(base._replace(epoch=raised)))],
            },
            until_s,
        )
        if answer.get("succeeded"):
            return raised - base.epoch
