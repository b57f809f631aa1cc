"""The socket under stores with a server: when it spins, when it blocks, when it gives up."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from time import monotonic

import pytest

from lockfast.stores import stream as module
from lockfast.stores.stream import SPIN_S, Stream

PATIENCE_S = 30.0


@pytest.fixture
def ends() -> Iterator[tuple[Stream, socket.socket]]:
    ours, theirs = socket.socketpair()
    stream = Stream(ours)
    yield stream, theirs
    stream.close()
    theirs.close()


class Waiting:
    """A stream with its own clock, and a record of how it waits for a reply."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, spins: bool = True) -> None:
        ours, self.server = socket.socketpair()
        self.stream = Stream(ours, spins=spins)
        self.now_s = 1000.0
        self.waits: list[str] = []
        self.meanwhile: Callable[[], object] = self.answer
        self._poll = select.poll()
        self._poll.register(ours, select.POLLIN)
        monkeypatch.setattr(module, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(module, "yield_cpu", lambda: self._wait("spin"))
        self.stream._input = self  # type: ignore[assignment]

    def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
        self._wait("block")
        found = self._poll.poll(0)
        if not found:
            self.now_s += timeout_ms / 1000
        return found

    def _wait(self, how: str) -> None:
        self.waits.append(how)
        self.meanwhile()

    def answer(self) -> None:
        self.server.send(b"+OK\r\n")

    def receive(self) -> list[str]:
        """Wait for a reply; return how it waited."""
        self.waits = []
        assert self.stream.receive(self.now_s + PATIENCE_S) == b"+OK\r\n"
        return self.waits


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waiting]:
    made = Waiting(monkeypatch)
    yield made
    made.stream.close()
    made.server.close()


def test_a_reply_is_spun_for_once_one_came_soon(waiting: Waiting) -> None:
    assert waiting.receive() == ["block"], "nothing is known of the server yet"
    assert waiting.receive() == ["spin"]
    assert waiting.receive() == ["spin"]


def test_after_a_slow_reply_the_next_is_blocked_for(waiting: Waiting) -> None:
    waiting.receive()

    def late() -> None:
        waiting.now_s += 0.4 * SPIN_S
        if waiting.waits[-1] == "block":
            waiting.answer()

    waiting.meanwhile = late
    assert waiting.receive() == ["spin", "spin", "spin", "block"]
    assert waiting.receive() == ["block"]
    # This reply came soon, so the next wait spins again.
    waiting.meanwhile = waiting.answer
    assert waiting.receive() == ["spin"]


def test_a_far_server_is_never_spun_for(waiting: Waiting) -> None:
    def far() -> None:
        waiting.now_s += 2 * SPIN_S
        waiting.answer()

    waiting.meanwhile = far
    assert [waiting.receive() for _ in range(3)] == [["block"]] * 3


def test_what_is_there_is_not_waited_for(waiting: Waiting) -> None:
    waiting.answer()
    assert waiting.receive() == []


def test_an_answer_that_does_not_come_ends_in_time(waiting: Waiting) -> None:
    waiting.receive()
    until_s = waiting.now_s + 5

    def silent() -> None:
        waiting.now_s += SPIN_S if waiting.waits[-1] == "spin" else 0

    waiting.meanwhile = silent
    with pytest.raises(TimeoutError):
        waiting.stream.receive(until_s)
    assert waiting.now_s == pytest.approx(until_s)
    waiting.meanwhile = waiting.answer
    assert waiting.receive(), "nothing is lost by it"


def test_a_peer_that_keeps_sending_does_not_keep_its_reader_past_the_deadline(
    waiting: Waiting,
) -> None:
    until_s = waiting.now_s + 5
    received = 0
    with pytest.raises(TimeoutError):
        for _ in range(100):
            waiting.answer()  # there is always data to read
            waiting.stream.receive(until_s)
            received += 1
            waiting.now_s += 1
    assert received == 5


def test_a_stream_that_must_not_spin_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch, spins=False)
    assert [waiting.receive() for _ in range(3)] == [["block"]] * 3
    waiting.stream.close()
    waiting.server.close()


def test_nothing_comes_once_the_other_side_is_gone(ends: tuple[Stream, socket.socket]) -> None:
    stream, server = ends
    server.close()
    assert stream.receive(monotonic() + PATIENCE_S) == b""
    assert stream.receive_nowait() == b""
    assert not stream.is_quiet()


def test_a_request_larger_than_the_buffers_goes_out_whole(
    ends: tuple[Stream, socket.socket],
) -> None:
    stream, server = ends
    request = bytes(range(256)) * 40_000
    arrived = bytearray()

    def read() -> None:
        while len(arrived) < len(request):
            arrived.extend(server.recv(65536))

    reader = threading.Thread(target=read)
    reader.start()
    stream.send(request, monotonic() + PATIENCE_S)
    reader.join(PATIENCE_S)
    assert arrived == request


def test_a_request_that_nobody_reads_ends_in_time(ends: tuple[Stream, socket.socket]) -> None:
    stream, _ = ends
    with pytest.raises(TimeoutError):
        stream.send(bytes(50_000_000), monotonic() + 0.05)


def test_nothing_is_sent_after_its_time(ends: tuple[Stream, socket.socket]) -> None:
    stream, server = ends
    with pytest.raises(TimeoutError):
        stream.send(b"PING\r\n", monotonic() - 0.001)
    server.setblocking(False)
    with pytest.raises(BlockingIOError):
        server.recv(1)


def test_quiet_is_a_stream_with_nothing_receive_nowait(ends: tuple[Stream, socket.socket]) -> None:
    stream, server = ends
    assert stream.is_quiet()
    assert stream.receive_nowait() is None
    server.send(b"-ERR good-bye\r\n")
    assert not stream.is_quiet()
