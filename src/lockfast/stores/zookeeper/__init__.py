"""The ZooKeeper store: everything of a session lives and dies with its ZooKeeper session.

**The invariant.** Each Lockfast session has a ZooKeeper session of its own (a `Link`), and
everything it stores hangs on ephemeral nodes of that session. A resource in use is a container
node with a *document*: its holders and the head of its line, each with all the lock table needs.
Below it, every claim has an ephemeral node, and an entry of the document counts only while its
node is there. So nothing has to be repaired when a session vanishes: whoever reads next leaves its
entries out, and whoever writes next drops them. `layout.py` lists all nodes.

**A grant is a write.** The lock table (`core.table`) decides, over rows that `view.py` builds from
documents. `plan.py` turns the difference into one multi that checks what the decision rests on and
sets the documents. A token is made of the zxid of that write, which everybody who reads the
document learns as its `mzxid`.

What each multi checks, and why that suffices:

  - *The version of each document*, which every step there raises: nobody has entered, left or been
    granted anything since it was read. Versions begin anew when a node is deleted and created
    again, so each multi also needs *a node below the resource* that was there when it was read. A
    node with children cannot be deleted and no name below a resource is used twice, so it is still
    the same resource. If there is none, the multi deletes the resource, which only works while
    nobody is there, and creates it anew.
  - *The acting session's node at version 0.* Whoever ends a session sets that node, so from then
    on the session can do nothing, and be granted nothing, even if its client does not know yet.
  - *The node of each heir, and its session's.* A dead heir fails the multi; the next is taken.
  - *The base of tokens*, if a token is given.

Entries that are dead are not checked: a holder that is gone only makes room.

**A guess costs nothing.** Because every multi checks what it rests on, an enter assumes that the
lock is free, and a leave that the document is as the last step of this process left it. That is
one write to take a free lock, one to give it back, and one to hand it over. If the guess is wrong,
the step reads what is so.

**Long lines.** A document has at most a window of waiting claims. Further claims wait in *buckets*,
nodes of their own that the document names with the ranks they begin at. A step that runs out of
window reads the next bucket into it. A claim that joins a bucket raises the document's version too,
so nobody is missed. A hand-over reads and writes as much as a window and a bucket, and forty bytes
for each of the further buckets.

**Waking.** Each session watches one node of its own, its *bell*, which a step sets that grants one
of its claims; the ring contains the token. Those who wait also watch the sessions directly ahead
of them, which may vanish without anybody's step, and then settle the line (`wake_listener.py`).

**Requests of one link keep their order**, also across reconnections: ZooKeeper refuses what
arrives from an old connection once a session has moved. So whether a request without an answer was
carried out shows in what is read next on the same link, and nothing can arrive late.

**Time.** ZooKeeper ends a session that it has not heard from, and only our keep-alives make it
hear: kazoo's own pings are switched off, or a client whose keeper is stuck would hold its locks
for ever. A keep-alive is a write, because a member that is cut off from the leader still answers
reads. The session timeout is a third longer than the TTL (`sessions.link_timeout_ms`). Ranks,
closings and `max_hold` use the leader's clock, as far as the last write of this process has shown
it; a claim never enters ahead of those it can see in line.

**Tokens** are `base + zxid`, where the zxid's two halves are packed into fewer bits
(`layout.Base`): they rise over an election and over a roll-over of the low half. The base is raised
to the wall clock when a session opens, so they rise over an ensemble that lost its data as well.

**Who dies where.** A client that dies before its multi is committed has done nothing; after it,
its nodes are there until its ZooKeeper session is over. A granted heir that is dead already holds
until then; whoever waits behind it watches its session. One that dies while it ends another's
session leaves that session marked: it can do nothing, and its client closes it on hearing of that.
A member that dies takes nothing with it: kazoo reconnects to another one with the same session.

Not supported: `watch` and the log of events, because ZooKeeper keeps no history.
"""

from __future__ import annotations

from lockfast.ports import Capabilities, Deliver, WakeListener, Wire
from lockfast.stores.zookeeper.layout import Paths
from lockfast.stores.zookeeper.links import Links
from lockfast.stores.zookeeper.owned import SALT_BITS, OwnSessions
from lockfast.stores.zookeeper.steps import SEVERAL_MAX, Context
from lockfast.stores.zookeeper.transport import Network
from lockfast.stores.zookeeper.wake_listener import ZooKeeperWakeListener
from lockfast.stores.zookeeper.wire import ZooKeeperWire


class ZooKeeperStore:
    """A client's way to an ensemble."""

    capabilities = Capabilities(several=SEVERAL_MAX, watch=False)

    def __init__(self, label: str, root: str, network: Network) -> None:
        self.label = label
        self.network = network
        own = OwnSessions(network.mutex(), network.random_bits(SALT_BITS))
        self.context = Context(label, network, Paths(root), own)
        self.links = Links(self.context)

    def caller_wire(self) -> Wire:
        network = self.network
        return ZooKeeperWire(
            self.context, self.links, network.caller_wait, network.caller_pause,
            network.caller_signal,
        )  # fmt: skip

    def keeper_wire(self) -> Wire:
        network = self.network
        return ZooKeeperWire(
            self.context, self.links, network.keeper_wait, network.keeper_pause, network.signal
        )

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        own = self.context.own.begin(session)
        return ZooKeeperWakeListener(self.context, self.links, own, deliver)

    def close(self) -> None:
        self.links.close()
