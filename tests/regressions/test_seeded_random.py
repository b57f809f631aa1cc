"""Background work does not touch the program's own random numbers.

The jitter of keep-alives was drawn from the `random` module's generator: a program that seeds it
was no longer reproducible, and a fleet that seeds it alike renewed in step. Found by hypothesis,
which watches that generator.
"""

from __future__ import annotations

import random

import lockfast


def test_a_seeded_program_stays_reproducible() -> None:
    random.seed(7)
    before = random.getstate()
    with lockfast.connect("memory://seeded-random") as client:
        with client.lock("a", ttl=0.1) as lease:
            renewed = 0
            while renewed < 2:
                assert not lease.lost.wait(0.02)
                (session,) = client.sessions()
                renewed = session.renewals
    assert random.getstate() == before
