"""Whatever a server replies, callers get a typed error in time, and memory stays bounded."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from time import monotonic

import pytest

import lockfast
from lockfast.core import commands as c
from lockfast.errors import OutcomeUnknownError, StoreError
from lockfast.runtimes.threads import run
from lockfast.stores.redis.codec import AnswerError, reply_to
from lockfast.stores.redis.resp import (
    DEPTH_MAX,
    PENDING,
    ProtocolError,
    ReplyError,
    ReplyReader,
    pack,
)
from lockfast.stores.registry import Face, open_store
from tests.redis.hostile import HostileServer

ENTER = c.Enter(
    "us", 1, (c.Place("lock", "a", "exclusive"),), open=c.Open("us", 60_000, "owner", inbox="x")
)
FACES: tuple[Face, ...] = ("threads", "asyncio")
PATIENCE_S = 30.0


def send(url: str, face: Face, command: c.Command, timeout_ms: int) -> c.Reply:
    async def story() -> c.Reply:
        store = open_store(url, face)
        try:
            return await store.caller_wire().send(command, timeout_ms)
        finally:
            store.close()

    return asyncio.run(story()) if face == "asyncio" else run(story())


def endless(first: bytes, piece: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: itertools.chain([first], itertools.repeat(piece))


def once(answer: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: iter([answer])


ENDLESS = {
    "status": endless(b"+", b"x" * 4096),
    "error": endless(b"-ERR ", b"x" * 4096),
    "number": endless(b":", b"1" * 4096),
    "string": endless(b"$1000000000\r\n", b"x" * 4096),
    "array": endless(b"*1000000000\r\n", b":1\r\n" * 1000),
    "arrays in arrays": endless(b"", b"*1000\r\n"),
    "no RESP": endless(b"HTTP/1.1 400 Bad Request\r\n", b"x" * 4096),
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("what", ENDLESS)
def test_an_endless_answer_is_cut_off(what: str, face: Face) -> None:
    with HostileServer(ENDLESS[what]) as server:
        with pytest.raises(OutcomeUnknownError, match="cannot be used"):
            send(server.url, face, ENTER, 60_000)


@pytest.mark.parametrize("face", FACES)
def test_bytes_that_trickle_in_end_with_the_deadline(face: Face) -> None:
    stop = threading.Event()

    def trickle() -> Iterator[bytes]:
        yield b"+"
        while not stop.wait(0.001):
            yield b"x"

    with HostileServer(trickle) as server:
        began_s = monotonic()
        with pytest.raises(OutcomeUnknownError, match="did not answer in time"):
            send(server.url, face, ENTER, 300)
        assert monotonic() - began_s < PATIENCE_S
        stop.set()


WRONG = {
    "nothing": b"$-1\r\n",
    "an empty list": b"*0\r\n",
    "a status": b"+OK\r\n",
    "a string": b"$2\r\nhi\r\n",
    "token 0": b":0\r\n",
    "a negative token": b":-5\r\n",
    "a token of 54 bits": b":9007199254740993\r\n",
    "an unknown letter": pack("Z", "x"),
    "a letter that is a list": b"*1\r\n*1\r\n$1\r\nG\r\n",
    "granted, without fields": pack("G"),
    "granted, with text for a token": pack("G", "7", "0", "exclusive", "0"),
    "granted, token too large": b"*5\r\n$1\r\nG\r\n:9007199254740993\r\n:0\r\n$0\r\n\r\n:0\r\n",
    "queued behind a number": b"*3\r\n$1\r\nQ\r\n:1\r\n:1\r\n",
    "queued behind half a claim": b"*3\r\n$1\r\nQ\r\n*1\r\n*1\r\n$1\r\ns\r\n:1\r\n",
    "nested too deeply": b"*1\r\n" * (DEPTH_MAX + 1) + b":1\r\n",
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("what", WRONG)
def test_an_answer_of_the_wrong_shape_is_refused(what: str, face: Face) -> None:
    with HostileServer(once(WRONG[what])) as server:
        with pytest.raises(OutcomeUnknownError, match="cannot be used"):
            send(server.url, face, ENTER, 10_000)


@pytest.mark.parametrize("what", ["arrays in arrays", "number"])
def test_acquire_ends_by_its_timeout(what: str) -> None:
    with HostileServer(ENDLESS[what]) as server:
        with lockfast.connect(server.url, connect_timeout=0.5) as client:
            with pytest.raises(StoreError):
                client.lock("a").acquire(timeout=0.3)


# ── the reader ───────────────────────────────────────────────────────────────────────

REPLIES: tuple[tuple[bytes, object], ...] = (
    (b":42\r\n", 42),
    (b"+PONG\r\n", "PONG"),
    (b"$5\r\nh\xc3\xa9ll\r\n", "héll"),
    (b"$0\r\n\r\n", ""),
    (b"$-1\r\n", None),
    (b"*-1\r\n", None),
    (b"*0\r\n", []),
    (b"*2\r\n*2\r\n:1\r\n$1\r\na\r\n*0\r\n", [[1, "a"], []]),
)


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_replies_are_read_however_they_are_cut(size: int) -> None:
    stream = b"".join(said for said, _ in REPLIES)
    reader = ReplyReader()
    found: list[object] = []
    for at in range(0, len(stream), size):
        reader.feed(stream[at : at + size])
        while (reply := reader.gets()) is not PENDING:
            found.append(reply)
    assert found == [reply for _, reply in REPLIES]


def test_an_error_reply_is_a_value() -> None:
    reader = ReplyReader()
    reader.feed(b"*2\r\n-ERR no\r\n:1\r\n")
    error, number = reader.gets()
    assert isinstance(error, ReplyError)
    assert (str(error), number) == ("ERR no", 1)


@pytest.mark.parametrize("pieces", [1, 7, 100])
def test_the_bound_counts_each_reply_by_itself(pieces: int) -> None:
    """Replies that arrive together may exceed the bound, a single one may not."""
    reader = ReplyReader()
    reader.bytes_max = 100
    fits = b"$80\r\n" + b"x" * 80 + b"\r\n"
    stream = fits * 20
    size = len(stream) // pieces
    found = 0
    for at in range(0, len(stream), size):
        reader.feed(stream[at : at + size])
        while reader.gets() is not PENDING:
            found += 1
    assert found == 20
    reader.feed(b"*2\r\n" + fits + fits)
    with pytest.raises(ProtocolError, match="more than 100 bytes"):
        reader.gets()


def test_an_answer_is_checked_for_its_command() -> None:
    with pytest.raises(AnswerError):
        reply_to(c.Renew("us"), 7)
    with pytest.raises(AnswerError):
        reply_to(c.Leave("us", 1), 2)
    looks = [[1, ["D", 1]]]
    with pytest.raises(AnswerError, match="does not say how a claim stands"):
        reply_to(c.Renew("us"), ["N", 1, looks])
