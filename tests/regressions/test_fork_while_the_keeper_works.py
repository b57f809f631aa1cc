"""A forked child that waited for the loss of an inherited lease hung.

If the keeper was active during the fork, the session's mutex stayed locked in the child, where no
keeper exists to unlock it.
"""

from __future__ import annotations

from tests.processes.crew import Crew, Link


def fork_with_a_locked_session(link: Link) -> None:
    import os
    import threading

    with link.connect(ttl=30.0) as client, client.lock("orders/42") as lease:
        (session,) = client._core.sessions()
        locked, forked = threading.Event(), threading.Event()

        def work() -> None:
            with session.mutex:
                locked.set()
                forked.wait()

        keeper = threading.Thread(target=work)
        keeper.start()
        locked.wait()
        child = os.fork()
        if child == 0:
            called: list[str] = []
            lease.on_lost(lambda lost: link.say("called"))
            link.say("child", lease.lost.wait(5), lease.state, lease.remaining, *called)
            client.lock("another").acquire(timeout=20).release()
            link.say("took-another")
            link.hear()
            os._exit(0)
        forked.set()
        keeper.join()
        os.waitpid(child, 0)
        link.say("parent", lease.state)


def test_child_is_told_at_once(crew: Crew) -> None:
    parent = crew.start(fork_with_a_locked_session)

    said = sorted(parent.hears_anything() for _ in range(3))
    assert said == ["called", "child True lost 0.0", "took-another"]
    parent.tell("end")
    assert parent.hears("parent") == ["held"]
    assert parent.finish() == 0
