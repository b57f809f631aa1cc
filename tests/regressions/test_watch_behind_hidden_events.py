"""A watch through a lock server stalled behind more than a page of events of other principals.

The server left them out of its reply, the reply was empty, and the watch asked for the same page
again and again, until its position had left the log.
"""

from __future__ import annotations

from pathlib import Path

import lockfast
from lockfast.core import commands as c
from tests.server.conftest import Secured, take

PAGE = c.Events(None).limit
PAIRS = PAGE  # two events each


def test_the_events_of_others_are_skipped(tmp_path: Path) -> None:
    secured = Secured(tmp_path, f"memory://{tmp_path}")
    with secured.thread:
        path = tmp_path / "token"
        path.write_text(secured.token_of["bob"])
        with (
            secured.http("root") as root,
            lockfast.connect(secured.thread.url(token_file=str(path)), ttl=60) as bob,
        ):
            take(root, "orders/0", "r")
            watch = bob.watch(after=0)
            for n in range(2, 2 + PAIRS):
                take(root, f"orders/{n}", "r", n)
                root.delete(f"/v1/sessions/r/claims/{n}")
            with bob.lock("billing/1"):
                event = next(watch)
                assert (event.what, event.name) == ("granted", "billing/1")


def test_a_position_passes_hidden_events(tmp_path: Path) -> None:
    """Otherwise events that nobody missed leave the log, and the watch reports a gap."""
    secured = Secured(tmp_path, f"memory://{tmp_path}")
    with secured.thread, secured.http("root") as root, secured.http("bob") as bob:
        take(root, "orders/0", "r")
        end = root.get("/v1/events").json()["EventsReply"]["end"]
        hidden = bob.get("/v1/events?after=0").json()["EventsReply"]
        assert (hidden["events"], hidden["end"], hidden["more"]) == ([], end, False)


def test_a_small_page_is_not_many_requests(tmp_path: Path) -> None:
    """One request of a page of one entry must not read the store entry by entry."""
    secured = Secured(tmp_path, f"memory://{tmp_path}")
    with secured.thread, secured.http("root") as root, secured.http("bob") as bob:
        for n in range(1, 101):
            take(root, f"orders/{n}", f"r{n}")
        service = secured.thread.server.service("")
        sent: list[c.Command] = []
        send = service._send

        async def counted(command: c.Command, timeout_ms: int) -> c.Reply:
            sent.append(command)
            return await send(command, timeout_ms)

        service._send = counted
        for path in ("/v1/locks", "/v1/sessions", "/v1/events?after=0"):
            sent.clear()
            mark = "&" if "?" in path else "?"
            assert bob.get(f"{path}{mark}limit=1").status_code == 200
            assert len(sent) <= 2
