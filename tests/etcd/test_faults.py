"""Lost replies, delayed requests, and servers that reply with garbage."""

from __future__ import annotations

import socket
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic
from typing import Any

import pytest

import lockfast
from lockfast.cli import main
from lockfast.core import commands as c
from lockfast.errors import (
    OutcomeUnknownError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from lockfast.runtimes.threads import run
from lockfast.stores.derived.steps import LIMITS, Outcome
from lockfast.stores.etcd import EtcdStore, shortcuts, steps
from lockfast.stores.etcd.layout import resource_prefix
from lockfast.stores.etcd.network import HttpTransport
from tests.etcd.harness import address_of
from tests.servers.etcd import EtcdCluster

A = c.Place("lock", "orders/42", "exclusive")
OPENING = c.Open("s", 60_000, "owner")


class Trouble:
    """Makes the next transaction that writes lose its reply, or be delayed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.next = ""
        self._held: list[tuple[HttpTransport, Any]] = []
        self._call = HttpTransport.call
        trouble = self

        async def call(self: HttpTransport, path: str, body: Any, *rest: Any) -> Any:
            what = trouble.next
            if path != "/v3/kv/txn" or '"compare":[' not in body or not what:
                return await trouble._call(self, path, body, *rest)
            if what == "held":
                trouble._held.append((self, body))
            else:
                reply = await trouble._call(self, path, body, *rest)
                if not reply.get("succeeded"):
                    return reply  # a guess that was wrong
            trouble.next = ""
            raise OutcomeUnknownError("etcd", "did not answer in time")

        monkeypatch.setattr(HttpTransport, "call", call)

    def arrive(self) -> None:
        """Let the delayed request arrive now."""
        for transport, body in self._held:
            run(self._call(transport, "/v3/kv/txn", body, 5000))


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Trouble:
    return Trouble(monkeypatch)


@pytest.fixture
def store(node: EtcdCluster) -> Iterator[EtcdStore]:
    made = EtcdStore(address_of(node.url()))
    yield made
    made.close()


def opened(store: EtcdStore) -> Any:
    """Return a function that sends commands, with a session and warm caches."""
    wire = store.caller_wire()

    def send(command: c.Command) -> Any:
        return run(wire.send(command, 5000))

    assert send(OPENING) == c.Done(found=False)
    warm = c.Place("lock", "warm-up", "exclusive")
    assert isinstance(send(c.Enter("s", 1, (warm,))), c.Granted)
    assert send(c.Leave("s", 1, (warm,))) == c.Done()
    return send


def holders(send: Any) -> list[int]:
    return [claim.n for claim in send(c.Inspect("lock", "orders/42")).holders]


def test_an_enter_whose_answer_is_lost_is_one_claim(store: EtcdStore, trouble: Trouble) -> None:
    send = opened(store)
    trouble.next = "lost"
    with pytest.raises(OutcomeUnknownError):
        send(c.Enter("s", 2, (A,)))
    granted = send(c.Enter("s", 2, (A,)))
    assert isinstance(granted, c.Granted)
    assert holders(send) == [2]
    assert send(c.Enter("s", 2, (A,))).token == granted.token
    assert send(c.Leave("s", 2, (A,))) == c.Done()
    assert holders(send) == []


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
@pytest.mark.parametrize("retried", [True, False])
def test_an_enter_whose_answer_is_lost_is_granted_before_the_retry(
    store: EtcdStore, trouble: Trouble, mode: str, retried: bool
) -> None:
    send, place = opened(store), c.Place("lock", "orders/42", mode)
    assert isinstance(send(c.Enter("s", 2, (A,))), c.Granted)
    store.context.met(resource_prefix("lock", "orders/42"), 0)
    trouble.next = "lost"
    with pytest.raises(OutcomeUnknownError):
        send(c.Enter("s", 3, (place,)))
    assert send(c.Leave("s", 2, (A,))) == c.Done()
    assert holders(send) == [3]
    if retried:
        assert isinstance(send(c.Enter("s", 3, (place,))), c.Granted)
    assert send(c.Leave("s", 3, (place,))) == c.Done()
    assert holders(send) == []


def test_a_claim_in_line_whose_look_ahead_fails_may_be_stored(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder retains the lock, so the new claim has to notify it."""

    class Failing(steps.Step):
        async def run(self) -> Outcome:
            raise StoreUnavailableError("etcd", "cannot be reached")

    send = opened(store)
    assert isinstance(send(c.Enter("s", 2, (A,), block=8)), c.Granted)
    store.context.met(resource_prefix("lock", "orders/42"), 0)
    with monkeypatch.context() as patched:
        patched.setattr(shortcuts, "Step", Failing)
        with pytest.raises(OutcomeUnknownError):
            send(c.Enter("s", 3, (A,)))
    assert isinstance(send(c.Enter("s", 3, (A,))), c.Queued)
    assert send(c.Leave("s", 3, (A,))) == c.Done()


def test_a_leave_whose_answer_is_lost_is_done_once(store: EtcdStore, trouble: Trouble) -> None:
    send = opened(store)
    assert isinstance(send(c.Enter("s", 2, (A,))), c.Granted)
    assert isinstance(send(c.Enter("s", 3, (A,))), c.Queued)
    trouble.next = "lost"
    with pytest.raises(OutcomeUnknownError):
        send(c.Leave("s", 2, (A,)))
    assert send(c.Leave("s", 2, (A,))) == c.Done(found=False)
    assert holders(send) == [3]


def test_an_enter_that_arrives_after_its_claim_was_left(store: EtcdStore, trouble: Trouble) -> None:
    send = opened(store)
    trouble.next = "held"
    with pytest.raises(OutcomeUnknownError):
        send(c.Enter("s", 2, (A,)))
    assert send(c.Leave("s", 2, (A,))) == c.Done(found=False)
    trouble.arrive()
    assert holders(send) == []
    assert send(c.Inspect("lock", "orders/42")).waiting_count == 0
    assert send(c.Enter("s", 2, (A,))).why == c.WHY_FINISHED


def test_an_enter_that_arrives_after_it_was_sent_again(store: EtcdStore, trouble: Trouble) -> None:
    send = opened(store)
    trouble.next = "held"
    with pytest.raises(OutcomeUnknownError):
        send(c.Enter("s", 2, (A,)))
    assert isinstance(send(c.Enter("s", 2, (A,))), c.Granted)
    trouble.arrive()
    view = send(c.Inspect("lock", "orders/42"))
    assert (view.holder_count, view.waiting_count) == (1, 0)
    assert send(c.Leave("s", 2, (A,))) == c.Done()
    trouble.arrive()
    assert holders(send) == []


def test_an_enter_that_arrives_after_its_session_was_ended(
    store: EtcdStore, trouble: Trouble
) -> None:
    """It used to be granted and to hold for ever."""
    send = opened(store)
    trouble.next = "held"
    with pytest.raises(OutcomeUnknownError):
        send(c.Enter("s", 2, (A,)))
    assert send(c.RevokeSession("s", "admin", "enough")) == c.Done()
    trouble.arrive()
    assert holders(send) == []
    ended = send(c.Enter("s", 3, (A,)))
    assert (ended.by, "enough" in ended.reason) == ("admin", True)


def test_a_session_has_no_more_claims_than_it_may(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (steps, shortcuts):
        monkeypatch.setattr(module, "LIMITS", LIMITS._replace(claims_max=3))
    send = opened(store)
    for n in range(2, 5):
        assert isinstance(send(c.Enter("s", n, (A._replace(name=f"n{n}"),))), c.Granted)
    assert send(c.Enter("s", 5, (A,))).why == c.WHY_CLAIMS_FULL


def test_a_namespace_of_the_old_layout_is_refused(node: EtcdCluster) -> None:
    url = node.url()
    root = address_of(url).root
    key, value = b64encode(f"{root}e".encode()).decode(), b64encode(b"[1700000000,1,0]").decode()
    node.call("/v3/kv/put", {"key": key, "value": value})
    with (
        lockfast.connect(url) as client,
        pytest.raises(StoreMisconfiguredError, match="schema 1, this version uses 3"),
    ):
        client.lock("orders/42").acquire(timeout=5)
    assert main(["doctor", url]) == 2


def test_doctor_accepts_an_alarm_reply_without_a_header(
    node: EtcdCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """etcd 3.4 answers `{}` when there is no alarm."""
    call = HttpTransport.call

    async def as_3_4(self: HttpTransport, path: str, *rest: Any) -> Any:
        return {} if path == "/v3/maintenance/alarm" else await call(self, path, *rest)

    monkeypatch.setattr(HttpTransport, "call", as_3_4)
    assert main(["doctor", node.url()]) == 0
    assert "alarms" in capsys.readouterr().out


# ── hostile servers ──────────────────────────────────────────────────────────────────

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
BODIES = {
    "no JSON": b"<html>",
    "a list": b"[1]",
    "deep": b"[" * 200_000,
    "no header": b'{"succeeded":true}',
    "a header of another kind": b'{"header":[],"responses":7}',
    "a wrong revision": b'{"header":{"revision":"x"}}',
    "wrong responses": b'{"header":{"revision":"5"},"responses":[{"response_range":{"kvs":[3]}}]}',
    "a value that is no session": b'{"header":{"revision":"5"},"responses":[{"response_range":'
    b'{"kvs":[{"key":"eA==","value":"bm8="}],"count":"1"}},{"response_range":{}},'
    b'{"response_range":{}}]}',
}


class Hostile:
    """Answers every request with the same bytes, possibly without end."""

    def __init__(self, reply: bytes, endless: bytes = b"") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"etcd://127.0.0.1:{self._listener.getsockname()[1]}"
        self._reply, self._endless = reply, endless
        self._stop = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while connection.recv(65536):
                connection.sendall(self._reply)
                while self._endless and not self._stop.wait(0.01):
                    connection.sendall(self._endless)

    def __enter__(self) -> Hostile:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._listener.close()


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_nonsense_is_a_store_error(body: bytes) -> None:
    with Hostile(HEAD % len(body) + body) as server:
        store = EtcdStore(address_of(server.url))
        with pytest.raises(StoreError):
            run(store.caller_wire().send(OPENING, 1000))
        store.close()


@pytest.mark.parametrize(
    ("reply", "endless"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (HEAD % 1_000_000, b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    ],
    ids=["head", "body", "chunks"],
)
def test_bytes_that_trickle_in_end_with_the_time_out(reply: bytes, endless: bytes) -> None:
    with Hostile(reply, endless) as server:
        store = EtcdStore(address_of(server.url))
        began_s = monotonic()
        with pytest.raises(StoreError):
            run(store.caller_wire().send(OPENING, 500))
        assert monotonic() - began_s < 10, "it took many times its time-out"
        store.close()
