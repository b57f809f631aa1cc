"""The connection is reset after every n-th byte of request and reply, for every operation.

Wherever it is cut: the error is typed, sending the command again settles its outcome, nothing is
granted twice, and no claim is left that its client does not know.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator

import pytest

import lockfast
from lockfast.core import commands as c
from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.ports import Wire
from lockfast.runtimes.threads import run
from lockfast.stores.registry import open_store
from tests.servers.proxy import DIRECTIONS, Cut, Proxy
from tests.servers.redis import RedisServer

LOCK = (c.Place("lock", "a", "exclusive"),)
BOTH = (c.Place("lock", "a", "exclusive"), c.Place("lock", "b", "shared"))
SHARED = (c.Place("lock", "a", "shared"),)
SEMAPHORE = (c.Place("semaphore", "p", "permit", 1, 3),)
OPEN = c.Open("us", 60_000, "owner")
THEM = c.Open("them", 60_000, "others")

Send = Callable[[c.Command], c.Reply]


def held(send: Send) -> None:
    send(c.Enter("us", 1, LOCK, open=OPEN))


def queued(send: Send) -> None:
    send(c.Enter("them", 1, LOCK, open=THEM))
    send(c.Enter("us", 1, LOCK, open=OPEN))


def wanted(send: Send) -> None:
    send(c.Enter("us", 1, LOCK, open=OPEN))
    send(c.Enter("them", 1, LOCK, open=THEM))


def opened(send: Send) -> None:
    send(OPEN)


def nothing(send: Send) -> None:
    pass


def shared(send: Send) -> None:
    send(c.Enter("us", 1, SHARED, open=OPEN))


def permit(send: Send) -> None:
    send(c.Enter("us", 1, SEMAPHORE, open=OPEN))


OPERATIONS: dict[str, tuple[Callable[[Send], None], c.Command]] = {
    "open": (nothing, OPEN),
    "enter": (opened, c.Enter("us", 1, LOCK)),
    "enter and open": (nothing, c.Enter("us", 1, LOCK, open=OPEN)),
    "enter two": (opened, c.Enter("us", 1, BOTH)),
    "leave": (held, c.Leave("us", 1, LOCK)),
    "hand over": (wanted, c.Leave("us", 1, LOCK)),
    "leave the line": (queued, c.Leave("us", 1, LOCK)),
    "convert": (shared, c.Convert("us", 1, 1, "exclusive")),
    "proclaim": (held, c.Proclaim("us", 1, "value")),
    "adopt": (held, c.Adopt("us", 1, "task-2")),
    "renew": (held, c.Renew("us", 1)),
    "renew and settle": (queued, c.Renew("us", 1, waiting=(1,))),
    "close": (held, c.Close("us")),
    "expel": (held, c.Expel("us", "silent")),
    "revoke": (held, c.Revoke("us", 1, "admin", "why")),
    "revoke session": (held, c.RevokeSession("us", "admin", "why")),
    "resize": (permit, c.Resize("semaphore", "p", 5)),
    "break": (queued, c.Break("us", 1, (c.Witness("us", 1, False),))),
    "watch": (opened, c.Watch("us", True)),
    "look": (held, c.Look("us", 1)),
    "claims": (held, c.Claims("us")),
    "inspect": (queued, c.Inspect("lock", "a")),
    "listing": (held, c.Listing("lock")),
    "sessions": (held, c.Sessions()),
    "events": (held, c.Events(0)),
}
NOT_THE_SAME_TWICE = ("close", "expel", "revoke", "revoke session", "break", "leave", "hand over")
"""Sent again, they report that nothing is left to do, which is as good."""


@pytest.fixture(scope="module")
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy(server.socket) as started:
        yield started


def url_of(proxy: Proxy, namespace: str) -> str:
    return f"redis://{proxy.address}?namespace={namespace}"


class Blocking:
    """A wire of the blocking API."""

    def __init__(self, url: str) -> None:
        self._store = open_store(url, "threads")
        self._wire: Wire = self._store.caller_wire()

    def send(self, command: c.Command) -> c.Reply:
        return run(self._wire.send(command, 5000))

    def close(self) -> None:
        self._store.close()


class OnLoop:
    """A wire of the asyncio API, with its own loop."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._store = open_store(url, "asyncio")
        self._wire: Wire = self._store.caller_wire()

    def send(self, command: c.Command) -> c.Reply:
        return self._runner.run(self._wire.send(command, 5000))

    def close(self) -> None:
        async def closed() -> None:
            self._store.close()

        self._runner.run(closed())
        self._runner.close()


def answer_to(wire: Blocking | OnLoop, command: c.Command) -> c.Reply:
    """Resend the same command until it is answered, as flow code does."""
    for _ in range(2):
        try:
            return wire.send(command)
        except (StoreUnavailableError, OutcomeUnknownError):
            continue  # the reset came just after the previous reply
    return wire.send(command)


def settled(server_side: Blocking) -> tuple[object, ...]:
    """Return the visible state, without times, tokens and counts of renewals."""
    sessions = server_side.send(c.Sessions())
    assert isinstance(sessions, c.SessionsReply)
    found: list[object] = [(s.session, s.claims, s.ended, s.by) for s in sessions.sessions]
    for session in sessions.sessions:
        claims = server_side.send(c.Claims(session.session))
        if isinstance(claims, c.ClaimsReply):
            found += [
                (v.session, v.n, v.places, v.state, v.actor, v.value, v.wants, v.reason)
                for v in claims.claims
            ]
    for kind, name in (("lock", "a"), ("lock", "b"), ("semaphore", "p")):
        view = server_side.send(c.Inspect(kind, name))
        assert isinstance(view, c.ResourceView)
        found.append((kind, name, view.holder_count, view.waiting_count, view.limit))
    return tuple(found)


def cuts(proxy: Proxy, request: int, reply: int) -> list[Cut]:
    """Return positions around every 7th byte, and the first and last bytes."""
    return [
        Cut(direction, after)
        for direction, size in zip(DIRECTIONS, (request, reply), strict=True)
        for after in sorted({0, 1, 2, *range(0, size, 7), size - 2, size - 1, size})
        if 0 <= after <= size
    ]


@pytest.mark.parametrize("face", [Blocking, OnLoop])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_reset_at_any_byte_is_settled_by_asking_again(
    server: RedisServer,
    proxy: Proxy,
    face: type[Blocking] | type[OnLoop],
    operation: str,
) -> None:
    prepare, command = OPERATIONS[operation]
    names = itertools.count()

    def stage() -> tuple[Blocking, Blocking | OnLoop]:
        namespace = f"reset-{operation.replace(' ', '-')}-{face.__name__}-{next(names)}"
        direct = Blocking(server.url(namespace))
        prepare(direct.send)
        cut_off = face(url_of(proxy, namespace))
        cut_off.send(c.Sessions())  # connected and greeted: only the command follows
        return direct, cut_off

    for _ in range(2):  # the first time, the script may have to be loaded
        direct, cut_off = stage()
        proxy.arm(None)
        expected = cut_off.send(command)
        request, reply = proxy.passed("request"), proxy.passed("reply")
        wanted = settled(direct)
        direct.close()
        cut_off.close()

    doubts = 0
    for cut in cuts(proxy, request, reply):
        direct, cut_off = stage()
        proxy.arm(cut)
        try:
            answered: c.Reply | None = cut_off.send(command)
        except StoreUnavailableError:
            answered = None
            assert cut.direction == "request", f"{cut}: it may have been done"
        except OutcomeUnknownError:
            answered = None
            doubts += 1
        proxy.arm(None)
        again = answer_to(cut_off, command)
        if answered is not None:
            assert type(answered) is type(expected), cut
        if operation not in NOT_THE_SAME_TWICE:
            assert type(again) is type(expected), cut
        assert settled(direct) == wanted, f"{operation}, {cut}"
        direct.close()
        cut_off.close()
    assert doubts > 0


def test_a_client_whose_connections_break_all_the_time_leaves_no_claim(
    server: RedisServer, proxy: Proxy
) -> None:
    """Acquire and release with resets at varying bytes: one holder, and nothing is left."""
    namespace = "breaking"
    with lockfast.connect(server.url(namespace)) as onlooker:
        with lockfast.connect(url_of(proxy, namespace), ttl=30) as client:
            tokens = []
            for after in range(0, 900, 45):
                proxy.arm(Cut("request" if after % 2 else "reply", after % 300))
                lease = client.lock("a").acquire(timeout=10)
                tokens.append(lease.token)
                try:
                    lease.release()
                except OutcomeUnknownError:
                    pass  # the keeper retries it
            proxy.arm(None)
            client.lock("a").acquire(timeout=10).release()
            assert tokens == sorted(set(tokens))
        assert onlooker.list() == []
