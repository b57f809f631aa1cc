"""The etcd store: everything of a session lives and dies with its lease.

**The invariant.** No key about a session outlives the session's etcd lease, and no stored number
summarises others, so nothing ever has to be repaired. A claim is one key per place, under the
lease of its session, in the line of its resource (`layout.py` lists all keys). Holders, waiting
claims and reservations have prefixes of their own; a waiting key contains the claim's rank, so a
range with a limit is the head of the line and the range's count is its length. When a lease ends,
etcd deletes all its keys in one revision, by consensus, and whoever died is out of every line.

**A grant is a write.** The lock table (`core.table`) decides, over rows that `view.py` builds from
ranges read at one revision. `plan.py` turns the difference into one transaction, which compares
what the decision rests on and puts the holder's key. The token is the epoch plus the revision of
that transaction, plus its place in the request.

What each step compares, and why that suffices:

  - *Take a free lock*: own session's key, that the resource has no key at all, the epoch. Nobody
    can hold it, wait for it or keep it closed.
  - *Join a line*: own session's key, that somebody holds the lock, that there is no reservation,
    that nobody stands behind the place taken or else the tail was read before. A claim in line is
    always right; what is read after the put shows whether it could hold by now (`join.py`).
  - *Leave a lock nobody waits for*: own key, and that nothing was written at the resource since
    it was granted alone.
  - *Leave and hand over*: own key; that nothing was written since the read, up to the heir; the
    heir's key and its session; the epoch. Additions and changes fail the comparison. A deletion
    inside a range does not, and need not: a holder that is gone only makes room.
  - *Take away, convert, break a deadlock*: the claim's key, the witnesses' keys, the lines as
    above.
  - *End a session*: its key, and its renewals if the command names them.

**A guess costs nothing.** Because every transaction compares what it rests on, a step may assume
what it would find and send its transaction at once: that a lock is free, that nobody has come
since. If that is wrong, the same request reads what is so. A grant therefore tells the heir who is
next in line (`Word.heirs`), so that it hands over in one transaction too, without a read. That is
complete when it is told, since the granting transaction compares the line up to the last heir
named; whatever is written later fails the comparison of whoever relies on it.

**Ending a session** takes its life first: a transaction deletes the session's key and leaves a
tombstone that says why. Every enter compares that key's revision and every grant its presence, so
from then on nothing can come under the lease. Then the lease is revoked and the lines settled. A
busy client cannot starve this, since nothing it does changes the session's key.

**An enter without a reply** may have been carried out, and its claim granted by a hand-over since,
or may still be on its way. Its rank is recorded before it is sent. Whoever enters or leaves that
number next writes the session's key anew, so that the late request finds it changed, and reads the
claim's keys in the same transaction (`doubt.py`).

**Who dies where.** A client that dies before its transaction commits has done nothing; after it,
its keys are there until its lease is over. One that dies between granting a lease and using it
leaves a lease without keys. One that dies after taking a session's life leaves a session that can
neither enter nor renew until its lease is over. A granted heir that is dead already holds until
its lease is over; then its holder's key is deleted, and the first in line, which watches the
holders, settles the line itself (`wake_listener.py`). A dead waiter at the head is granted and
passed on in the same way, or vanishes before. A member that dies takes nothing with it; requests
go to another, and watches go on from the revision they had come to. Whether a request whose answer
was lost has been carried out shows in the claim's keys, which are found by its number.

**Time.** Only leases decide when something is over: sessions, closings (`once`, `lock_delay`) and
`max_hold` each have a lease of their length, rounded up to whole seconds. A claim's rank is its
client's wall clock, but no earlier than those who stand in line (`order.py`).

**One acquire**, file by file: `wire` takes the command, `join` enters a line that is known to be
there, `steps` guesses or reads, runs the table over `view` and commits its `plan`, and `gateway`
puts transactions of several callers into one request.
"""

from __future__ import annotations

from math import ceil

from lockfast.ports import Capabilities, Deliver, WakeListener
from lockfast.stores.etcd.address import Address
from lockfast.stores.etcd.execution import Context
from lockfast.stores.etcd.gateway import Cluster, Gateway
from lockfast.stores.etcd.network import HttpNetwork
from lockfast.stores.etcd.owned import ARRIVAL_BITS, OwnSessions
from lockfast.stores.etcd.steps import SEVERAL_MAX
from lockfast.stores.etcd.transport import Network
from lockfast.stores.etcd.wake_listener import EtcdWakeListener
from lockfast.stores.etcd.wire import EtcdWire


def lease_seconds(span_ms: int) -> int:
    """The TTL of a lease that lasts at least this long; etcd counts in whole seconds."""
    return max(1, ceil(span_ms / 1000))


class EtcdStore:
    """A client's way to a cluster."""

    capabilities = Capabilities(several=SEVERAL_MAX)

    def __init__(self, address: Address, network: Network | None = None) -> None:
        self.label = address.label
        self.network = network or HttpNetwork(address)
        self.cluster = Cluster(address, self.network)
        own = OwnSessions(self.network.mutex(), self.network.random_bits(ARRIVAL_BITS))
        self.context = Context(own, lease_seconds)
        self._wires: set[EtcdWire] = set()

    def caller_wire(self) -> EtcdWire:
        return self._wire(Gateway(self.cluster, self.network.caller_transport(), together=True))

    def keeper_wire(self) -> EtcdWire:
        return self._wire(Gateway(self.cluster, self.network.keeper_transport()))

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        gateway = Gateway(self.cluster, self.network.keeper_transport())
        return EtcdWakeListener(gateway, self.context, self.context.own.begin(session), deliver)

    def close(self) -> None:
        for wire in list(self._wires):
            wire.close()

    def _wire(self, gateway: Gateway) -> EtcdWire:
        wire = EtcdWire(gateway, self.context, self._wires.discard)
        self._wires.add(wire)
        return wire
