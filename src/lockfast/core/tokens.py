"""The token rule, for the stores that keep a counter.

`stores/redis/scripts.py` states it once more in Lua (`NEXT_TOKEN`); the reference tests compare
the two. A store with a native counter has its own rule: see the docstring of its package.
"""

from __future__ import annotations

from lockfast.core.rows import Meta


def next_token(meta: Meta, wall_us: int, block: int = 1) -> int:
    """Take the next `block` tokens and return the first of them.

    They are above all earlier ones. The wall clock keeps that true if the counter was lost.
    """
    token = meta.token + 1
    if token < wall_us:
        token = wall_us
    meta.token = token + block - 1
    return token
