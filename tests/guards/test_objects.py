"""The guard of an object, on a real S3 server: order, repeated ETags, lost replies, kills."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from obstore.exceptions import PreconditionError
from obstore.store import HTTPStore, LocalStore, MemoryStore, S3Store

import lockfast
from lockfast.errors import StaleTokenError, StoreError, UnsupportedError
from lockfast.events import GuardAdmitted, GuardRefused
from lockfast.guards import AsyncObjectGuard, FenceDamagedError, InvalidTokenError, ObjectGuard
from lockfast.guards.objects import FENCE_BYTES
from tests.cli.processes import ROOT
from tests.servers.proxy import Cut, Proxy
from tests.servers.s3 import S3Server

WRITER = """
import sys
from lockfast.guards import ObjectGuard
from tests.servers.s3 import S3Server
server = S3Server()
server.port = int(sys.argv[1])
ObjectGuard(server.store(), sys.argv[2]).write_bytes(b"new" * 400, 18)
print("done")
"""
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as started:
        yield started


@pytest.fixture
def path() -> str:
    return f"reports/{next(_numbers)}"


@pytest.fixture(params=["s3", "memory"])
def store(request: pytest.FixtureRequest) -> Any:
    return MemoryStore() if request.param == "memory" else request.getfixturevalue("server").store()


class Hooked:
    """A store that calls a function before the first put."""

    def __init__(self, store: Any, before_put: Callable[[], None]) -> None:
        self._store, self._hooks = store, [before_put]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, path: str, body: bytes, **how: Any) -> None:
        if self._hooks:
            self._hooks.pop()()
        self._store.put(path, body, **how)


def test_an_older_token_cannot_overwrite(store: Any, path: str) -> None:
    guard = ObjectGuard(store, path)
    assert (guard.read_bytes(), guard.floor()) == (None, 0)
    guard.write_bytes(b"seventeen", 17)
    with pytest.raises(StaleTokenError, match="token 16 is older than 17"):
        guard.write_bytes(b"sixteen", 16)
    assert (guard.read_bytes(), guard.floor()) == (b"seventeen", 17)
    guard.write_bytes(b"again", 17)
    with pytest.raises(StaleTokenError, match="token 17 was already used"):
        guard.write_bytes(b"once", 17, once=True)
    guard.write_bytes(b"", 18, once=True)
    assert (guard.read_bytes(), guard.floor()) == (b"", 18)


def test_the_same_for_asyncio(store: Any, path: str) -> None:
    async def story() -> None:
        guard = AsyncObjectGuard(store, path)
        assert (await guard.read_bytes(), await guard.floor()) == (None, 0)
        await guard.write_bytes(b"seventeen", 17)
        with pytest.raises(StaleTokenError):
            await guard.write_bytes(b"sixteen", 16)
        with pytest.raises(StaleTokenError):
            await guard.write_bytes(b"once", 17, once=True)
        assert (await guard.read_bytes(), await guard.floor()) == (b"seventeen", 17)

    asyncio.run(story())


def test_the_content_begins_after_the_fence(store: Any, path: str) -> None:
    """For readers without Lockfast: a range request from byte 34."""
    ObjectGuard(store, path).write_bytes(b"day,total\n", 17)
    whole = bytes(store.get(path).bytes())
    assert whole[:17] == b"0000000000000017 "
    assert whole[FENCE_BYTES - 1 :] == b"\nday,total\n"
    assert bytes(store.get(path, options={"range": {"offset": 34}}).bytes()) == b"day,total\n"


def test_the_etag_of_content_repeats_and_that_of_a_guarded_object_does_not(
    server: S3Server, path: str
) -> None:
    """A put conditional only on the ETag of the content succeeds again two writes later."""
    store = server.store()
    before = store.put(path, b"open", attributes={"token": "15"})
    assert before["e_tag"] == f'"{hashlib.md5(b"open", usedforsecurity=False).hexdigest()}"'
    store.put(path, b"paid", attributes={"token": "17"})
    store.put(path, b"open", attributes={"token": "18"})
    store.put(path, b"stale", mode={"e_tag": before["e_tag"]}, attributes={"token": "16"})
    assert bytes(store.get(path).bytes()) == b"stale"

    guarded = f"{path}-guarded"
    guard = ObjectGuard(store, guarded)
    guard.write_bytes(b"open", 15)
    seen = store.head(guarded)["e_tag"]

    def returns_to_what_it_was() -> None:
        guard.write_bytes(b"paid", 17)
        guard.write_bytes(b"open", 18)

    with pytest.raises(StaleTokenError, match="token 16 is older than 18"):
        ObjectGuard(Hooked(store, returns_to_what_it_was), guarded).write_bytes(b"stale", 16)
    assert guard.read_bytes() == b"open"
    with pytest.raises(PreconditionError):
        store.put(guarded, b"", mode={"e_tag": seen})


def test_two_writers_that_create_an_object_follow_each_other(store: Any, path: str) -> None:
    newer = ObjectGuard(store, path)
    slow = Hooked(store, lambda: newer.write_bytes(b"new", 18))
    with pytest.raises(StaleTokenError):
        ObjectGuard(slow, path).write_bytes(b"old", 17)
    assert newer.read_bytes() == b"new"


def test_an_object_deleted_before_a_put_is_made_again(store: Any, path: str) -> None:
    guard = ObjectGuard(store, path)
    guard.write_bytes(b"old", 17)
    ObjectGuard(Hooked(store, lambda: store.delete(path)), path).write_bytes(b"new", 18)
    assert (guard.read_bytes(), guard.floor()) == (b"new", 18)


def test_holders_of_one_token_lose_no_update(server: S3Server, path: str) -> None:
    """Four threads add up under one token: a call that was overtaken is repeated."""

    def add(content: bytes | None) -> bytes:
        return b"%d" % (int(content or b"0") + 1)

    def work() -> None:
        guard = ObjectGuard(server.store(), path)
        for _ in range(8):
            guard.execute("sum", 17, add)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert ObjectGuard(server.store(), path).read_bytes() == b"32"


def test_it_gives_up_after_twenty_conflicts(store: Any, path: str) -> None:
    class Contended(Hooked):
        def put(self, path: str, body: bytes, **how: Any) -> None:
            ObjectGuard(store, path).write_bytes(b"theirs", 17)
            super().put(path, body, **how)

    contended = ObjectGuard(Contended(store, lambda: None), path)
    with pytest.raises(StoreError, match="was replaced 20 times while token 17"):
        contended.write_bytes(b"ours", 17)


# ── faults ───────────────────────────────────────────────────────────────────────────


def test_a_put_whose_reply_was_lost_counts_once(server: S3Server, path: str) -> None:
    """obstore resends it, and the server refuses the second because of the first."""
    with Proxy(("127.0.0.1", server.port)) as proxy:
        guard = ObjectGuard(server.store(proxy.port), path)
        guard.write_bytes(b"first", 17)
        proxy.arm(None)
        guard.floor()
        reply_to_read = proxy.passed("reply")
        proxy.arm(Cut("reply", reply_to_read + 1))
        guard.write_bytes(b"second", 18, once=True)
    direct = ObjectGuard(server.store(), path)
    assert (direct.read_bytes(), direct.floor()) == (b"second", 18)


def test_a_writer_killed_at_any_byte_leaves_the_old_or_the_new(server: S3Server, path: str) -> None:
    """Killed with kill -9 while its requests are in flight, at every 400th byte."""
    seen = set()
    with Proxy(("127.0.0.1", server.port)) as proxy:
        for cut in range(1, 100):
            guard = ObjectGuard(server.store(), f"{path}-{cut}")
            guard.write_bytes(b"old", 17)
            writer = subprocess.Popen(
                [sys.executable, "-c", WRITER, str(proxy.port), f"{path}-{cut}"],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            proxy.arm(Cut("request", 400 * cut), writer.kill)
            output, _ = writer.communicate(timeout=60)
            content = guard.read_bytes()
            seen.add(content)
            assert content in (b"old", b"new" * 400)
            with pytest.raises(StaleTokenError):
                guard.write_bytes(b"stale", 16)
            guard.write_bytes(b"newer", 18)
            if output == "done\n":
                assert content == b"new" * 400
                break
        else:
            pytest.fail("the writer was killed at every byte")
    assert cut > 3
    assert seen == {b"old", b"new" * 400}


def test_a_missing_bucket_is_the_error_of_the_store(server: S3Server, path: str) -> None:
    elsewhere = S3Store(
        "nowhere",
        endpoint=f"http://127.0.0.1:{server.port}",
        access_key_id="test",
        secret_access_key="test",
        region="us-east-1",
        client_options={"allow_http": True},
    )
    with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
        ObjectGuard(elsewhere, path).write_bytes(b"new", 17)


@pytest.mark.parametrize("damage", [b"", b"day,total\n", b"17" * 40, b"x" * 16 + b" " + b"0" * 17])
def test_an_object_without_a_fence_is_not_overwritten(store: Any, path: str, damage: bytes) -> None:
    store.put(path, damage)
    with pytest.raises(FenceDamagedError, match="was not written by a guard"):
        ObjectGuard(store, path).write_bytes(b"new", 17)
    assert bytes(store.get(path).bytes()) == damage


def test_a_bad_token_is_refused_before_anything_is_asked(path: str) -> None:
    with pytest.raises(InvalidTokenError):
        ObjectGuard(None, path).write_bytes(b"", 0)


def test_stores_without_conditional_puts_are_refused(tmp_path: Any, path: str) -> None:
    for store in (LocalStore(tmp_path), HTTPStore("http://127.0.0.1:1")):
        with pytest.raises(UnsupportedError, match="no put on the condition"):
            ObjectGuard(store, path)
        with pytest.raises(UnsupportedError, match="no put on the condition"):
            AsyncObjectGuard(store, path)


def test_observers_learn_what_was_admitted_and_refused(store: Any, path: str) -> None:
    seen: list[Any] = []
    guard = ObjectGuard(store, path)
    with lockfast.observe(seen.append):
        guard.write_bytes(b"new", 17)
        with pytest.raises(StaleTokenError):
            guard.write_bytes(b"old", 16)
    # Clients of other tests in this process may still emit events.
    of_guards = [event for event in seen if isinstance(event, GuardAdmitted | GuardRefused)]
    said = [(type(event).__name__, event.guard, event.token) for event in of_guards]
    assert said == [("GuardAdmitted", "object", 17), ("GuardRefused", "object", 16)]
