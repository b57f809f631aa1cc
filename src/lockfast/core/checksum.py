"""The checksum of a session's claims: by it a keep-alive proves that each of them is there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MODULUS: Final = 4_294_967_296
FACTOR: Final = 40_503
PRIME: Final = 67_108_859
"""The largest prime below 2^26: its square fits the 53 bits of a Lua number."""


def mix(n: int, token: int) -> int:
    """One claim's share; `token` is 0 while it waits."""
    x = (n * FACTOR + token) % PRIME
    return x * x % MODULUS


def checksum_of(claims: Iterable[tuple[int, int]]) -> int:
    """Of claims by number and token."""
    return sum(mix(n, token) for n, token in claims) % MODULUS
