"""A majority of independent nodes as one store: exclusive locks, no queue.

There is no lock table here. A node stores one lease per lock. The client proposes the token as a
ballot, and a node accepts only a ballot above the last one it accepted. The client holds the lock
once more than half of the nodes have accepted.

    messages.py                  the port of a node: requests and answers
    node.py                      the rules of a node; the reference for node.lua
    local.py, memory.py, sqlite.py, local_aio.py   nodes that run in the client's process
    node.lua, codec.py           the same rules as a Redis script, and the encoding of requests
    json_codec.py                the encoding for Lockfast servers (server/node_service.py)
    session_records.py           what the client knows: which nodes accepted which claim, and when
    wire.py                      the protocol: each command is one round of requests to all nodes
    flights.py                   the port to the network: ask all nodes, return when enough answered
    links.py                     a non-blocking connection to a node: connect, greet, send, receive
    redis.py, http.py            the protocols on it
    fleet.py, aio.py             a flight over connections, driven by poll or by an event loop
    identities.py                two names of one node are refused

The store declares `contend` in place of `queue`. `flow/contention.py` retries: each attempt is a
`Contend`, answered by `Granted` or `Busy(retry_ms)`. A node that frees a lock wakes the contender
that has waited longest (`WAKE_FREE`, a hint).
"""

from __future__ import annotations

from typing import Final, Protocol

from lockfast.ports import Capabilities, Deliver, Runtime, WakeListener, Wire
from lockfast.stores.forks import restart_in_children
from lockfast.stores.memory import wall_us
from lockfast.stores.quorum.flights import Flights
from lockfast.stores.quorum.session_records import SessionRecords
from lockfast.stores.quorum.wire import TTL_MS_MAX, QuorumWire

CAPABILITIES: Final = Capabilities(
    queue=False,
    contend=True,
    modes=False,
    several=1,
    priority=False,
    watch=False,
    revoke=False,
    retain=False,
)
"""Independent nodes share no order of events, so there is no queue, no log, and no operation on
several locks in one atomic step."""


class Backend(Protocol):
    """Connects to the nodes of one kind."""

    @property
    def nodes(self) -> int: ...
    def caller_flights(self) -> Flights: ...
    def keeper_flights(self) -> Flights: ...
    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener: ...
    def close(self) -> None: ...


class QuorumStore:
    """The store of a client whose locks are held by a majority of nodes."""

    capabilities = CAPABILITIES

    def __init__(
        self,
        label: str,
        backend: Backend,
        runtime: Runtime,
        keeper_runtime: Runtime,
        records: SessionRecords | None = None,
        ttl_ms_max: int = TTL_MS_MAX,
    ) -> None:
        self.label = label
        self._backend = backend
        self._runtime = runtime
        self._keeper_runtime = keeper_runtime
        self._ttl_ms_max = ttl_ms_max
        self._records = records or SessionRecords(backend.nodes, keeper_runtime.mutex(), wall_us)
        restart_in_children(self)

    def start(self) -> None:
        """Begin anew in a forked child."""
        self._records.start(self._keeper_runtime.mutex())

    def caller_wire(self) -> Wire:
        return self._wire(self._backend.caller_flights(), self._runtime)

    def keeper_wire(self) -> Wire:
        return self._wire(self._backend.keeper_flights(), self._keeper_runtime)

    def _wire(self, flights: Flights, runtime: Runtime) -> Wire:
        return QuorumWire(self._records, flights, runtime, self.label, self._ttl_ms_max)

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        return self._backend.wake_listener(session, deliver)

    def close(self) -> None:
        self._backend.close()
