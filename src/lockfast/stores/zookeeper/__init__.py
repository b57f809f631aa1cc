"""The ZooKeeper store: every node of a session is bound to its ZooKeeper session.

**The invariant.** Each Lockfast session has its own ZooKeeper session (a `Link`), and everything
it stores depends on ephemeral nodes of that session. A resource in use is a container node with a
*document*: its holders and the head of its queue, each with all the lock table needs. Below it,
every claim has an ephemeral node, and an entry of the document counts only while its node exists.
So nothing has to be repaired when a session expires: the next reader ignores its entries, and the
next writer removes them. `layout.py` lists all nodes.

**A grant is a write.** The lock table (`core.table`) decides, over rows that `view.py` builds from
documents. `plan.py` turns the difference into one multi that sets the documents and checks
everything the decision rests on; its docstring says why that suffices. So a step may assume a
state instead of reading it (`steps.py`): taking a free lock, releasing it and handing it over cost
one write each. Steps of the callers of one client change a document one after the other
(`derived/turns.py`), so they do not conflict with each other.

**Queues.** The first claim that waits enters the document. Further claims wait in *buckets*:
containers below the resource, listed in the document. A claim joins a bucket by creating a
sequential node in it, and only checks that the bucket is open (data version 0). So it conflicts
neither with other claims that join nor with a hand-over, needs no read if its client has known of
the bucket lately, and the server decides the order of arrival. When the document has no waiting
claim left, the step that hands over the lock reads the names in the bucket and moves its first
claims, a *window*, into the document. They keep their nodes; the document records the highest
sequence number that was moved. Four rules make this safe:

  - *A bucket is listed as long as claims can join it.* The multi that creates it lists it. It is
    removed from the list either with its node, which cannot be deleted while a claim is in it, or
    when all its claims were moved after it was sealed. Setting the node seals it.
  - *A claim in a bucket never has a lower rank than the bucket's start.* All claims in a bucket
    have the same head start (one bucket per priority), and a reader raises the rank of each to that
    of the claims that joined before it: the clocks of their clients may differ. So a claim in the
    document that is ahead of all starts can be granted without reading a bucket.
  - *Claims that join later have higher numbers*, so what was read of a bucket stays its head.
  - *A bucket is read before the queue counts as empty*: the table sees one that was not read as at
    least one waiting claim. A lock becomes free together with its open buckets, or seals them. So
    the step that releases it finds every claim that has joined.

The claim that finds a bucket full seals it and opens the next one; a client reads how many claims
are there before it sends the first, and again after every sixteenth. A claim that finds its bucket
sealed or deleted reads the document again. A claim that gives up in a bucket deletes its node and
checks that the document is unchanged, since a grant would have changed it. A hand-over reads at
most the names in one or two buckets and one window of claims, however long the queue is.

A client that retains a lock between uses must hear that others want it. A grant to such a claim
seals the open buckets, so every claim that joins has read the document and rings the holder's bell.

**Requests of one link keep their order**, even across reconnections: once a session has moved,
ZooKeeper refuses what arrives from an old connection. So the next read on the same link shows
whether a request without an answer was executed, and no request is executed after a later one.

**Time.** ZooKeeper ends a session that it has not heard from, and only our keep-alives count:
kazoo's pings are disabled, or a client whose keeper is stuck would hold its locks forever. A
keep-alive is a write, because a member that is cut off from the leader still answers reads. The
session timeout is a third longer than the TTL (`sessions.link_timeout_ms`). Ranks, closings and
`max_hold` use the leader's clock, of which a client knows bounds (`clock.py`). A grant and a
closing are dated by the write that stores them, and other clients compare their end with the lower
bound, so neither ends early.

**Tokens** are `base + zxid` (`layout.Base`). Opening a session raises the base to the wall clock,
so tokens also increase after an ensemble has lost its data.

**Crashes.** A client that dies before its multi is committed has done nothing; after it, its nodes
exist until its ZooKeeper session ends. An heir that is already dead when it is granted the lock
holds it until then; the claims behind it watch its session. A client that dies while it ends
another session leaves that session marked: it can do nothing, and its client closes it on noticing
the mark. If a member dies, kazoo reconnects to another one with the same session.

**One acquire**, file by file: `wire` dispatches the command, `steps` assumes that the lock is free,
`view` presents that as rows, `plan` makes the multi with the nodes of `layout`, and `context` sends
it. If the assumption was wrong, `loading` reads the resource. `wake_listener` explains how waiting
claims learn of their grants.

**The log of events** (`journal.py`, `entries.py`) is written while it has a reader: every write
that has events then adds a node with them. The base says until when, and each such write checks the
base, so none misses that a reader has come. Dead clients write no events; the step that removes
their entries from a document logs their ends.
"""

from __future__ import annotations

from typing import Final

from lockfast.ports import Capabilities, Deliver, WakeListener, Wire
from lockfast.stores.derived.steps import SEVERAL_MAX
from lockfast.stores.forks import restart_in_children
from lockfast.stores.zookeeper.context import Context
from lockfast.stores.zookeeper.layout import Paths, Sizes
from lockfast.stores.zookeeper.transport import Network
from lockfast.stores.zookeeper.wake_listener import ZooKeeperWakeListener
from lockfast.stores.zookeeper.wire import ZooKeeperWire

_inherited: Final[list[object]] = []
"""Connections of a parent process: neither used nor closed here."""


class ZooKeeperStore:
    """A client's access to one ensemble."""

    capabilities = Capabilities(several=SEVERAL_MAX)

    def __init__(
        self,
        label: str,
        root: str,
        network: Network,
        sizes: Sizes = Sizes(),  # noqa: B008  # immutable
    ) -> None:
        self.label = label
        self.network = network
        self.context = Context(label, network, Paths(root), sizes)
        restart_in_children(self)

    def start(self) -> None:
        """Begin anew in a forked child."""
        _inherited.append((self.context.own, self.context.links))
        self.context.start()

    def caller_wire(self) -> Wire:
        return ZooKeeperWire(self.context, self.network.caller, takes_turns=True)

    def keeper_wire(self) -> Wire:
        return ZooKeeperWire(self.context, self.network.keeper, takes_turns=False)

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        own = self.context.own.begin(session)
        return ZooKeeperWakeListener(self.context, own, deliver)

    def close(self) -> None:
        self.context.links.close()
