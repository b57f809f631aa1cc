"""A client that retained a read lock got DeadlockError when it wanted to write.

Retained claims have no actor, and "no actor" was treated as one actor that waits for itself.
"""

from __future__ import annotations

import threading
import time

import lockfast


def test_a_writer_waits_for_the_readers_of_its_own_client() -> None:
    with lockfast.connect("memory://kept-of-one-client", deadlock_after=60) as client:
        book = client.rwlock("book", retain=True)
        reader = book.read().acquire()
        tokens: list[int] = []

        def write() -> None:
            with book.write() as lease:
                tokens.append(lease.token)

        writer = threading.Thread(target=write)
        writer.start()
        give_up = time.monotonic() + 30
        while client.inspect("book").waiting_count == 0:
            assert writer.is_alive(), "it was refused"
            assert time.monotonic() < give_up
            time.sleep(0.002)
        reader.release()
        writer.join(30)
        assert tokens
        assert tokens[0] > reader.token
