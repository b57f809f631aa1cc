"""The checksum of a session's claims, by which a keep-alive detects a missing claim."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MODULUS: Final = 4_294_967_296
FACTOR: Final = 40_503
PRIME: Final = 67_108_859
"""The largest prime below 2^26: its square fits the 53 bits of a Lua number."""


def mix(n: int, token: int) -> int:
    """Return one claim's term of the sum; `token` is 0 while the claim waits."""
    x = (n * FACTOR + token) % PRIME
    return x * x % MODULUS


def checksum_of(claims: Iterable[tuple[int, int]]) -> int:
    """Return the checksum of claims, given as pairs of number and token."""
    return sum(mix(n, token) for n, token in claims) % MODULUS
