"""A damaged namespace is refused with advice, and repaired without lowering tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

import lockfast
from lockfast.cli import main
from lockfast.core import commands as c
from lockfast.errors import LockfastError, StoreError, StoreMisconfiguredError
from lockfast.runtimes.threads import run
from lockfast.stores.redis import open_maintenance
from lockfast.stores.redis.scripts import KEYS, keys_of
from lockfast.stores.registry import open_store, parse_url
from tests.redis.test_errors import RIGHTS
from tests.servers.redis import RedisServer

A, B, C = ((c.Place("lock", name, "exclusive"),) for name in "abc")
PERMIT = (c.Place("semaphore", "p", "permit", 1, 2),)
TTL_MS = 60_000


class Script:
    """Commands to one namespace, one after the other."""

    def __init__(self, url: str) -> None:
        self._store = open_store(url, "threads")
        self._wire = self._store.caller_wire()

    def send(self, command: c.Command) -> c.Reply:
        return run(self._wire.send(command, 5000))

    def close(self) -> None:
        self._store.close()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    return "damage-" + str(abs(hash(request.node.name)))


@pytest.fixture
def script(server: RedisServer, namespace: str) -> Iterator[Script]:
    made = Script(server.url(namespace))
    yield made
    made.close()


def fill(script: Script) -> int:
    """Create holders, waiters, a semaphore, several at once, many claims; return the last token."""
    for session in ("ann", "bob", "cat"):
        script.send(c.Open(session, TTL_MS, session))
    held = [
        script.send(c.Enter("ann", 1, A)),
        script.send(c.Enter("bob", 1, PERMIT)),
        script.send(c.Enter("ann", 2, C, max_hold_ms=TTL_MS)),
        script.send(c.Enter("cat", 1, PERMIT, value="v")),
    ]
    assert isinstance(script.send(c.Enter("bob", 2, A, max_hold_ms=TTL_MS)), c.Queued)
    assert isinstance(script.send(c.Enter("cat", 2, A + B)), c.Queued)
    for n in range(3, 150):  # more than a session's row lists
        held.append(script.send(c.Enter("cat", n, (c.Place("lock", f"many/{n}", "exclusive"),))))
    tokens = [grant.token for grant in held if isinstance(grant, c.Granted)]
    assert len(tokens) == len(held)
    return max(tokens)


def claims_of(script: Script) -> dict[tuple[str, int], tuple[str, int]]:
    """Return state and token of every claim, by session and number."""
    found: dict[tuple[str, int], tuple[str, int]] = {}
    for session in ("ann", "bob", "cat"):
        reply = script.send(c.Claims(session))
        assert isinstance(reply, c.ClaimsReply), reply
        found |= {(v.session, v.n): (v.state, v.token) for v in reply.claims}
    return found


def go_on(script: Script) -> None:
    """Check that every command works that a client may send, and that the queue moves on."""
    assert isinstance(script.send(c.Renew("bob", waiting=(2,))), c.Renewed)
    assert script.send(c.Leave("ann", 1, A)) == c.Done()
    assert isinstance(script.send(c.Look("bob", 2)), c.Granted)
    assert script.send(c.Leave("bob", 2, A)) == c.Done()
    assert isinstance(script.send(c.Look("cat", 2)), c.Granted), "several at once"
    reply = script.send(c.Close("cat"))
    while isinstance(reply, c.Done) and reply.more:
        reply = script.send(c.Close("cat"))
    listed = script.send(c.Listing("lock"))
    assert isinstance(listed, c.ListingReply)
    assert [view.name for view in listed.resources] == ["c"]
    for session in ("ann", "bob"):
        assert isinstance(script.send(c.Close(session)), c.Done)


def repair(server: RedisServer, namespace: str) -> None:
    assert main(["doctor", "--repair", server.url(namespace)]) == 0


@pytest.mark.parametrize("key", ["order", "due", "log"])
def test_a_lost_index_is_rebuilt(
    server: RedisServer, script: Script, namespace: str, key: str
) -> None:
    last = fill(script)
    before = claims_of(script)
    server.run("DEL", keys_of(namespace)[KEYS.index(key)].decode())
    repair(server, namespace)
    assert claims_of(script) == before
    granted = script.send(c.Enter("bob", 3, (c.Place("lock", "new", "exclusive"),)))
    assert isinstance(granted, c.Granted)
    assert granted.token > last
    script.send(c.Leave("bob", 3, (c.Place("lock", "new", "exclusive"),)))
    go_on(script)


def test_lost_rows_are_refused_until_a_repair(
    server: RedisServer, script: Script, namespace: str
) -> None:
    last = fill(script)
    server.run("DEL", keys_of(namespace)[0].decode())
    with pytest.raises(StoreMisconfiguredError, match="doctor --repair"):
        script.send(c.Open("dan", TTL_MS, "dan"))
    assert main(["doctor", server.url(namespace)]) == 2
    repair(server, namespace)
    granted = script.send(c.Enter("dan", 1, A, open=c.Open("dan", TTL_MS, "dan")))
    assert isinstance(granted, c.Granted)
    assert granted.token > last
    assert isinstance(script.send(c.Renew("ann")), c.Ended), "its holder is told"


@pytest.mark.parametrize("field", ["m", "s\x1fann", "i\x1fann", "c\x1fbob\x1f2", "r\x1flock\x1fa"])
def test_a_lost_row_is_refused_or_survived_and_repaired(
    server: RedisServer, script: Script, namespace: str, field: str
) -> None:
    """Whichever row is lost: only typed errors, and after a repair all commands work again."""
    last = fill(script)
    server.run("HDEL", keys_of(namespace)[0].decode(), field)
    for command in (c.Renew("ann"), c.Leave("ann", 1, A), c.Listing("lock"), c.Sessions()):
        with contextlib.suppress(StoreMisconfiguredError):
            script.send(command)
    repair(server, namespace)
    for session in ("ann", "bob", "cat"):
        assert isinstance(script.send(c.Renew(session)), c.Renewed | c.Ended)
    opening = c.Open("dan", TTL_MS, "dan")
    granted = script.send(c.Enter("dan", 1, (c.Place("lock", "d", "exclusive"),), open=opening))
    assert isinstance(granted, c.Granted)
    assert granted.token > last
    for session in ("ann", "bob", "cat", "dan"):
        while isinstance(reply := script.send(c.Close(session)), c.Done) and reply.more:
            pass
    assert script.send(c.Listing("lock")) == c.ListingReply((), False)


def test_a_reset_ends_everything_and_keeps_tokens_rising(
    server: RedisServer, script: Script, namespace: str
) -> None:
    last = fill(script)
    maintenance = open_maintenance(parse_url(server.url(namespace)))
    with lockfast.connect(server.url(namespace), ttl=3600) as client:
        lease = client.lock("of a client").acquire()
        assert [finding.verdict for finding in maintenance.reset()] == ["good"]
        assert lease.lost.wait(30), "its holder is told at once"
    assert isinstance(script.send(c.Renew("ann")), c.Ended)
    granted = script.send(c.Enter("dan", 1, A, open=c.Open("dan", TTL_MS, "dan")))
    assert isinstance(granted, c.Granted)
    assert granted.token > max(last, lease.token)


NEEDED = ("hset", "hdel", "zadd", "zrem", "publish", "rpush", "zrangebylex", "hmget", "time")


@pytest.mark.parametrize("right", NEEDED)
def test_a_right_taken_away_and_given_back_leaves_a_namespace_that_works(
    server: RedisServer, namespace: str, right: str
) -> None:
    """The server refuses a command in the middle of a script and undoes none of its writes."""
    with RedisServer(server.binary) as own:
        user = ("ACL", "SETUSER", "locks")
        own.run(*user, "on", ">pw", "resetchannels", "&{lockfast:*}:wake:*", *RIGHTS.split())
        script = Script(f"unix://locks:pw@{own.socket}?namespace={namespace}")
        last = fill(script)
        own.run(*user, f"-{right}")
        opening = c.Open("dan", TTL_MS, "dan", inbox="secret")
        for command in (
            c.Enter("dan", 1, (c.Place("lock", "d", "exclusive"),), open=opening),
            c.Enter("bob", 3, (c.Place("lock", "free", "exclusive"),)),
            c.Enter("bob", 4, C),
            c.Leave("ann", 2, C),
            c.Leave("cat", 10, (c.Place("lock", "many/10", "exclusive"),)),
            c.Renew("cat", waiting=(2,)),
            c.RevokeSession("bob", "admin", "enough") if right == "publish" else c.Renew("bob"),
        ):
            with contextlib.suppress(StoreError):
                script.send(command)
        own.run(*user, f"+{right}")
        assert main(["doctor", own.url(namespace)]) == 0, "nothing needs to be repaired"
        granted = script.send(c.Enter("cat", 900, (c.Place("lock", "e", "exclusive"),)))
        assert isinstance(granted, c.Granted)
        assert granted.token > last
        for session in ("ann", "bob", "cat", "dan"):
            while isinstance(reply := script.send(c.Close(session)), c.Done) and reply.more:
                pass
        assert script.send(c.Listing("lock")) == c.ListingReply((), False)
        assert script.send(c.Listing("semaphore")) == c.ListingReply((), False)
        script.close()


def index_of(server: RedisServer, namespace: str) -> set[tuple[str, str]]:
    """Return what both indexes contain, without the numbers that a repair may move."""
    found: set[tuple[str, str]] = set()
    for key in ("order", "due"):
        members = server.run("ZRANGE", keys_of(namespace)[KEYS.index(key)].decode(), "0", "-1")
        found |= {(key, member) for member in members if not member.startswith("c\x1f")}
    return found


@pytest.mark.parametrize("right", ["hset", "zadd", "hdel", "zrem"])
def test_a_refused_script_writes_all_rows_or_none_and_no_index_lacks_a_row(
    server: RedisServer, namespace: str, right: str
) -> None:
    """The order of writes in writing.lua: index entries to add, all rows, then removals.

    Without permission for one of the first two, no claim may change. In any case a repair, which
    rebuilds the indexes from the rows, must not have to add anything to them.
    """
    with RedisServer(server.binary) as own:
        user = ("ACL", "SETUSER", "locks")
        own.run(*user, "on", ">pw", "resetchannels", "&{lockfast:*}:wake:*", *RIGHTS.split())
        script = Script(f"unix://locks:pw@{own.socket}?namespace={namespace}")
        reader = Script(own.url(namespace))
        fill(script)
        own.run(*user, f"-{right}")
        before = claims_of(reader)
        refused = 0
        for command in (
            c.Leave("ann", 2, C),  # held, with an expiry, and waiting in two queues
            c.Leave("cat", 2, A + B),  # waiting in two lines
            c.Leave("cat", 140, (c.Place("lock", "many/140", "exclusive"),)),
            c.Leave("cat", 1, PERMIT),
            c.Enter("ann", 3, PERMIT),
            c.Enter("ann", 4, A),
            c.Leave("ann", 1, A),  # granted to bob, whose claim then has an expiry
        ):
            try:
                script.send(command)
            except StoreError:
                refused += 1
            else:
                before = claims_of(reader)
            if right in ("hset", "zadd"):
                assert claims_of(reader) == before, command
        assert refused
        given = index_of(own, namespace)
        repair(own, namespace)
        assert index_of(own, namespace) - given == set()
        script.close()
        reader.close()


def test_a_client_survives_a_right_that_is_taken_away_for_longer_than_its_ttl(
    server: RedisServer,
) -> None:
    """As an operator did: permission for hset removed for a while, then restored."""
    with RedisServer(server.binary) as own:
        user = ("ACL", "SETUSER", "locks")
        own.run(*user, "on", ">pw", "resetchannels", "&{lockfast:*}:wake:*", *RIGHTS.split())
        url = f"unix://locks:pw@{own.socket}?namespace=taken"
        with lockfast.connect(url, ttl=1) as holder, lockfast.connect(url, ttl=1) as other:
            lease = holder.lock("a").acquire()
            own.run(*user, "-hset")
            assert lease.lost.wait(30)
            with pytest.raises(LockfastError):
                other.lock("b").acquire(timeout=0)
            own.run(*user, "+hset")
            with other.lock("a").acquire(timeout=30) as after:
                assert after.token > lease.token
