"""A memory store that tests control: its clock, its faults, and who loses a lease."""

from __future__ import annotations

import itertools
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from lockfast.api import base, settings
from lockfast.api.base import LeaseBase
from lockfast.api.blocking import Client
from lockfast.api.settings import Seconds
from lockfast.core.commands import Command, Gone, Inspect, Leave, Reply, ResourceView
from lockfast.core.names import check_name
from lockfast.errors import OutcomeUnknownError, StoreUnavailableError, UnsupportedError
from lockfast.flow.client import Core
from lockfast.flow.holding import HELD, Holding, full_span_ms
from lockfast.flow.session import RENEWALS_PER_TTL, Session
from lockfast.ports import Capabilities, Deliver, Runtime, Store, WakeListener, Wire
from lockfast.runtimes.threads import ThreadSignal
from lockfast.stores.memory import MemoryTable, MemoryWakeListener
from lockfast.stores.registry import Face, StoreUrl
from lockfast.testing.clock import Clock

if TYPE_CHECKING:
    from lockfast.api.aio import Client as AsyncClient

SETTLE_S: Final = 10.0
"""How long `Clock.advance` waits for clients to renew; they need a few milliseconds."""
CLOSE_MS: Final = 2000

_numbers = itertools.count(1)
_controlled: dict[str, ControlledStore] = {}


class ControlledStore:
    """A store in this process, empty at first, that a test controls.

    Clients connect to it with `connect()` or `connect_aio()`, or to its `url` from the code
    under test. Use it as a context manager: leaving the block closes its clients.
    """

    def __init__(self) -> None:
        self.clock = Clock(self._settle)
        """The clock of this store and its clients: `clock.advance(300)`."""
        self._name = str(next(_numbers))
        self._table = MemoryTable(self.clock.now_ms, self.clock.wall_us)
        self._is_down = False
        self._slow_ms = 0
        _controlled[self._name] = self

    @property
    def url(self) -> str:
        """The URL of this store, for code under test that connects on its own."""
        return f"testing://{self._name}"

    def connect(self, **options: Any) -> Client:
        """Connect a client, with the options of `lockfast.connect`.

        Without a `connect_timeout` it gives up on a store that is down after 0.1 seconds.
        """
        return Client(self.url, **{"connect_timeout": 0.1, **options})

    def connect_aio(self, **options: Any) -> AsyncClient:
        """Connect a client of the asyncio API, with the options of `lockfast.aio.connect`."""
        from lockfast.api.aio import Client as AsyncClient

        return AsyncClient(self.url, **{"connect_timeout": 0.1, **options})

    # ── faults ───────────────────────────────────────────────────────────────────────

    def down(self) -> None:
        """Make the store unreachable, until `up()`. Clients get StoreUnavailableError."""
        self._is_down = True

    def up(self) -> None:
        """End `down()` and `slow()`: the store is reachable and fast again."""
        self._is_down = False
        self._slow_ms = 0

    def slow(self, seconds: Seconds) -> None:
        """Delay every reply by `seconds`, until `up()`.

        A request whose timeout is shorter raises OutcomeUnknownError, although it was executed.
        """
        self._slow_ms = settings.to_ms(seconds, "seconds")

    def lose(self, what: str | LeaseBase, reason: str = "lost by the test") -> None:
        """Take a lease from its holder, which learns of it as of any other loss.

        `what` is the lease, or the name of a lock, for leases that the code under test holds.
        """
        lost = [
            (session, holding)
            for session in self._sessions()
            for holding in session.holdings()
            if holding.phase is HELD and _is_meant(holding, what)
        ]
        if not lost:
            name = what if isinstance(what, str) else what.name
            raise ValueError(f"no client of this store holds {name!r}")
        for session, holding in lost:
            ask = holding.ask
            delay_ms = full_span_ms(ask.lock_delay_ms)
            self._table.apply(Leave(session.id, holding.n, ask.places, delay_ms))
            session.apply_view(holding.n, Gone(reason), self.clock.now_ms())

    # ── assertions ───────────────────────────────────────────────────────────────────

    def assert_held(self, what: str | LeaseBase, *, kind: str = "lock") -> None:
        """Assert that a lease is held, or that some client holds the lock of this name."""
        if isinstance(what, LeaseBase):
            what.check()
        elif not self._holders(what, kind):
            raise AssertionError(f"nobody holds the {settings.check_kind(kind)} {what!r}")

    def assert_free(self, name: str, *, kind: str = "lock") -> None:
        """Assert that no client holds the lock of this name."""
        holders = self._holders(name, kind)
        if holders:
            raise AssertionError(f"the {kind} {name!r} is held by {', '.join(holders)}")

    def _holders(self, name: str, kind: str) -> list[str]:
        view = self._table.apply(Inspect(settings.check_kind(kind), check_name(name)))
        assert isinstance(view, ResourceView)
        return [claim.owner or claim.session for claim in view.holders]

    # ── its clients ──────────────────────────────────────────────────────────────────

    def _cores(self) -> list[Core]:
        return [
            core
            for core in list(base.open_cores)
            if isinstance(core.store, _ClientStore) and core.store.controlled is self
        ]

    def _sessions(self) -> list[Session]:
        return [session for core in self._cores() for session in core.sessions()]

    def _settle(self) -> None:
        """Return when clients have done everything that the clock makes due."""
        give_up_s = time.monotonic() + SETTLE_S
        for session in self._sessions():
            if session.alive():
                for holding in session.past_max_hold(self.clock.now_ms()):
                    session.expire(holding)
            while not self._is_settled(session) and time.monotonic() < give_up_s:
                time.sleep(0.001)

    def _is_settled(self, session: Session) -> bool:
        if self._is_down or self._slow_ms or not session.snapshot.opened or not session.alive():
            return True
        since_ms = self.clock.now_ms() - session.confirmed_at_ms()
        return since_ms <= session.ttl_ms // RENEWALS_PER_TTL

    def close(self) -> None:
        """Close the clients and remove the store."""
        self.up()
        _controlled.pop(self._name, None)
        stopped = []
        for core in self._cores():
            sessions = core.sessions()
            core.closed = True
            for session in sessions:
                signal = ThreadSignal()
                if session.close(signal.set):
                    stopped.append(signal)
        for signal in stopped:
            signal.wait_blocking(CLOSE_MS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ControlledStore {self.url}>"


def _is_meant(holding: Holding, what: str | LeaseBase) -> bool:
    return holding.ask.name == what if isinstance(what, str) else holding is what._holding


class _ClientStore(NamedTuple):
    """One client's access to a controlled store."""

    controlled: ControlledStore
    label: str
    face: Face

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    def runtime(self, face: Face) -> Runtime:
        return self.controlled.clock.runtime(face)

    def caller_wire(self) -> Wire:
        return _FaultyWire(self, self.runtime(self.face))

    def keeper_wire(self) -> Wire:
        return _FaultyWire(self, self.runtime("threads"))

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        table = self.controlled._table
        return MemoryWakeListener(table, self.runtime("threads"), session, deliver)

    def close(self) -> None:
        """Do nothing: the table stays for other clients."""


class _FaultyWire:
    def __init__(self, store: _ClientStore, runtime: Runtime) -> None:
        self._store = store
        self._controlled = store.controlled
        self._runtime = runtime

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        controlled = self._controlled
        if controlled._is_down:
            raise StoreUnavailableError(self._store.label, "is down, as the test wants it")
        reply = controlled._table.apply(command)
        slow_ms = controlled._slow_ms
        if slow_ms:
            await self._runtime.signal().wait(min(slow_ms, timeout_ms))
            if slow_ms > timeout_ms or controlled._is_down:
                raise OutcomeUnknownError(self._store.label, "did not answer in time")
        return reply

    def close(self) -> None:
        """Do nothing: there is no connection."""


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    url.refuse_other_options()
    controlled = _controlled.get(url.location)
    if controlled is None:
        raise UnsupportedError(
            url.label,
            "there is no such store of lockfast.testing in this process",
            "create a ControlledStore and connect to its url",
        )
    return _ClientStore(controlled, url.label, face)
