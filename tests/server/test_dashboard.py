"""What the server sends to dashboards: correct, resumable, and read once for all of them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

import lockfast
from lockfast.core import commands as c
from lockfast.core.modes import MODES_OF_KIND
from lockfast.errors import StoreUnavailableError
from lockfast.flow.admin import WatchEvent
from lockfast.server.dashboard import reader as reading
from lockfast.server.dashboard.history import EVENTS_MAX, History, Revocation
from lockfast.server.dashboard.picture import CLAIMS_SHOWN, DELTAS_KEPT, Claim, Picture
from lockfast.server.dashboard.reader import Reader
from lockfast.server.event_log import EventLog
from lockfast.server.service import Service
from lockfast.stores.registry import open_store
from tests.servers.lockserver import ServerThread

WAIT_S = 30.0
Message = tuple[str, str, dict[str, Any]]


# ── the picture ──────────────────────────────────────────────────────────────────────


class Watched:
    """A reader over a memory store, and the commands that change it."""

    def __init__(self, url: str) -> None:
        self.store = open_store(url, "asyncio")
        self.service = Service(self.store, self.store.caller_wire().send)
        self.reader = Reader(self.service, EventLog(lambda: open_store(url, "asyncio"), "test"))

    async def matches(self) -> bool:
        """Return True if the picture equals the store's state."""
        wanted = {}
        for kind in MODES_OF_KIND:
            page = await self.service.send(c.Listing(kind, "", "", 1000))
            assert isinstance(page, c.ListingReply)
            for view in page.resources:
                wanted[kind, view.name] = (
                    [_seen(kind, one) for one in view.holders],
                    [_seen(kind, one) for one in view.waiting[:CLAIMS_SHOWN]],
                    (view.holder_count, view.waiting_count, view.limit),
                )
        found = {
            key: (
                [_shown(one) for one in part[0]],
                [_shown(one) for one in part[1]],
                (lock.holder_count, lock.waiting_count, lock.limit),
            )
            for key, lock in self.reader.picture.locks.items()
            for part in [(list(lock.holders.values()), list(lock.waiting.values()))]
        }
        for part in (*wanted.values(), *found.values()):
            part[0].sort(key=repr)  # holders have no order
        return wanted == found

    async def close(self) -> None:
        await self.reader.close()
        await self.reader._log.close()
        self.service.wakes.close()
        self.store.close()


def _seen(kind: str, claim: c.ClaimView) -> tuple[Any, ...]:
    token = 0 if kind == "semaphore" else claim.token
    place = claim.places[0]
    return claim.session, claim.n, place.mode, place.weight, token, claim.value, claim.wants


def _shown(claim: Claim) -> tuple[Any, ...]:
    return (
        *(claim.session, claim.n, claim.mode, claim.weight, claim.token),
        *(claim.value, claim.wants),
    )


def random_command(chance: random.Random, n: int, names: int, entered: dict[int, str]) -> c.Command:
    session = f"s-{chance.randrange(6)}"
    name = f"lock-{chance.randrange(names)}"
    what = chance.random()
    if what < 0.55:
        place = chance.choice(
            [
                c.Place("lock", name, "exclusive"),
                c.Place("lock", name, chance.choice(["shared", "update"])),
                c.Place("semaphore", name, "permit", chance.randrange(1, 3), 3),
            ]
        )
        head_start = chance.choice([0, 0, 5000])
        entered[n] = session
        opening = c.Open(session, 600_000, f"owner of {session}")
        return c.Enter(session, n, (place,), head_start_ms=head_start, open=opening)
    old, session = chance.choice(list(entered.items()) or [(n, session)])
    if what < 0.85:
        entered.pop(old, None)
        return c.Leave(session, old)
    if what < 0.9:
        return c.Convert(session, old, n, chance.choice(["shared", "exclusive", "update"]))
    if what < 0.95:
        return c.Revoke(session, old, "operator", "because")
    return c.Proclaim(session, old, f"value {n}")


@pytest.mark.parametrize("seed", range(6))
def test_the_picture_follows_the_log(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After random commands the picture is what the store lists, without any sweep."""
    monkeypatch.setattr(reading, "SWEEP_S", 1e9)
    chance = random.Random(seed)
    names = (4, 60)[seed % 2]
    """A few locks have queues; many are mostly taken and released at once."""
    entered: dict[int, str] = {}

    async def run() -> None:
        watched = Watched(f"memory://{tmp_path}")
        try:
            with watched.reader.viewing():
                await watched.reader.ready()
                watched.reader._sweep_at_s = 1e12
                for n in range(1, 300):
                    await watched.service.send(random_command(chance, n, names, entered))
                    if chance.random() < 0.05:
                        await asyncio.sleep(chance.random() * 0.1)
                until_s = time.monotonic() + WAIT_S
                while not await watched.matches():
                    assert time.monotonic() < until_s, f"seed {seed}"
                    await asyncio.sleep(0.05)
                assert watched.reader.picture.locks
        finally:
            await watched.close()

    asyncio.run(run())


def test_the_sweep_finds_what_the_log_did_not_tell(tmp_path: Path) -> None:
    """Wrong rows are corrected, whatever the reason, and rows of free locks are removed."""

    async def run() -> None:
        watched = Watched(f"memory://{tmp_path}")
        try:
            opening = c.Open("s-1", 600_000, "owner")
            place = c.Place("lock", "a", "exclusive")
            await watched.service.send(c.Enter("s-1", 1, (place,), open=opening))
            with watched.reader.viewing():
                await watched.reader.ready()
                event = WatchEvent(1, 0.0, "granted", "lock", "ghost", "", "", "s", 1, 1, "")
                watched.reader.picture.apply(event, 0)
                watched.reader.picture.locks["lock", "a"].holders.clear()
                until_s = time.monotonic() + WAIT_S
                while not await watched.matches():
                    assert time.monotonic() < until_s
                    await asyncio.sleep(0.05)
        finally:
            await watched.close()

    asyncio.run(run())


def test_a_grant_while_the_snapshot_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event between reading the locks and reading the log is not missed."""
    monkeypatch.setattr(reading, "SWEEP_S", 1e9)

    async def run() -> None:
        watched = Watched(f"memory://{tmp_path}")
        read = watched.reader._read_everything

        async def read_and_grant() -> None:
            await read()
            watched.reader._sweep_at_s = 1e12
            opening = c.Open("s-1", 600_000, "owner")
            place = c.Place("lock", "late", "exclusive")
            await watched.service.send(c.Enter("s-1", 1, (place,), open=opening))

        monkeypatch.setattr(watched.reader, "_read_everything", read_and_grant)
        await shows(watched, ("lock", "late"))

    asyncio.run(run())


def test_a_store_without_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its locks are found by the sweep."""
    monkeypatch.setattr(reading, "SWEEP_S", 0.1)

    async def run() -> None:
        watched = Watched(f"memory://{tmp_path}")
        blind = watched.store.capabilities._replace(watch=False)
        monkeypatch.setattr(watched.store, "capabilities", blind)
        opening = c.Open("s-1", 600_000, "owner")
        place = c.Place("lock", "a", "exclusive")
        with watched.reader.viewing():
            await watched.reader.ready()
            await watched.service.send(c.Enter("s-1", 1, (place,), open=opening))
            await shows(watched, ("lock", "a"))

    asyncio.run(run())


async def shows(watched: Watched, key: tuple[str, str]) -> None:
    """Wait until the picture has a lock."""
    try:
        with watched.reader.viewing():
            await watched.reader.ready()
            until_s = time.monotonic() + WAIT_S
            while key not in watched.reader.picture.locks:
                assert time.monotonic() < until_s
                await asyncio.sleep(0.02)
    finally:
        await watched.close()


def test_deltas_are_kept_for_a_while() -> None:
    """A browser that missed more than is kept starts with a new snapshot."""
    picture = Picture("epoch")
    for n in range(DELTAS_KEPT + 10):
        event = WatchEvent(n + 1, 0.0, "granted", "lock", f"l{n}", "", "", "s", n, n + 1, "")
        picture.apply(event, 0)
        picture.flush([])
    assert picture.since(picture.version) == []
    missed = picture.since(picture.version - 3)
    assert missed is not None
    last = picture.version
    assert [delta.version for delta in missed] == [last - 2, last - 1, last]
    assert picture.since(5) is None
    assert picture.since(picture.version + 1) is None


def test_the_history_is_bounded() -> None:
    """Events older than an hour are dropped, and their number is bounded."""
    history = History()
    history.add(_event(1, 1000.0))
    history.add(_event(2, 1000.0 + 4000))
    assert [event.position for event in history.events] == [2]
    for n in range(EVENTS_MAX + 5):
        history.add(_event(n + 3, 6000.0))
    assert len(history.events) == EVENTS_MAX
    assert history.of("lock", "other") == []


def test_who_revoked(tmp_path: Path) -> None:
    history = History()
    history.note_revocation(Revocation("s", 2, "root", "because"))
    events = [_event(1, 0.0)._replace(what="revoked"), _event(2, 0.0)._replace(what="revoked")]
    assert history.revoked_by(events) == {2: "root"}


def _event(n: int, at: float) -> WatchEvent:
    return WatchEvent(n, at, "granted", "lock", "a", "exclusive", "owner", "s", n, n, "")


# ── the stream ───────────────────────────────────────────────────────────────────────


def messages(response: httpx.Response) -> Iterator[Message]:
    event = identity = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            event, identity = line[7:], ""
        elif line.startswith("id: "):
            identity = line[4:]
        elif line.startswith("data: "):
            yield event, identity, json.loads(line[6:])


def stream(http: httpx.Client, stack: ExitStack, last_id: str = "") -> Iterator[Message]:
    headers = {"Last-Event-ID": last_id} if last_id else {}
    return messages(stack.enter_context(http.stream("GET", "/dashboard/stream", headers=headers)))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(f"memory://{tmp_path}") as made:
        yield made


@pytest.fixture
def http(server: ServerThread) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.base, timeout=WAIT_S) as made:
        yield made


def until(found: Iterator[Message], text: str) -> Message:
    for message in found:
        if text in json.dumps(message[2]):
            return message
    raise AssertionError(f"the stream ended without {text}")


def test_a_stream_resumes(server: ServerThread, http: httpx.Client) -> None:
    """With the id of the last message a browser gets what it missed, and no snapshot."""
    with ExitStack() as stack, lockfast.connect(server.url()) as client:
        one = stream(http, stack)
        with client.lock("orders/1"):
            identity = until(one, "orders/1")[1]
        with client.lock("orders/2"):
            until(one, "orders/2")
            resumed = stream(http, stack, identity)
            kinds = []
            for event, _, data in resumed:
                kinds.append(event)
                if "orders/2" in json.dumps(data):
                    break
            assert "part" not in kinds
            for wrong in ("other-1", f"{identity.partition('-')[0]}-999999", "x", "-"):
                again = stream(http, stack, wrong)
                assert next(again)[0] == "hello"
                assert until(again, "orders/2")[0] == "part"


def test_ten_browsers_cost_the_store_no_more_than_one(
    server: ServerThread, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reader serves them all, at a bounded rate; it stops when the last browser is gone."""
    monkeypatch.setattr(reading, "LINGER_S", 0.0)
    sent: Counter[type] = Counter()
    send = Service.send

    async def counted(self: Service, command: c.Command) -> c.Reply:
        sent[type(command)] += 1
        return await send(self, command)

    monkeypatch.setattr(Service, "send", counted)
    with lockfast.connect(server.url()) as client:
        begin_s = time.monotonic()
        with ExitStack() as stack:
            streams = [stream(http, stack) for _ in range(10)]
            for n in range(20):
                with client.lock(f"orders/{n}"):
                    for each in streams:
                        until(each, f"orders/{n}")
            took_s = time.monotonic() - begin_s
            kinds = len(MODES_OF_KIND)
            assert 0 < sent[c.Listing] <= kinds + took_s / reading.SWEEP_S + 1
            assert 0 < sent[c.Sessions] <= 2 + took_s / (2 * reading.TICK_S)
            assert len(server.server.dashboard._readers) == 1
        reader = server.server.dashboard.reader("")
        assert reader._task is not None
        while not reader._task.done():
            assert time.monotonic() < begin_s + took_s + WAIT_S
            time.sleep(0.02)
        sent.clear()
        with client.lock("orders/unseen"):
            pass
        assert not {c.Listing, c.Sessions, c.Events} & set(sent)


def test_a_store_that_does_not_answer_is_said(
    server: ServerThread, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Browsers are told that what they show is stale, and when it is current again."""
    broken = False
    send = Service.send

    async def sometimes(self: Service, command: c.Command) -> c.Reply:
        if broken:
            raise StoreUnavailableError("memory", "is away")
        return await send(self, command)

    monkeypatch.setattr(Service, "send", sometimes)
    with ExitStack() as stack, lockfast.connect(server.url()) as client:
        found = stream(http, stack)
        with client.lock("orders/1"):
            until(found, "orders/1")
            broken = True
            assert until(found, "is away")[2]["trouble"] == "is away"
            broken = False
            for _, _, data in found:
                if data.get("trouble") == "":
                    break
        assert data["trouble"] == ""
