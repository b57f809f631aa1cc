"""The ZooKeeper store: every node of a session is bound to its ZooKeeper session.

**The invariant.** Each Lockfast session has its own ZooKeeper session (a `Link`), and everything
it stores depends on ephemeral nodes of that session. A resource in use is a container node with a
*document*: its holders and the head of its queue, each with all the lock table needs. Below it,
every claim has an ephemeral node, and an entry of the document counts only while its node exists.
So nothing has to be repaired when a session vanishes: the next reader ignores its entries, and the
next writer removes them. `layout.py` lists all nodes.

**A grant is a write.** The lock table (`core.table`) decides, over rows that `view.py` builds from
documents. `plan.py` turns the difference into one multi that checks what the decision rests on and
sets the documents. A token is derived from the zxid of that write, which every reader of the
document sees as its `mzxid`.

What each multi checks, and why that suffices:

  - *The version of each document*, which every step there raises: no claim has entered, left or
    been granted since it was read, except in a bucket (see below). Versions restart when a node is
    deleted and created again, so each multi also requires *a node below the resource* that existed
    when it was read. A node with children cannot be deleted and no name below a resource is used
    twice, so it is still the same resource. If there is none, the multi deletes the resource, which
    succeeds only while it has no children, and creates it again. The document and the names of its
    children are two reads; if their `czxid` differs, the resource was replaced between them and is
    read again.
  - *The acting session's node at version 0.* Ending a session sets that node, so from then on the
    session can do nothing, and be granted nothing, even before its client knows.
  - *The node of each heir, and its session's.* A dead heir fails the multi; the next one is tried.
  - *The base of tokens*, if a token is allocated.

Dead entries are not checked: a holder that is gone only makes room.

**Optimistic commands.** Because every multi checks what it relies on, an enter or a leave assumes
that the document is as this process last wrote or read it, and an enter that there is none if it
left none. So taking a free lock, releasing it and handing it over cost one write each. If the
assumption is wrong, the step reads the current state. A reply without a write, such as that to a
claim that does not wait, never rests on an assumption.

**Turns.** The callers of one client change a document one after the other (`derived/turns.py`), so
each of them finds it as the one before left it and they do not conflict.

**Long queues.** A document has a *window*, the first waiting claims. Further claims wait in
*buckets*: containers whose children are the claims, named by their ranks. The document lists the
buckets, each with the rank where it starts. A claim that joins a bucket creates its node and checks
that the bucket is open (data version 0); it does not touch the document, so it conflicts neither
with other claims that join nor with a hand-over. A claim that gives up in a bucket deletes its node
and only checks that the document is unchanged. Four rules make this safe:

  - *A bucket is listed as long as it is open.* The multi that creates it lists it, and the multi
    that removes it from the list was planned after it was sealed.
  - *A claim in a bucket never has a lower rank than the bucket's start*, which is fixed when the
    bucket is opened and only rises with the claims that are moved. So a claim in the window that
    is ahead of all starts can be granted without reading a bucket: nobody who joined one can be
    ahead of it. Claims with a lower rank, those with priority, enter the document.
  - *A bucket is sealed before it is read for a decision.* Sealing sets the node, so no claim can
    join any more; what is read afterwards is everything. The first claims, as many as the window
    holds, move into the document in the multi that grants. They keep their nodes.
  - *The window is refilled before the queue counts as empty*: the table sees a bucket as at least
    one waiting claim. So the step that releases a lock finds every claim that has joined.

A claim that finds its bucket sealed reads the document again and joins the next bucket, which the
step that sealed the last one opens. If that step dies before its multi, the bucket is listed but
sealed: claims that join open another one, and the next hand-over moves what is in it. A hand-over
reads the document, the names in one or two buckets and one window of claims, and sixty bytes for
each further bucket of 64 claims.

A claim draws a higher rank than the names in the last bucket, so arrival order is kept. It needs a
read of the document and these names that was sent after it arrived (`Loaded.as_of`), because no
version shows who has joined. One read serves sixteen claims of the client that had arrived by
then, and no more, so that a bucket is not overfilled by clients that do not see each other's
claims. The first of them reads in its turn. Each ends its turn before it joins, since that leaves
the document as it is. So a crowd of claims costs one write each, and few reads.

**Waking.** Each session watches one node, its *bell*, which is set by any step that grants one of
its claims; the bell's content includes the token. The flight that reads the bell also reads the
document of the lock that was waited for, so that the release hands over in one write. For the same
reason the first claim that joins a queue rings the bell of a sole holder. A waiting client also
watches the sessions directly ahead, which may vanish without any step, and then settles the queue
(`wake_listener.py`).

**Requests of one link keep their order**, even across reconnections: once a session has moved,
ZooKeeper refuses what arrives from an old connection. So the next read on the same link shows
whether a request without an answer was executed, and nothing can arrive late.

**Time.** ZooKeeper ends a session that it has not heard from, and only our keep-alives count:
kazoo's pings are disabled, or a client whose keeper is stuck would hold its locks forever. A
keep-alive is a write, because a member that is cut off from the leader still answers reads. The
session timeout is a third longer than the TTL (`sessions.link_timeout_ms`). Ranks, closings and
`max_hold` use the leader's clock, as estimated from the last write of this process; a claim never
enters ahead of those it can see in the queue. The estimate is never ahead of that clock, and a
closing counts from the write that stores it, so it never ends early.

**Tokens** are `base + zxid`, where the zxid's two halves are packed into fewer bits
(`layout.Base`): they increase across an election and a roll-over of the low half. Opening a session
raises the base to the wall clock, so they also increase after an ensemble has lost its data.

**Crashes.** A client that dies before its multi is committed has done nothing; after it, its nodes
exist until its ZooKeeper session ends. An heir that is already dead when it is granted holds until
then; the claims behind it watch its session. A client that dies while it ends another session
leaves that session marked: it can do nothing, and its client closes it on noticing the mark. A
member that dies loses nothing: kazoo reconnects to another one with the same session.

**One acquire**, file by file: `wire` dispatches the command, `steps` assumes that the lock is free,
`view` presents that as rows, `plan` makes the multi with the nodes of `layout`, and `context` sends
it. If the assumption was wrong, `loading` reads the resource.

Not supported: `watch` and the log of events, because ZooKeeper keeps no history.
"""

from __future__ import annotations

from typing import Final

from lockfast.ports import Capabilities, Deliver, WakeListener, Wire
from lockfast.stores.derived.steps import SEVERAL_MAX
from lockfast.stores.forks import restart_in_children
from lockfast.stores.zookeeper.context import Context
from lockfast.stores.zookeeper.layout import Paths, Sizes
from lockfast.stores.zookeeper.links import Links
from lockfast.stores.zookeeper.transport import Network
from lockfast.stores.zookeeper.wake_listener import ZooKeeperWakeListener
from lockfast.stores.zookeeper.wire import ZooKeeperWire

_inherited: Final[list[object]] = []
"""Connections of a parent process: neither used nor closed here."""


class ZooKeeperStore:
    """A client's access to one ensemble."""

    capabilities = Capabilities(several=SEVERAL_MAX, watch=False)

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
        self.links = Links(self.context)
        restart_in_children(self)

    def start(self) -> None:
        """Begin anew in a forked child."""
        _inherited.append((self.context.own, self.links.common_link))
        self.context.start()
        self.links.start()

    def caller_wire(self) -> Wire:
        return ZooKeeperWire(self.context, self.links, self.network.caller, takes_turns=True)

    def keeper_wire(self) -> Wire:
        return ZooKeeperWire(self.context, self.links, self.network.keeper, takes_turns=False)

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        own = self.context.own.begin(session)
        return ZooKeeperWakeListener(self.context, self.links, own, deliver)

    def close(self) -> None:
        self.links.close()
