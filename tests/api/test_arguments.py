"""Every argument of the API takes effect: in the store, in a command, or in a callback.

Each function is called in both APIs with a value other than the default for every parameter. A
parameter that no case checks fails the last test.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from lockfast.api import aio, base, blocking, settings
from lockfast.core import commands as c
from lockfast.errors import AcquireTimeoutError
from lockfast.flow.client import Core
from lockfast.flow.holding import full_span_ms
from lockfast.ports import Store, Wire
from lockfast.runtimes.platform import now_ms
from lockfast.runtimes.threads import ThreadsRuntime
from lockfast.stores.memory import MemoryStore, MemoryTable

FACES = {"threads": blocking, "asyncio": aio}
OPTIONS = {"ttl": 7.0, "priority": 3, "max_hold": 50.0, "timeout": 0.5}


class _RecordingWire:
    def __init__(self, wire: Wire, sent: list[c.Command]) -> None:
        self._wire = wire
        self._sent = sent

    async def send(self, command: c.Command, timeout_ms: int) -> c.Reply:
        self._sent.append(command)
        return await self._wire.send(command, timeout_ms)

    def close(self) -> None:
        self._wire.close()


class RecordingStore(MemoryStore):
    """A memory store that records what its callers send."""

    def __init__(self) -> None:
        super().__init__(MemoryTable(now_ms), ThreadsRuntime())
        self.sent: list[c.Command] = []
        self.sent_by_keepers: list[c.Command] = []

    def keeper_wire(self) -> Wire:
        return _RecordingWire(super().keeper_wire(), self.sent_by_keepers)

    def caller_wire(self) -> Wire:
        return _RecordingWire(super().caller_wire(), self.sent)


class Scene:
    """One of the two APIs, and the results of the calls to it."""

    def __init__(self, face: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.face: Any = FACES[face]
        self.store = RecordingStore()
        self.opened: dict[str, Any] = {}
        self.timeouts: list[object] = []
        self._runner = asyncio.Runner() if face == "asyncio" else None
        self._clients: list[Any] = []
        self.kept: list[Any] = []

        def open_store(url: str, face: str, **rest: Any) -> Store:
            self.opened = {"url": url, "face": face, **rest}
            return self.store

        def timeout_to_ms(timeout: object) -> int | None:
            self.timeouts.append(timeout)
            return to_ms(timeout)

        to_ms = settings.timeout_to_ms
        monkeypatch.setattr(base, "open_store", open_store)
        monkeypatch.setattr(settings, "timeout_to_ms", timeout_to_ms)

    def do(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of this API, on its loop and awaited if it has one."""

        async def called() -> Any:
            result = call(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        if self._runner is None:
            return call(*args, **kwargs)
        return self._runner.run(called())

    def client(self, **rest: Any) -> Any:
        client = self.do(self.face.connect, "memory://", **rest)
        self._clients.append(client)
        return client

    def take(self, recipe: Any, **rest: Any) -> c.Enter:
        """Acquire, and return the command that was sent."""
        self.kept.append(self.do(recipe.acquire, **rest))
        return self.entered()

    def entered(self) -> c.Enter:
        return next(sent for sent in reversed(self.store.sent) if isinstance(sent, c.Enter))

    def sent(self, kind: type[Any]) -> Any:
        return next(sent for sent in reversed(self.store.sent) if isinstance(sent, kind))

    def close(self) -> None:
        for client in self._clients:
            self.do(client.close)
        if self._runner is not None:
            self._runner.close()


@pytest.fixture(params=FACES)
def scene(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(request.param, monkeypatch)
    yield made
    made.close()


class Case(NamedTuple):
    """A call, and a check of where each of its arguments arrived."""

    arguments: dict[str, Any]
    arrived: Callable[[Scene, dict[str, Any]], dict[str, Any]]


CASES: dict[str, list[Case]] = {}


def case(*names: str, **arguments: Any) -> Callable[[Any], Any]:
    """Call `names` with these arguments; the decorated function reports what arrived."""

    def note(arrived: Callable[[Scene, dict[str, Any]], dict[str, Any]]) -> Any:
        for name in names:
            CASES.setdefault(name, []).append(Case(arguments, arrived))
        return arrived

    return note


def of_core(core: Core) -> dict[str, Any]:
    return {
        "connect_timeout": core.connect_timeout_ms / 1000,
        "ageing_step": core.ageing_step_ms / 1000,
        "deadlock_after": core._deadlock_after_ms / 1000,
        "debug": core.lock_order is not None,
    }


def of_enter(entered: c.Enter) -> dict[str, Any]:
    assert entered.open is not None
    assert entered.head_start_ms == entered.priority * 10_000
    return {
        "ttl": entered.open.ttl_ms / 1000,
        "priority": entered.priority,
        "max_hold": entered.max_hold_ms / 1000,
    }


def some(entered: c.Enter, *names: str) -> dict[str, Any]:
    return {name: value for name, value in of_enter(entered).items() if name in names}


def _observer(event: object) -> None: ...


# ── connecting ───────────────────────────────────────────────────────────────────────


@case(
    "connect",
    "Client.__init__",
    url="memory://somewhere",
    ttl=7.0,
    owner="the owner",
    metadata="the metadata",
    connect_timeout=3.0,
    ageing_step=4.0,
    deadlock_after=6.0,
    death_watch=False,
    debug=True,
    observers=[_observer],
    password=str,
    check=True,
)
def connecting(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    client = scene.do(scene.face.connect, **arguments)
    scene._clients.append(client)
    sent = [*scene.store.sent, *scene.store.sent_by_keepers]
    checked = any(isinstance(command, c.Inspect) for command in sent)
    opening = scene.take(client.lock("a")).open
    assert opening is not None
    assert scene.opened["face"] == ("threads" if scene.face is blocking else "asyncio")
    return {
        "url": scene.opened["url"],
        "death_watch": scene.opened["death_watch"],
        "password": scene.opened["password"],
        "check": checked,
        "ttl": opening.ttl_ms / 1000,
        "owner": opening.owner,
        "metadata": opening.metadata,
        "observers": [getattr(client._core.emitter.observer, "observer", None)],
        **of_core(client._core),
    }


# ── recipes ──────────────────────────────────────────────────────────────────────────


def span_s(requested_ms: int) -> float:
    """Return the span for which the store was asked not to cut it short, in seconds."""
    span_ms = requested_ms - 1
    assert full_span_ms(span_ms) == requested_ms
    return span_ms / 1000


@case("Client.lock", name="a", reentrant=True, lock_delay=9.0, retain=True, **OPTIONS)
def lock(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    return of_lock(scene, scene.client().lock(**arguments))


@case("lock", name="a", reentrant=True, lock_delay=9.0, retain=True, **OPTIONS)
def default_lock(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    made = scene.face.lock(**arguments)
    scene._clients.append(scene.face.default_client())
    return of_lock(scene, made)


def of_lock(scene: Scene, made: Any) -> dict[str, Any]:
    entered = scene.take(made)
    # Twice by the same actor, which would wait for itself if the lock were not reentrant.
    again = scene.do(made.try_acquire)
    if again is not None:
        scene.do(again.release)
    return {
        "name": entered.places[0].name,
        "lock_delay": span_s(entered.lock_delay_ms),
        "retain": entered.block > 1,
        "reentrant": made._reentrant,
        "timeout": made._options.timeout_ms / 1000,
        **of_enter(entered),
    }


@case("Client.lock", "lock", renew=False)
def fixed_lock(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    scene.take(scene.client().lock("a", **arguments))
    return {"renew": not scene.kept[-1]._holding.ask.fixed_ms}


@case("Client.rwlock", name="a", lock_delay=9.0, retain=True, **OPTIONS)
def rwlock(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    made = scene.client().rwlock(**arguments)
    modes = []
    for recipe in (made.read(), made.write(), made.update()):
        entered = scene.take(recipe)
        modes.append((entered.places[0].mode, entered.block > 1))
        scene.do(scene.kept.pop().release)
    assert modes == [("shared", True), ("exclusive", True), ("update", False)]
    first = next(sent for sent in scene.store.sent if isinstance(sent, c.Enter))
    return {
        "name": first.places[0].name,
        "lock_delay": span_s(first.lock_delay_ms),
        "retain": first.block > 1,
        "timeout": made.read()._options.timeout_ms / 1000,
        **of_enter(first),
    }


@case("Client.tree", name="a/b", **OPTIONS)
def tree(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    made = scene.client().tree(**arguments).write()
    entered = scene.take(made)
    assert [place[:3] for place in entered.places] == [
        ("tree", "a", "intent_exclusive"),
        ("tree", "a/b", "exclusive"),
    ]
    timeout = made._options.timeout_ms / 1000
    return {"name": entered.places[-1].name, "timeout": timeout, **of_enter(entered)}


@case("Client.semaphore", name="a", limit=11, **OPTIONS)
def semaphore(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    made = scene.client().semaphore(**arguments)
    entered = scene.take(made)
    assert made.limit == 11
    timeout, limit = made._options.timeout_ms / 1000, entered.places[0].limit
    return {"name": made.name, "limit": limit, "timeout": timeout, **of_enter(entered)}


@case("Client.all", names_or_locks=("a", "b"), **OPTIONS)
def several(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    names = arguments.pop("names_or_locks")
    made = scene.client().all(*names, **arguments)
    entered = scene.take(made)
    return {
        "names_or_locks": tuple(place.name for place in entered.places),
        "timeout": made._options.timeout_ms / 1000,
        **of_enter(entered),
    }


@case("Client.election", name="a", ttl=7.0, priority=3)
def election(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    scene.kept.append(scene.do(scene.client().election(**arguments).campaign))
    entered = scene.entered()
    assert entered.places[0].kind == "election"
    return {"name": entered.places[0].name, **some(entered, "ttl", "priority")}


@case("Client.party", name="a", ttl=7.0)
def party(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    scene.kept.append(scene.do(scene.client().party(**arguments).join))
    entered = scene.entered()
    assert entered.places[0].kind == "party"
    return {"name": entered.places[0].name, **some(entered, "ttl")}


@case("Client.once", name="a", at_least=20.0, at_most=40.0, retry_crashed=True, wait=True, ttl=7.0)
def once(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    made = scene.client().once(**arguments)
    return {
        "name": made._name,
        "at_least": made._window.at_least_ms / 1000,
        "at_most": made._window.at_most_ms / 1000,
        "retry_crashed": made._window.retry_crashed,
        "wait": made._window.wait,
        "ttl": made._window.ttl_ms / 1000,
    }


@case("Once.run", function="called", args=(1,), kwargs={"two": 2})
def once_run(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    calls: list[Any] = []

    def function(*args: Any, **kwargs: Any) -> str:
        calls.append((args, kwargs))
        return "called"

    async def function_async(*args: Any, **kwargs: Any) -> str:
        return function(*args, **kwargs)

    made = scene.client().once("a", at_least=1, at_most=2)
    given = function if scene.face is blocking else function_async
    outcome, result = scene.do(made.run, given, *arguments["args"], **arguments["kwargs"])
    assert outcome == "ran"
    return {"function": result, "args": calls[0][0], "kwargs": calls[0][1]}


# ── waiting ──────────────────────────────────────────────────────────────────────────


def held(scene: Scene) -> Any:
    """A client, with locks of each kind held by another client."""
    one, other = scene.client(), scene.client()
    scene.take(one.lock("a"))
    scene.take(one.semaphore("a", 1))
    scene.kept.append(scene.do(one.election("a").campaign))
    return other


@case("Lock.acquire", timeout=0.05)
def acquire(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    with pytest.raises(AcquireTimeoutError) as caught:
        scene.do(held(scene).lock("a").acquire, **arguments)
    return {"timeout": caught.value.timeout}


@case("Semaphore.acquire", permits=2, timeout=0.05)
def acquire_permits(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    client = scene.client()
    scene.take(scene.client().semaphore("a", 2))
    with pytest.raises(AcquireTimeoutError) as caught:
        scene.do(client.semaphore("a", 2).acquire, **arguments)
    return {"permits": scene.entered().places[0].weight, "timeout": caught.value.timeout}


@case("Semaphore.try_acquire", permits=2)
def try_acquire_permits(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    permit = scene.do(scene.client().semaphore("a", 3).try_acquire, **arguments)
    scene.kept.append(permit)
    assert permit.permits == 2
    return {"permits": scene.entered().places[0].weight}


@case("Semaphore.resize", limit=5)
def resize(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    made = scene.client().semaphore("a", 3)
    scene.take(made)
    assert scene.do(made.resize, **arguments) is True
    return {"limit": scene.sent(c.Resize).limit}


@case("Election.campaign", value="v", timeout=0.05, on_elected="x", on_lost="y")
def campaign_in_vain(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    rest = {name: arguments[name] for name in ("value", "timeout")}
    with pytest.raises(AcquireTimeoutError) as caught:
        scene.do(held(scene).election("a").campaign, **rest)
    calls: list[str] = []
    on_elected, on_lost = calls.append, calls.append
    client = scene.client()
    term = scene.do(
        client.election("b").campaign,
        on_elected=lambda term: on_elected("x"),
        on_lost=lambda term: on_lost("y"),
    )
    scene.kept.append(term)
    assert calls == ["x"]
    scene.do(client.revoke, "b", kind="election", reason="to see who is told")
    assert scene.do(term.lost.wait, 30)
    scene.do(_wait_until, lambda: len(calls) == 2)
    value = next(s.value for s in scene.store.sent if isinstance(s, c.Enter) and s.value)
    return {
        "value": value,
        "timeout": caught.value.timeout,
        "on_elected": calls[0],
        "on_lost": calls[1],
    }


def _wait_until(true: Callable[[], bool]) -> Any:
    """Wait, on a thread or on the loop, for the effect of a callback."""

    async def on_the_loop() -> None:
        async with asyncio.timeout(30):
            while not true():
                await asyncio.sleep(0.001)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        signal = ThreadsRuntime().signal()
        for _ in range(30_000):
            if true() or signal.wait_blocking(1):
                return None
        raise AssertionError("it never became true") from None
    return on_the_loop()


@case("Term.proclaim", value="v")
def proclaim(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    term = scene.do(scene.client().election("a").campaign)
    scene.kept.append(term)
    scene.do(term.proclaim, **arguments)
    return {"value": scene.sent(c.Proclaim).value}


@case("Party.join", value="v")
def join(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    scene.kept.append(scene.do(scene.client().party("a").join, **arguments))
    return {"value": scene.entered().value}


@case("Lease.upgrade", timeout=0.05)
def upgrade(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    scene.take(scene.client().rwlock("a").read())
    scene.take(scene.client().rwlock("a").update())
    with pytest.raises(AcquireTimeoutError) as caught:
        scene.do(scene.kept[-1].upgrade, **arguments)
    assert scene.sent(c.Convert).mode == "exclusive" or scene.timeouts[-1] == 0.05
    return {"timeout": caught.value.timeout}


@case("Lease.extend", seconds=40.0)
def extend(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    scene.take(scene.client().lock("a", renew=False))
    lease = scene.kept[-1]
    before_ms = lease._holding.hold_deadline_ms
    scene.do(lease.extend, **arguments)
    return {"seconds": (lease._holding.hold_deadline_ms - before_ms) / 1000}


@case("Lost.wait", timeout=0.05)
def wait(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    scene.take(scene.client().lock("a"))
    assert scene.do(scene.kept[-1].lost.wait, **arguments) is False
    return {"timeout": scene.timeouts[-1]}


@case("Lease.on_lost", callback="called")
def on_lost(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    calls: list[Any] = []
    client = scene.client()
    scene.take(client.lock("a"))
    lease = scene.kept[-1]
    scene.do(lease.on_lost, callback=calls.append)
    scene.do(client.revoke, "a", reason="to see who is told")
    scene.do(_wait_until, lambda: bool(calls))
    assert calls == [lease]
    return {"callback": "called"}


class RecordingStorage:
    """Returns what it was told to execute."""

    def execute(
        self, resource: str, token: int, operation: str, *, shared: bool, once: bool
    ) -> dict[str, Any]:
        assert not shared
        return {"resource": resource, "token": token, "operation": operation, "once": once}


@case("Lease.execute_with_fence", storage="called", operation="write", resource="b", once=True)
def execute_with_fence(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    scene.take(scene.client().lock("a"))
    lease = scene.kept[-1]
    arguments["storage"] = RecordingStorage()
    executed: dict[str, Any] = scene.do(lease.execute_with_fence, **arguments)
    assert executed.pop("token") == lease.token
    return {"storage": "called", **executed}


# ── looking on ───────────────────────────────────────────────────────────────────────


@case("Client.inspect", name="a", kind="tree")
def look(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    scene.do(scene.client().inspect, **arguments)
    return {"name": scene.sent(c.Inspect).name, "kind": scene.sent(c.Inspect).kind}


@case("Client.list", prefix="a", kind="tree")
def listing(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    scene.do(scene.client().list, **arguments)
    return {"prefix": scene.sent(c.Listing).prefix, "kind": scene.sent(c.Listing).kind}


@case("Client.wait_graph", prefix="a")
def wait_graph(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    scene.do(scene.client().wait_graph, **arguments)
    return {"prefix": scene.sent(c.Listing).prefix}


@case("Client.watch", prefix="a", kind="tree", after=3)
def watch(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    client = scene.client()
    scene.take(client.lock("a/x"))  # 1, of another kind
    scene.take(client.tree("b").read())  # 2, of another name
    scene.take(client.tree("a").read())  # 3, too early
    scene.take(client.tree("a/b").read())  # 4 and 5
    watching = client.watch(**arguments)
    events = []
    for _ in range(2):
        step = watching.__next__ if scene.face is blocking else watching.__anext__
        events.append(scene.do(step))
    assert {event.kind for event in events} == {"tree"}
    assert [event.name for event in events] == ["a", "a/b"]
    return {"prefix": "a", "kind": "tree", "after": events[0].position - 1}


@case("Client.revoke", name="a", session=None, kind="tree", reason="because")
@case("Client.revoke", name=None, session="s", kind="lock", reason="because")
def revoke(scene: Scene, arguments: dict[str, Any]) -> dict[str, Any]:
    client = scene.client(owner="admin")
    if arguments["session"] is not None:
        scene.do(client.revoke, **arguments)
        command = scene.sent(c.RevokeSession)
        assert command.by == "admin"
        return {**arguments, "session": command.session, "reason": command.reason}
    scene.take(client.tree("a").write())
    assert scene.do(client.revoke, **arguments) == 1
    command, looked = scene.sent(c.Revoke), scene.sent(c.Inspect)
    assert (command.session, command.by) == (scene.kept[-1].session, "admin")
    return {
        "name": looked.name,
        "session": None,
        "kind": looked.kind,
        "reason": command.reason,
    }


# ── all of them ──────────────────────────────────────────────────────────────────────

EVERY_CASE = [(name, i) for name, cases in CASES.items() for i in range(len(cases))]


@pytest.mark.parametrize(("name", "i"), EVERY_CASE)
def test_every_argument_arrives(scene: Scene, name: str, i: int) -> None:
    arguments, arrived = CASES[name][i]
    found = arrived(scene, dict(arguments))
    assert found == arguments


def parameters(name: str) -> dict[str, inspect.Parameter]:
    thing: Any = blocking
    for part in name.split("."):
        thing = getattr(thing, part)
    found = dict(inspect.signature(thing).parameters)
    found.pop("self", None)
    found.pop("positional", None)  # refused, whatever its value
    return found


@pytest.mark.parametrize(("name", "i"), EVERY_CASE)
def test_every_value_differs_from_the_default(name: str, i: int) -> None:
    for parameter, value in CASES[name][i].arguments.items():
        if len(CASES[name]) == 1:
            assert parameters(name)[parameter].default != value


def test_no_parameter_of_any_function_is_left_out() -> None:
    for name in blocking.__all__:
        thing = getattr(blocking, name)
        functions = {name: thing}
        if inspect.isclass(thing):
            functions = {
                f"{name}.{inner}": value
                for inner, value in vars(thing).items()
                if inspect.isfunction(value) and not inner.startswith("_")
            }
        for qualified in functions:
            tried = {p for case in CASES.get(qualified, ()) for p in case.arguments}
            assert tried == set(parameters(qualified)), qualified
    assert set(parameters("Client.__init__")) == set(CASES["Client.__init__"][0].arguments)
