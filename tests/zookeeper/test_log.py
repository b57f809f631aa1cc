"""The log of events: who is reported when nobody writes, how it begins, and how it stays small."""

from __future__ import annotations

from pathlib import Path

from lockfast.core import commands as c
from lockfast.core.reasons import EXPIRED
from lockfast.core.rows import LOG_KEPT_MS
from lockfast.stores.zookeeper.entries import KEPT, TRIMMED_EVERY
from lockfast.stores.zookeeper.transport import Delete
from tests.processes.crew import crew_in
from tests.processes.roles import hold
from tests.servers.zookeeper import ZooKeeperEnsemble
from tests.zookeeper.model import ModelServer
from tests.zookeeper.test_long_lines import Client

PATHS = "/lockfast/default"


def read(client: Client, after: int | None, limit: int = 500) -> c.EventsReply:
    reply = client.send(c.Events(after, limit))
    assert isinstance(reply, c.EventsReply)
    return reply


def told(reply: c.EventsReply) -> list[tuple[str, str]]:
    return [(event.what, event.session) for event in reply.events]


def test_a_holder_that_dies_is_reported_although_nobody_waits(
    node: ZooKeeperEnsemble, tmp_path: Path
) -> None:
    for crew in crew_in(tmp_path):
        crew.url = node.url()
        holder = crew.start(hold, "a", 1.0)
        holder.hears("held")
        with crew.client(ttl=1.0) as client:
            watch = client.watch("a")
            holder.kill()
            event = next(watch)
            assert (event.what, event.name, event.detail) == ("expired", "a", EXPIRED)


def test_a_member_that_dies_is_reported_although_others_stay() -> None:
    server = ModelServer()
    watcher, one, other = (Client(server, name) for name in ("watcher", "one", "other"))
    end = read(watcher, None).end
    for client in (one, other):
        assert isinstance(client.enter(places=(c.Place("lock", "a", "shared"),)), c.Granted)
    link = one.store.context.own.all()[0].link
    assert link is not None
    link.close()
    reply = read(watcher, end)
    assert told(reply) == [("granted", "one"), ("granted", "other")]
    server.now_us += 2_000_000
    reply = read(watcher, reply.end)
    assert told(reply) == [("expired", "one")]
    server.now_us += 2_000_000
    assert told(read(watcher, reply.end)) == [], "reported once"


def test_the_end_of_a_dead_holder_is_reported_before_the_next_grant() -> None:
    server = ModelServer()
    watcher, one, other = (Client(server, name) for name in ("watcher", "one", "other"))
    end = read(watcher, None).end
    assert isinstance(one.enter(), c.Granted)
    link = one.store.context.own.all()[0].link
    assert link is not None
    link.close()
    assert isinstance(other.enter(), c.Granted)
    reply = read(watcher, end)
    assert told(reply) == [("granted", "one"), ("expired", "one"), ("granted", "other")]
    assert [event.token for event in reply.events][:2] == [reply.events[0].token] * 2


def test_a_log_without_readers_is_not_written_and_its_successor_says_so() -> None:
    server = ModelServer()
    watcher, one = Client(server, "watcher"), Client(server, "one")
    end = read(watcher, None).end
    one.enter(1)
    one.leave(1)
    log = server.state.nodes[f"{PATHS}/l/1"]
    assert log.created == 2
    server.now_us += 2 * LOG_KEPT_MS * 1000  # a client knows only bounds of the leader's clock
    one.enter(2)
    one.leave(2)
    assert log.created == 2, "nothing is logged for nobody"
    reply = read(watcher, end)
    assert reply.oldest > end + 1
    assert reply.end > end
    assert [path for path in server.state.nodes if path.startswith(f"{PATHS}/l/1")] == []
    one.enter(3)
    assert told(read(watcher, reply.end)) == [("granted", "one")]


def test_a_client_that_takes_the_log_for_unread_logs_all_the_same() -> None:
    """A reader begins the log between two steps of a client that knows of none."""
    server = ModelServer()
    watcher, one, other = (Client(server, name) for name in ("watcher", "one", "other"))
    assert isinstance(one.enter(1), c.Granted)
    assert isinstance(other.enter(1), c.Queued)
    assert isinstance(other.enter(2), c.Queued)
    end = read(watcher, None).end
    assert isinstance(other.enter(3), c.Queued)  # joins a bucket, without a token
    other.leave(3)
    one.leave(1)
    assert told(read(watcher, end)) == [
        ("waiting", "other"),
        ("gave_up", "other"),
        ("released", "one"),
        ("granted", "other"),
    ]


def test_a_log_that_was_deleted_blocks_no_lock() -> None:
    server = ModelServer()
    watcher, one = Client(server, "watcher"), Client(server, "one")
    end = read(watcher, None).end
    one.enter(1)
    one.leave(1)
    for path in sorted(server.state.nodes, reverse=True):
        if path.startswith(f"{PATHS}/l"):
            server.state.apply(0, Delete(path), 0)
    assert isinstance(one.enter(2), c.Granted)
    reply = read(watcher, end)
    assert told(reply) == [("granted", "one")]
    for path in sorted(server.state.nodes, reverse=True):
        if path.startswith(f"{PATHS}/l/"):
            server.state.apply(0, Delete(path), 0)
    assert read(watcher, reply.end).oldest > reply.end + 1


def test_it_keeps_the_last_entries_and_readers_read_on_in_parts() -> None:
    server = ModelServer()
    watcher, one = Client(server, "watcher"), Client(server, "one")
    end = read(watcher, None).end
    count = KEPT + 2 * TRIMMED_EVERY
    for n in range(1, count // 2 + 1):
        one.enter(n)
        one.leave(n)
    kept = [path for path in server.state.nodes if path.startswith(f"{PATHS}/l/1/")]
    assert KEPT <= len(kept) <= KEPT + TRIMMED_EVERY
    cut = read(watcher, end)
    assert cut.oldest > end + 1
    assert cut.more
    found, after = list(cut.events), cut.events[-1].position
    while cut.more:
        cut = read(watcher, after, 70)
        assert cut.oldest <= after + 1
        found += cut.events
        after = found[-1].position
    assert [event.n for event in found[-2:]] == [count // 2] * 2
    assert len(found) == len(kept)
    assert [event.what for event in found] == ["granted", "released"] * (len(found) // 2)


def test_reading_on_costs_the_same_however_long_the_log_is() -> None:
    server = ModelServer()
    watcher, one = Client(server, "watcher"), Client(server, "one")
    sizes = []
    for first, last in ((1, 20), (21, 400)):
        for n in range(first, last):
            one.enter(n)
            one.leave(n)
        end = read(watcher, None).end
        one.enter(last)
        server.bytes_read = 0
        assert len(read(watcher, end).events) == 1
        sizes.append(server.bytes_read)
        one.leave(last)
    assert sizes[1] <= sizes[0] * 1.1
