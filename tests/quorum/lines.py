"""A protocol of lines for links, and a node that speaks it, played by a test."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from lockfast.errors import StoreError, StoreUnavailableError
from lockfast.stores.quorum.links import Endpoint, Link, State
from lockfast.stores.quorum.messages import NoAnswer
from tests.server.waiting import WAIT_S, until


class Lines:
    """Each line is a request, or the reply to one."""

    is_over = False

    def __init__(self, window: int) -> None:
        self.window = window
        self._rest = b""

    def greeting(self) -> Sequence[bytes]:
        return (b"hello\n",)

    def check_greeting(self, reply: Any) -> StoreError | None:
        return None

    def objection(self) -> StoreError | None:
        return None

    def feed(self, data: bytes) -> Iterator[Any]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        yield from lines

    def refusal(self, reply: Any) -> NoAnswer | None:
        return None

    def unreachable(self, error: OSError) -> StoreError:
        return StoreUnavailableError("node", str(error))


class PlayedNode:
    """A node whose side a test plays, and the link to it."""

    def __init__(self, window: int, host: str = "127.0.0.1") -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(WAIT_S)
        port = self._listening.getsockname()[1]
        self.link = Link(Endpoint("node", host, port), partial(Lines, window))
        self.peer: socket.socket | None = None

    def greet(self) -> None:
        """Accept the link's connection, and make it ready."""
        self.hang_up()
        self.peer, _ = self._listening.accept()
        self.peer.settimeout(WAIT_S)
        self.serve(b"hello\n")
        self.step_until(lambda: self.link.state is State.READY)

    def serve(self, expected: bytes) -> None:
        """Read a request and reply to it."""
        assert self.peer is not None
        self.link.step()
        assert self.peer.recv(1000) == expected
        self.peer.sendall(b"ok\n")

    def step_until(self, condition: Callable[[], object]) -> None:
        def step() -> object:
            self.link.step()
            return condition()

        until(step, "a reply")

    def hang_up(self) -> None:
        if self.peer is not None:
            self.peer.close()

    def close(self) -> None:
        self.link.close()
        self.hang_up()
        self._listening.close()


@contextlib.contextmanager
def played_node(window: int = 100, host: str = "127.0.0.1") -> Iterator[PlayedNode]:
    made = PlayedNode(window, host)
    try:
        yield made
    finally:
        made.close()
