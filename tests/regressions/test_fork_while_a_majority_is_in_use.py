"""A child that is forked while another thread uses the client's records does not wait for it."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import lockfast

fork = multiprocessing.get_context("fork")


def test_the_child_takes_a_lock(tmp_path: Path) -> None:
    nodes = ",".join(str(tmp_path / f"{n}.db") for n in range(3))
    with lockfast.connect(f"quorum+sqlite://{nodes}") as client, client.lock("parent"):

        def take() -> None:
            with client.lock("child"):
                pass

        is_held, is_forked = threading.Event(), threading.Event()

        def hold() -> None:
            with client._core.store._records.mutex:  # type: ignore[attr-defined]
                is_held.set()
                is_forked.wait(60)

        other = threading.Thread(target=hold)
        other.start()
        assert is_held.wait(60)
        child = fork.Process(target=take)
        child.start()
        is_forked.set()
        other.join()
        child.join(60)
        if child.exitcode is None:
            child.kill()
        assert child.exitcode == 0
