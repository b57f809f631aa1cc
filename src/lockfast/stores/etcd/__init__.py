"""The etcd store: every key of a session is bound to the session's lease.

**The invariant.** No key about a session outlives the session's etcd lease, and no stored number
summarises other keys, so nothing ever needs repair. A claim is one key per place, under the lease
of its session, in the queue of its resource (`layout.py` lists all keys). Holders, waiting claims
and reservations have separate prefixes. A waiting key contains the claim's rank, so a range
with a limit is the head of the queue and the range's count is its length. When a lease ends, etcd
deletes all its keys in one revision, by consensus, and the dead client is out of every queue.

**Deleted keys have a cost** until etcd's history is compacted: ranges include them. So names of
keys are used again, and ranges over a queue begin at its start (`layout.py`).

**A grant is a write**: a transaction compares everything its decision rests on and puts the
holder's key. The token is the epoch plus the revision of that transaction, plus its position in
the request.

**Two paths.** The common cases are four fixed transactions, sent without reading first
(`shortcuts.py`): take a free lock, give it back, join the queue of a lock that is held, hand over
to a known heir. Everything else, and any command whose fixed transaction failed, takes the
general path (`steps.py`): read ranges at one revision, let the lock table (`core.table`) decide
over rows derived from them (`view.py`), and commit the difference (`plan.py`). A transaction that
fails in either path reads in the same request what the next attempt needs.

What each transaction compares, and why that suffices:

  - *Take a free lock*: own session's key, that the resource has no key except the start of its
    queue, the epoch. So no claim holds it, waits for it or keeps it closed.
  - *Join a queue*: own session's key, that some claim holds the lock, that there is no
    reservation, that no claim is behind the new one. A claim in the queue is always correct: the
    client that removes the last holder finds it, since the transaction that adds it deletes every
    start behind it.
  - *Give back a lock*: own key, and that nothing was written at the resource since the grant.
  - *Hand over*: own key; that nothing was written since the heirs became known, up to the last of
    them; the first heir's key and session; the epoch. Additions and changes fail the comparison. A
    deletion inside a range does not, and need not: a holder that is gone only makes room.
  - *General path*: each resource as far as the table read it, the claims that change, the
    witnesses of a deadlock, the sessions that get a key, the epoch; and when a holder leaves while
    claims wait for others, that there is still another one.
  - *Anything that reads a queue from its start on*: that this start, or a later one, exists.
  - *End a session*: its key, and its renewals if the command names them.

So a client's memory may be out of date. A grant tells the new holder who is next, and the first
claim to join an empty queue tells the holder (`Word.heirs`), so that it can hand over without a
read. The list is complete at the revision of the word, since the transaction that writes it
compares the queue up to the last heir named; any later write fails the comparison of the hand-over
that relies on it.

**Ending a session** first deletes its key, in a transaction that leaves a tombstone with the
reason. Every enter compares that key's revision and every grant its presence, so from then on no
key can be added under the lease. Then the lease is revoked and the queues are settled. A busy
client cannot starve this, since nothing it does changes the session's key.

**An enter without a reply** may have been executed, and its claim granted by a hand-over since, or
may still be in flight. Its rank is recorded before it is sent. The next command for that claim
number rewrites the session's key, so that the late request finds it changed, and reads the
claim's keys in the same transaction (`Execution.resolve_doubt`).

**Crashes.** A client that dies before its transaction commits has done nothing; after it, its keys
stay until its lease ends. One that dies between granting a lease and using it leaves a lease
without keys. One that dies after deleting a session's key leaves a session that can neither enter
nor renew until its lease ends. An heir that is already dead when it is granted holds until its
lease ends; then its key is deleted, and the first in the queue, which watches the holders, settles
the queue itself (`wake_listener.py`). A dead waiter at the head is granted and passed in the same
way, or vanishes before. A member that dies takes nothing with it: requests go to another, and
watches resume from the revision they had reached.

**Time.** Only leases decide when something ends: sessions, closings (`once`, `lock_delay`) and
`max_hold` each have a lease of their length, rounded up to whole seconds. That of a `max_hold`
begins anew when the holder learns of its grant, since no clock tells it how long ago that was. A
claim's rank is its client's wall clock, but no earlier than the claims in the queue
(`derived/steps.py`, `lag_ms`).

**One acquire**, file by file: `wire` dispatches the command, `shortcuts` builds its transaction
with the keys of `layout` and the JSON of `requests`, `execution` keeps the claim in doubt until the
reply arrives, `batches` puts transactions of several callers into one request, and `gateway` sends
it. What all of them know is in `context` and, about sessions, in `owned`.
"""

from __future__ import annotations

from lockfast.ports import Capabilities, Deliver, WakeListener
from lockfast.stores.derived.steps import SEVERAL_MAX
from lockfast.stores.etcd.address import Address
from lockfast.stores.etcd.context import Context
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.network import HttpNetwork
from lockfast.stores.etcd.transport import Network
from lockfast.stores.etcd.wake_listener import EtcdWakeListener
from lockfast.stores.etcd.wire import EtcdWire
from lockfast.stores.forks import restart_in_children


class EtcdStore:
    """A client's access to one etcd cluster."""

    capabilities = Capabilities(several=SEVERAL_MAX)

    def __init__(self, address: Address, network: Network | None = None) -> None:
        self.label = address.label
        self.network = network or HttpNetwork(address)
        self.context = Context(address, self.network)
        self._wires: set[EtcdWire] = set()
        restart_in_children(self)

    def start(self) -> None:
        """Begin anew in a forked child."""
        self.context.start()
        for wire in self._wires:
            wire.gateway.start()

    def caller_wire(self) -> EtcdWire:
        return self._wire(Gateway(self.context, self.network.caller_transport(), together=True))

    def keeper_wire(self) -> EtcdWire:
        return self._wire(Gateway(self.context, self.network.keeper_transport()))

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        gateway = Gateway(self.context, self.network.keeper_transport())
        return EtcdWakeListener(gateway, self.context.own.begin(session), deliver)

    def close(self) -> None:
        for wire in list(self._wires):
            wire.close()

    def _wire(self, gateway: Gateway) -> EtcdWire:
        wire = EtcdWire(gateway, self._wires.discard)
        self._wires.add(wire)
        return wire
