"""URLs of sharded stores: their placement, and `sharded+memory://[name]` for tests.

Options: shards=16, shard_by=name|first-segment, namespace=default.
"""

from __future__ import annotations

from typing import Final

from lockfast.core.placement import BY_FIRST_SEGMENT as BY_FIRST_SEGMENT
from lockfast.core.placement import BY_NAME, SHARD_BY, SHARDS_MAX, Placement
from lockfast.errors import StoreMisconfiguredError
from lockfast.ports import Store
from lockfast.stores import memory
from lockfast.stores.registry import Face, StoreUrl
from lockfast.stores.sharded.store import ShardedStore

OPTIONS: Final = ("shards", "shard_by")
SHARDS: Final = 16


def placement_in(url: StoreUrl) -> Placement:
    """Return the placement in a URL. Raises StoreMisconfiguredError if it is malformed."""
    text = url.options.get("shards", str(SHARDS))
    by = url.options.get("shard_by", BY_NAME)
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= SHARDS_MAX:
        raise StoreMisconfiguredError(
            url.label,
            f"has a shards= that is not a number from 1 to {SHARDS_MAX}",
            "write shards=16",
        )
    if by not in SHARD_BY:
        raise StoreMisconfiguredError(
            url.label, f"has a shard_by= other than {' or '.join(SHARD_BY)}", "write shard_by=name"
        )
    return Placement(int(text), by)


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    url.refuse_other_options(*OPTIONS)
    placement = placement_in(url)
    shards = [
        memory.open_store(
            url._replace(location=f"{url.location}#{shard}", options={"namespace": url.namespace}),
            face,
        )
        for shard in range(placement.shards)
    ]
    return ShardedStore(url.label, placement, shards)
