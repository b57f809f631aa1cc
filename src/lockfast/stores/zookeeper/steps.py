"""Execute one command: assume or read, let the lock table decide, commit; on conflict, retry.

Most commands find what their client expects: the lock to enter is free, the lock to release is as
the last step left it. An enter or a leave therefore first lets the table decide on that assumption
and sends the result as one multi. This is safe because a multi checks everything its decision rests
on; if the assumption was wrong, the step reads the current state and continues from there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from lockfast.core import commands as c
from lockfast.core.commands import HOLDING, REVOKED, Place, Reply, Wake
from lockfast.core.modes import MODES_OF_KIND
from lockfast.core.reasons import ALREADY_RELEASED, EXPIRED
from lockfast.core.rows import Claim, Session, arrival_of, entered_of
from lockfast.core.table import Limits, Table
from lockfast.errors import AccessDeniedError, StoreUnavailableError
from lockfast.stores.zookeeper import layout as k
from lockfast.stores.zookeeper.layout import Base, Entry, Paths
from lockfast.stores.zookeeper.owned import OwnClaim, OwnSession, OwnSessions
from lockfast.stores.zookeeper.plan import Plan, Planner, Sizes
from lockfast.stores.zookeeper.transport import (
    BAD_VERSION,
    NO_AUTH,
    NO_NODE,
    NODE_EXISTS,
    NOT_EMPTY,
    Answer,
    Check,
    Children,
    Create,
    Exists,
    Flight,
    Get,
    Link,
    LinkLostError,
    Multi,
    Network,
    Request,
    Set,
    Stat,
    Sync,
)
from lockfast.stores.zookeeper.view import ClaimId, Instant, Loaded, Missing, Name, View

SEVERAL_MAX: Final = 40
LIMITS: Final = Limits(places_max=SEVERAL_MAX)
MOVES: Final = 24
"""The most claims that one multi grants; the next multi continues."""
CONFLICTS_MAX: Final = 200
PAUSE_MS_MAX: Final = 16
KNOWN_MAX: Final = 4096
READS_MAX: Final = 500
LAG_US: Final = 1_000_000
"""Raise the base of tokens when it lags this far behind the wall clock."""
OFFSET_KEPT_MS: Final = 10_000
"""How long an estimate of the leader's clock is kept although later answers show less: clocks
drift apart by about a millisecond in this time."""
CONFLICTS: Final = (NO_NODE, NODE_EXISTS, BAD_VERSION, NOT_EMPTY)

Wait: TypeAlias = Callable[[Flight, int], Awaitable[Sequence[Answer]]]


class Settle(NamedTuple):
    """Grant whatever can be granted at these resources."""

    places: tuple[Place, ...]


class Purge(NamedTuple):
    """Remove the claims of an ended session from these resources, and settle them."""

    session: str
    reason: str
    what: str
    places: tuple[Place, ...]


class Outcome(NamedTuple):
    """The result of a command."""

    reply: Reply
    wakes: Sequence[Wake] = ()
    events: Sequence[c.Event] = ()


Steppable: TypeAlias = c.Command | Settle | Purge
OF_A_SESSION: Final = (c.Enter, c.Leave, c.Convert, c.Proclaim, c.Adopt)
"""Commands that require a session that has not ended."""


class Outdated(Exception):  # not an error: the step reads the resource again
    """A resource has changed since its document was read."""


class Context:
    """State shared by all steps of one store."""

    def __init__(
        self,
        label: str,
        network: Network,
        paths: Paths,
        own: OwnSessions,
        sizes: Sizes = Sizes(),  # noqa: B008  # immutable
    ) -> None:
        self.label = label
        self.network = network
        self.paths = paths
        self.own = own
        self.sizes = sizes
        self.base: tuple[Base, int] | None = None
        """The base of tokens as last read, and its version."""
        self.zxid = 0
        """The zxid of the last answer to a write. Not the highest: if an ensemble loses its data,
        zxids begin again."""
        self.offset_ms = network.wall_us() // 1000 - network.now_ms()
        """How far the leader's clock is ahead of our monotonic clock; an estimate until the first
        write."""
        self._offset_at_ms = 0
        """When that was found."""
        self.has_heard = False
        self.known: OrderedDict[Name, Loaded] = OrderedDict()
        """Resources as our own last step left them."""
        self.busy: OrderedDict[Name, None] = OrderedDict()
        """Resources where claims of other processes were found."""
        self.seen: OrderedDict[ClaimId, tuple[Place, ...]] = OrderedDict()
        """Where claims of other processes were found, to locate them by number."""

    def instant(self) -> Instant:
        return Instant(self.network.now_ms() + self.offset_ms, self.network.wall_us())

    def heard(self, stat: Stat) -> None:
        """Record the server's clock and zxid from the answer to a write.

        The leader's clock has moved on since the write, perhaps by long if this process was
        stopped. So of recent answers the one that shows the latest time is right.
        """
        now_ms = self.network.now_ms()
        offset_ms = stat.mtime_ms - now_ms
        is_outdated = (
            not self.has_heard
            or stat.mzxid >> 32 != self.zxid >> 32  # another leader has another clock
            or now_ms - self._offset_at_ms > OFFSET_KEPT_MS
        )
        if is_outdated or offset_ms >= self.offset_ms:
            self.offset_ms, self._offset_at_ms = offset_ms, now_ms
        self.has_heard = True
        self.zxid = stat.mzxid

    def met(self, one: Loaded) -> None:
        for of, entry in one.document.entries.items():
            if self.own.get(of[0]) is None:
                remember(self.seen, of, entry.claim.places)
                remember(self.busy, (one.kind, one.name), None)


def remember(memory: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > KNOWN_MAX:
        memory.popitem(last=False)


class Requests:
    """Requests to one link within a deadline; unexpected errors are raised."""

    def __init__(
        self,
        context: Context,
        link: Link,
        wait: Wait,
        pause: Callable[[int], Awaitable[None]],
        until_ms: int,
    ) -> None:
        self.context = context
        self.link = link
        self.wait = wait
        self.pause = pause
        self.until_ms = until_ms

    def on(self, link: Link) -> Requests:
        return Requests(self.context, link, self.wait, self.pause, self.until_ms)

    async def call(self, *requests: Request) -> Sequence[Answer]:
        found: list[Answer] = []
        for at in range(0, len(requests), READS_MAX):
            found += await self.finish(self.submit(requests[at : at + READS_MAX]))
        return found

    def submit(self, requests: Sequence[Request]) -> Flight:
        """Send requests, at most READS_MAX, without waiting."""
        if self.until_ms <= self.context.network.now_ms():
            raise StoreUnavailableError(self.context.label, "there was no time left to ask it")
        return self.link.submit(requests)

    async def finish(self, flight: Flight) -> Sequence[Answer]:
        """Wait for the answers to requests that were sent."""
        left_ms = max(1, self.until_ms - self.context.network.now_ms())
        found = await self.wait(flight, left_ms)
        for answer in found:
            if answer.error == NO_AUTH:
                raise AccessDeniedError(
                    self.context.label,
                    "denied access to a node",
                    "give the user all rights below the chroot, or name the right credentials",
                )
            if answer.error and answer.error not in CONFLICTS:
                raise StoreUnavailableError(self.context.label, f"answered {answer.error}")
            for stat in answer.stats:
                if stat is not None:
                    self.context.heard(stat)
        return found


class Step:
    """The execution of one command."""

    def __init__(
        self, requests: Requests, command: Steppable, instant: Instant | None = None
    ) -> None:
        self._requests = requests
        self._context = context = requests.context
        self._paths = context.paths
        self._own = context.own
        self._command = command
        # All attempts use the same instant and the same arrival number.
        self._instant = instant or context.instant()
        self._unique = self._arrival = self._own.next_arrival(self._instant.wall_us)
        self._loaded: dict[Name, Loaded] = {}
        self._sessions: dict[str, Session | None] = {}
        """Sessions whose nodes were read, because they may have ended."""
        self._locations: dict[ClaimId, tuple[Place, ...]] = {}
        self._nodes: dict[ClaimId, str] = {}
        """The nodes of claims of other processes that were located."""
        self._sealed: set[str] = set()
        """Buckets that were found to be closed."""
        self._seals = isinstance(command, c.Enter | c.Leave | Settle | Purge)
        """Whether a bucket is sealed before it is read, because the document will be written."""
        self.reads_all = isinstance(command, c.Claims)
        """Whether all claims in buckets are read."""
        self._conflicts = 0
        self._met: OwnClaim | None = None
        """The claim that the command is about, as its session knew it initially."""
        self._lag_ms = 0
        self.unsettled: list[Place] = []
        """Resources where more can be granted than fits into one multi."""

    @property
    def is_closed(self) -> bool:
        """Whether a resource was closed and no step has opened it."""
        return any(one.document.closed_ms for one in self._loaded.values())

    async def run(self) -> Outcome:
        """Execute the command in one multi.

        Raises StoreUnavailableError only if the command was certainly not executed.
        """
        await self._begin()
        while True:
            if not is_consistent(self._loaded):
                await self._load(list(self._loaded), fresh=True)
                await self._conflict()
                continue
            view = self._view()
            try:
                reply, wakes = self._decide(view)
            except Missing as missing:
                await self._read_on(missing)
                continue
            assert self._context.base is not None
            if self._context.base[0].is_outgrown(self._context.zxid):
                await raise_base(self._requests, None)
            planner = Planner(
                view, self._paths, self._own, self._context.base, self._instant,
                self._unique, self._context.sizes, self._sealed, self._conflicts,
            )  # fmt: skip
            tidies = isinstance(self._command, Settle | Purge | c.Enter | c.Leave)
            try:
                plan = planner.plan(self._acting(), wakes, tidies=tidies)
            except Missing as missing:
                await self._read_on(missing)
                continue
            if not plan.operations:
                reply = await self._checked(reply)
                self._settled(view, plan, reply)
                return Outcome(reply, wakes, view.logged)
            outcome = await self._commit(view, plan, reply, wakes)
            if outcome is not None:
                return outcome
            await self._conflict()

    async def _checked(self, reply: Reply) -> Reply:
        """Return a reply that rests on reads only, or Ended if another client ended the session."""
        session = getattr(self._command, "session", "")
        if not isinstance(reply, c.Gone | c.ClaimsReply) or self._own.get(session) is None:
            return reply
        (node,) = await self._requests.call(Exists(self._paths.session(session)))
        if node.stat is None or node.stat.version:
            await self._read_session(session)
        own = self._own.get(session)
        if own is None or not own.ended:
            return reply
        return c.Ended(own.ended, own.by)

    def _acting(self) -> str:
        """Return the session that must not have ended when the command is executed."""
        if not isinstance(self._command, OF_A_SESSION):
            return ""
        return self._command.session

    # ── reading ──────────────────────────────────────────────────────────────────────

    async def _begin(self) -> None:
        """Assume the state that the command will find, or read it."""
        if self._context.base is None:
            await read_base(self._requests)
        command, known, busy = self._command, self._context.known, self._context.busy
        names = self._names()
        own = self._own.get(getattr(command, "session", ""))
        if isinstance(command, c.Look | c.Claims) and (own is None or own.row is None):
            found = await read_session(self._requests, command.session, self._instant)
            self._sessions[command.session] = found
            if isinstance(command, c.Claims):
                # Of another client: only the resources say where it has claims.
                names = [
                    (one.kind, one.name)
                    for one in await load_all(self._requests)
                    if any(session == command.session for session, _ in one.document.entries)
                ]
        is_known = own is not None and own.is_used(getattr(command, "n", 0))
        # Before anything is read: a read does not show an enter that is sent after it.
        n = getattr(command, "n", 0)
        self._met, is_doubted = own.known(n) if own is not None else (None, False)
        if isinstance(command, c.Enter):
            if not is_known and not any(name in busy for name in names):
                for name in names:
                    self._loaded[name] = self._absent(name)
                return
        elif (
            isinstance(command, c.Leave)
            and not is_doubted
            and all(
                name in known and (command.session, command.n) in known[name].document.entries
                for name in names
            )
        ):
            for name in names:
                self._loaded[name] = known[name].copy()
            return
        await self._load(names, fresh=isinstance(command, c.Inspect | Settle | Purge))
        if own is not None and self._met is not None and is_doubted:
            await self._resolve_doubt(own, n, self._met)

    async def _resolve_doubt(self, own: OwnSession, n: int, claim: OwnClaim) -> None:
        """Determine whether an enter without a reply was executed."""
        path = f"{self._paths.resource(*claim.places[0][:2])}/{claim.node}"
        (node,) = await self._requests.call(Exists(path))
        if node.stat is not None:
            own.saw(n)
        else:
            own.undoubt(n, claim)

    def _names(self) -> list[Name]:
        """Return the resources that the command certainly concerns."""
        command = self._command
        own = self._own.get(getattr(command, "session", ""))
        places: list[Any] = []
        if not isinstance(command, c.Leave):
            places += list(getattr(command, "places", ()))[:SEVERAL_MAX]
        if isinstance(command, c.Inspect | c.Resize):
            places.append(command)
        numbers = command.waiting if isinstance(command, c.Renew) else [getattr(command, "n", 0)]
        if isinstance(command, c.Claims) and own is not None:
            numbers = list(own.claims)
        for n in numbers:
            claim = own.claims.get(n) if own is not None else None
            if claim is not None and not isinstance(command, c.Enter):
                places += claim.places
        names = [(p.kind, p.name) for p in places if p.kind in MODES_OF_KIND]
        return list(dict.fromkeys(names))

    def _absent(self, name: Name) -> Loaded:
        return Loaded(*name, self._paths.resource(*name))

    async def _load(self, names: Sequence[Name], *, fresh: bool = False) -> None:
        """Read resources, and which of the claims in their documents are alive."""
        requests: list[Request] = [Sync(self._paths.root)] if fresh else []
        for name in names:
            path = self._paths.resource(*name)
            requests += [Get(path), Children(path)]
        if not names:
            return
        answers = (await self._requests.call(*requests))[-2 * len(names) :]
        for i, name in enumerate(names):
            one = self._absent(name)
            node, below = answers[2 * i : 2 * i + 2]
            while is_replaced(node, below):
                node, below = await self._requests.call(Get(one.path), Children(one.path))
            if node.stat is not None and not below.error:
                one.exists, one.version = True, node.stat.version
                one.children = frozenset(below.children)
                one.document = k.document_from(self._context.label, node.data, node.stat)
            if isinstance(self._command, c.Enter) and one.document.buckets and not fresh:
                # An outdated read would not show who has joined: this claim could overtake them.
                await self._load(names, fresh=True)
                return
            try:
                await self._part(one)
                await self._read_buckets(one)
            except Outdated:
                await self._load([name], fresh=True)
                continue
            self._loaded[name] = one
            self._context.met(one)

    async def _read_buckets(self, one: Loaded) -> None:
        """Read from the buckets of a resource what the command always needs."""
        command, buckets = self._command, one.document.buckets
        if not buckets:
            return
        if self.reads_all:
            while buckets:
                await refill(self._requests, one, self._is_over, seals=False)
        elif isinstance(command, c.Inspect):
            answers = await self._requests.call(
                *(Children(f"{one.path}/{bucket.node}") for bucket in buckets)
            )
            for bucket, answer in zip(buckets, answers, strict=True):
                one.counts[bucket.name] = sum(node >= bucket.start for node in answer.children)
        elif isinstance(command, c.Enter):
            (answer,) = await self._requests.call(Children(f"{one.path}/{buckets[-1].node}"))
            one.last = max([buckets[-1].start, *answer.children])
            one.last_count = len(answer.children)

    async def _part(self, one: Loaded) -> None:
        """Separate live entries from dead ones, and find revoked claims."""
        entries = one.document.entries
        buckets = sorted({entry.bucket for entry in entries.values() if entry.bucket})
        alive = set(one.children)
        requests: list[Request] = [Children(f"{one.path}/q{bucket}") for bucket in buckets]
        own = self._not_found(one)
        requests += [Get(f"{one.path}/{node}") for node in own.values()]
        answers = await self._requests.call(*requests) if requests else ()
        for bucket, answer in zip(buckets, answers, strict=False):
            alive |= {f"q{bucket}/{node}" for node in answer.children}
        for (of, node), answer in zip(own.items(), answers[len(buckets) :], strict=True):
            taken = k.taken_from(answer.data)
            if taken is not None:
                one.taken[of] = (taken, node)
        for of, entry in list(entries.items()):
            is_over = self._is_over(of[0]) and not isinstance(self._command, Purge)
            if entry.node not in alive or is_over:
                one.dead.append(entries.pop(of))

    def _is_over(self, session: str) -> bool:
        """Return whether a session is known to have ended."""
        if isinstance(self._command, Purge) and session == self._command.session:
            return True
        found = self._sessions.get(session, False)
        return found is None or (isinstance(found, Session) and bool(found.ended))

    def _not_found(self, one: Loaded) -> dict[ClaimId, str]:
        """Return claims that the command concerns and the document lacks, with their nodes."""
        command = self._command
        session = getattr(command, "session", "")
        own = self._own.get(session)
        found: dict[ClaimId, str] = {}
        numbers = [getattr(command, "n", 0)]
        if isinstance(command, c.Claims) and own is not None:
            numbers = list(own.claims)
        for n in numbers:
            of = (session, n)
            if n and of not in one.document.entries:
                claim = own.claims.get(n) if own is not None else None
                if claim is None:
                    if k.place_node(*of) in one.children:
                        found[of] = k.place_node(*of)
                elif claim.places[0][:2] == (one.kind, one.name):
                    found[of] = claim.node
        return found

    async def _read_on(self, missing: Missing) -> None:
        if missing.resource is not None:
            await self._load([missing.resource])
        if missing.seal is not None:
            self._seals = True
            await self._load([missing.seal])
        if missing.refill is not None:
            try:
                await self._read_bucket(missing, self._loaded[missing.refill])
            except Outdated:
                await self._load([missing.refill], fresh=True)
        if missing.claim is not None:
            await self._locate(missing.claim)

    async def _read_bucket(self, missing: Missing, one: Loaded) -> None:
        requests, of = self._requests, missing.of
        peeks = isinstance(self._command, c.Look | c.Leave)
        if of is not None and peeks and of not in one.peeked:
            await peek(requests, one, missing.bucket, of, self._is_over)
        else:
            await refill(requests, one, self._is_over, missing.bucket, of, seals=self._seals)

    async def _locate(self, of: ClaimId) -> None:
        """Find a claim of another process: where it was last seen, or else anywhere."""
        places = self._context.seen.get(of, ())
        if places:
            self._locations[of] = places
            await self._load([places[0][:2]])
            if of in self._loaded[places[0][:2]].document.entries:
                return
        self._locations[of] = ()
        for one in await load_all(self._requests):
            if of in one.document.entries:
                self._locations[of] = one.document.entries[of].claim.places
                self._nodes[of] = one.document.entries[of].node

    def _view(self) -> View:
        return View(
            self._loaded, self._own, self._sessions, self._locations, self._nodes, self._instant,
            self._arrival,
        )  # fmt: skip

    # ── deciding ─────────────────────────────────────────────────────────────────────

    def _decide(self, view: View) -> tuple[Reply, list[Wake]]:
        now_ms, wall_us, _ = self._instant
        table = Table(view, LIMITS)
        table.moves_left = MOVES
        command = self._command
        if isinstance(command, Purge):
            return self._purge(view, table, command)
        if isinstance(command, Settle) or (isinstance(command, c.Look) and self._instant.by_server):
            table.begin(now_ms, wall_us)
            if now_ms >= table.meta.due_ms:
                table._reap()
            places: Sequence[Place] = ()
            if isinstance(command, Settle):
                places = command.places
            else:
                claim = table.claim(command.session, command.n)
                if claim is not None and claim.state != REVOKED:
                    places = claim.places
            table.settle(places)
            reply: Reply = table.look(command) if isinstance(command, c.Look) else c.Done()
            table.flush()
            mine = (getattr(command, "session", ""), getattr(command, "n", 0))
            wakes = [wake for wake in table.wakes if (wake.session, wake.n) != mine]
        else:
            if isinstance(command, c.Enter):
                command = self._behind(view, command)
            reply, wakes = table.apply(command, now_ms, wall_us)
            if self._lag_ms and isinstance(command, c.Enter):
                entered = view.claims().get((command.session, command.n))
                if entered is not None:
                    entered.entered_ms += self._lag_ms
        self.unsettled = [Place(row.kind, row.name, "") for row in table.unsettled]
        return reply, wakes

    def _behind(self, view: View, command: c.Enter) -> c.Enter:
        """Make a claim enter behind all claims in the queue, even if our clock lags."""
        entries = [e for one in self._loaded.values() for e in one.document.entries.values()]
        if not entries or (command.session, command.n) in view.before:
            return command
        latest = max(entry.claim.entered_ms for entry in entries)
        lasts = [one.last for one in self._loaded.values() if one.last]
        latest = max([latest, *map(entered_of, lasts)])
        self._lag_ms = max(self._lag_ms, latest - self._instant.now_ms, 0)
        last = max(arrival_of(rank) for rank in [*(e.claim.rank for e in entries), *lasts])
        if last >= self._arrival:
            self._arrival = last + 1
            view.place_at(self._arrival)
        return command._replace(head_start_ms=command.head_start_ms - self._lag_ms)

    def _purge(self, view: View, table: Table, command: Purge) -> tuple[Reply, list[Wake]]:
        table.begin(self._instant.now_ms, self._instant.wall_us)
        places = dict.fromkeys(command.places)
        held: list[Claim] = []
        for of, claim in view.claims().items():
            if of[0] != command.session:
                continue
            if claim.state == REVOKED:
                view.delete(f"c\x1f{claim.session}\x1f{claim.n.to_bytes(8).hex()}")
                continue
            if command.what != "released" and claim.state == HOLDING:
                held.append(claim)
            table._remove(claim, command.what, command.reason)
            places.update(dict.fromkeys(claim.places))
        for claim in held:
            table._delay(claim)
        table.settle(places)
        table.flush()
        self.unsettled = [Place(row.kind, row.name, "") for row in table.unsettled]
        return c.Done(), table.wakes

    # ── committing ───────────────────────────────────────────────────────────────────

    async def _commit(
        self, view: View, plan: Plan, reply: Reply, wakes: list[Wake]
    ) -> Outcome | None:
        """Commit a plan; return the outcome, or None on conflict."""
        operations = tuple(plan.operations)
        entered = self._entered(view, plan)
        doubted: OwnClaim | None = None
        try:
            if entered is None:
                flight = self._requests.submit([Multi(operations)])
            else:
                own, n, node = entered
                # Atomically: a release of the claim either came first, which prevents the enter, or
                # finds the claim in doubt and reads after the enter on the same link.
                with own.mutex:
                    doubted = own.doubt(plan.claims[own.id, n], node)
                    if doubted is None:
                        return Outcome(c.Refused(c.WHY_FINISHED, ALREADY_RELEASED))
                    flight = self._requests.submit([Multi(operations)])
            (answer,) = await self._requests.finish(flight)
        except (StoreUnavailableError, LinkLostError):
            if entered is not None and doubted is not None:
                entered[0].undoubt(entered[1], doubted)
            raise
        if entered is not None and doubted is not None and answer.error:
            entered[0].undoubt(entered[1], doubted)
        if answer.error:
            await self._learn(operations[answer.failed])
            return None
        stat = next((stat for stat in answer.stats if stat is not None), None)
        base = self._context.base
        assert base is not None
        if plan.base is not None:
            self._context.base = plan.base

        def resolved(token: int) -> int:
            if token < k.RELATIVE:
                return token
            assert stat is not None
            return base[0].token(stat.mzxid, token - k.RELATIVE)

        for name in plan.closed:
            assert stat is not None
            plan.after[name].document.closed_ms += stat.mtime_ms - self._instant.now_ms
        if entered is not None:
            entered[0].saw(entered[1])
        for claim in plan.claims.values():
            claim.token = resolved(claim.token)
        events = [event._replace(token=resolved(event.token)) for event in view.logged]
        reply, wakes = _resolve(reply, resolved), [_resolve(wake, resolved) for wake in wakes]
        self._remember(view, plan)
        self._settled(view, plan, reply)
        deliver_all(self._own, wakes)
        return Outcome(reply, wakes, events)

    def _entered(self, view: View, plan: Plan) -> tuple[OwnSession, int, str] | None:
        """Return the claim that the multi newly stores, and its node."""
        for of, node in plan.nodes.items():
            own = self._own.get(of[0])
            if own is not None and of not in view.before:
                return own, of[1], node
        return None

    async def _learn(self, failed: Any) -> None:
        """Read again what a failed check has shown to be different."""
        path = failed.path
        for name in self._loaded:
            self._context.known.pop(name, None)
        if path == self._paths.base:
            await read_base(self._requests)
        elif path.startswith(f"{self._paths.sessions}/") and isinstance(failed, Check):
            await self._read_session(k.session_of(path.rpartition("/")[2]))
        elif isinstance(failed, Check) and failed.version == 0:
            # Only joining a bucket checks a version 0 that is not a session's.
            self._sealed.add(path.rpartition("/q")[2])
        elif path.rpartition("/")[0] == self._paths.resources and failed.path not in {
            one.path for one in self._loaded.values()
        }:
            await read_base(self._requests)
        await self._load(list(self._loaded), fresh=True)

    async def _read_session(self, session: str) -> None:
        row = await read_session(self._requests, session, self._instant)
        own = self._own.get(session)
        if own is not None and own.row is not None:
            if row is None or row.ended:
                own.abandon(row.ended if row is not None else EXPIRED, row.by if row else "")
        else:
            self._sessions[session] = row

    def _remember(self, view: View, plan: Plan) -> None:
        """Keep the state that our next step may assume."""
        for name, after in plan.after.items():
            mine = any(self._own.get(of[0]) is not None for of in after.document.entries)
            if after.exists and mine:
                remember(self._context.known, name, after)
            else:
                self._context.known.pop(name, None)
            if not after.exists:
                self._context.busy.pop(name, None)
        for of in plan.changed:
            own, claim = self._own.get(of[0]), plan.claims.get(of)
            if own is None:
                continue
            if claim is None:
                own.left(of[1])
            else:
                own.note(claim, plan.nodes.get(of) or self._node(view, of, claim))

    def _node(self, view: View, of: ClaimId, claim: Claim) -> str:
        one = view.loaded.get(claim.places[0][:2]) if claim.places else None
        entry = one.document.entries.get(of) if one is not None else None
        if entry is not None:
            return entry.node
        own = self._own.get(of[0])
        known = own.claims.get(of[1]) if own is not None else None
        return known.node if known is not None else k.place_node(*of)

    def _settled(self, view: View, plan: Plan, reply: Reply) -> None:
        """Record what the reply says about our own session and its claims."""
        command = self._command
        own = self._own.get(getattr(command, "session", ""))
        if own is None or own.row is None:
            return
        for of, claim in view.before.items():
            if of[0] == own.id and of not in plan.changed and of[1] in own.claims:
                own.note(claim, self._node(view, of, claim))
        if isinstance(command, c.Enter):
            if isinstance(reply, c.Granted | c.Queued | c.Busy):
                own.saw(command.n)
        elif isinstance(command, c.Leave) and not isinstance(reply, c.Ended):
            own.saw(command.n)
            own.left(command.n)
        is_gone = isinstance(command, c.Look) and isinstance(reply, c.Gone)
        if is_gone and (own.id, getattr(command, "n", 0)) not in view.before:
            own.missed(getattr(command, "n", 0), self._met)

    async def _conflict(self) -> None:
        self._conflicts += 1
        network = self._context.network
        if self._conflicts > CONFLICTS_MAX or network.now_ms() >= self._requests.until_ms:
            raise StoreUnavailableError(
                self._context.label,
                f"gave up after {self._conflicts} conflicting updates of this queue",
                "retry",
            )
        if self._conflicts > 2:
            bound = min(PAUSE_MS_MAX, 2 * self._conflicts)
            await self._requests.pause(1 + network.random_bits(8) % bound)


def is_replaced(node: Answer, below: Answer) -> bool:
    """Return whether a resource was deleted and created again between two reads of it.

    A node below the new resource would not prove that the document that was read is current.
    """
    return node.stat is not None and below.stat is not None and node.stat.czxid != below.stat.czxid


def is_consistent(loaded: dict[Name, Loaded]) -> bool:
    """Return whether claims on several places agree in all documents, which are read separately."""
    for one in loaded.values():
        for of, entry in one.document.entries.items():
            for place in entry.claim.places if len(entry.claim.places) > 1 else ():
                other = loaded.get(place[:2])
                if other is None or other is one:
                    continue
                copy = other.document.entries.get(of)
                if copy is None or copy.claim != entry.claim:
                    return False
    return True


def _resolve(value: Any, resolved: Callable[[int], int]) -> Any:
    """Replace relative tokens in a reply by those that the write allocated."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return resolved(value)
    if isinstance(value, tuple):
        items = [_resolve(item, resolved) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


def deliver_all(own: OwnSessions, wakes: Sequence[Wake]) -> None:
    """Wake sessions of this process; call after the commit."""
    for wake in wakes:
        session = own.get(wake.session)
        if session is not None and session.deliver is not None:
            session.deliver(wake)


async def settle(
    requests: Requests, places: Sequence[Place], instant: Instant | None = None
) -> Outcome:
    """Grant whatever can be granted, one resource at a time, in as many steps as necessary."""
    wakes: list[Wake] = []
    events: list[c.Event] = []
    left = list(dict.fromkeys(Place(place.kind, place.name, "") for place in places))
    while left:
        step = Step(requests, Settle((left.pop(0),)), instant)
        outcome = await step.run()
        wakes += outcome.wakes
        events += outcome.events
        left += step.unsettled
    return Outcome(c.Done(), wakes, events)


async def read_base(requests: Requests) -> None:
    """Read the base of tokens; create the namespace if it is new."""
    context = requests.context
    paths, label = context.paths, context.label
    while True:
        (answer,) = await requests.call(Get(paths.base))
        if not answer.error:
            assert answer.stat is not None
            context.base = (k.base_from(label, answer.data), answer.stat.version)
            return
        await make_namespace(requests)


async def raise_base(requests: Requests, instant: Instant | None, lag_us: int = LAG_US) -> None:
    """Raise the base so that tokens do not lag the wall clock, even after a loss of data."""
    context = requests.context
    while True:
        await read_base(requests)
        assert context.base is not None
        base, version = context.base
        wall_us = instant.wall_us if instant is not None else context.network.wall_us()
        raised = base.raised(context.zxid, wall_us)
        if raised.step == base.step and raised.value <= base.value + lag_us:
            return
        await requests.call(
            Multi((Set(context.paths.base, k.encode(list(raised)).encode(), version),))
        )


async def make_namespace(requests: Requests) -> None:
    paths = requests.context.paths
    above = paths.root.split("/")[1:]
    nodes = ["/" + "/".join(above[: i + 1]) for i in range(len(above))]
    creates = [Create(path) for path in (*nodes, *paths.directories)]
    await requests.call(*creates, Create(paths.base, k.encode(list(Base(0, 0))).encode()))


async def read_session(requests: Requests, session: str, instant: Instant) -> Session | None:
    """Return a session of any process as its nodes show it; None if there is none."""
    paths = requests.context.paths
    node, alive = await requests.call(Get(paths.session(session)), Get(paths.alive_of(session)))
    if node.error:
        return None
    record = k.record_from(node.data)
    renewals, renewed_ms = k.alive_from(alive.data) if not alive.error else (0, instant.now_ms)
    deadline_ms = instant.deadline_ms(renewed_ms + record.ttl_ms)
    return Session(
        session, record.ttl_ms, record.owner, record.metadata, record.inbox, record.process,
        record.opened_ms, deadline_ms, renewals, ended=record.ended, by=record.by,
    )  # fmt: skip


async def refill(
    requests: Requests,
    one: Loaded,
    is_over: Callable[[str], bool],
    name: str = "",
    of: ClaimId | None = None,
    *,
    seals: bool,
) -> None:
    """Read the claims of a bucket into the document: of the named one, or of the next.

    With `seals`, first close the bucket to further claims, and read as many claims as the window
    holds, or up to the claim `of`. Otherwise, read them all.
    """
    buckets = one.document.buckets
    bucket = next((b for b in buckets if b.name == name), min(buckets, key=lambda b: b.start))
    last, path = buckets[-1], f"{one.path}/{bucket.node}"
    is_sealed = bucket.is_sealed or seals
    # Either way, what is read is not older than the seal.
    first: Request = Set(path, b"") if seals and not bucket.is_sealed else Sync(path)
    _, below = await requests.call(first, Children(path))
    nodes = sorted(node for node in below.children if node >= bucket.start)
    claims = [k.claim_of(node) for node in nodes]
    count = len(nodes)
    if of is not None and of not in claims:
        one.missed.add(of)
    if seals:
        count = max(requests.context.sizes.window_max, claims.index(of) + 1 if of in claims else 0)
    for found in await read_entries(requests, path, nodes[:count], is_over):
        one.document.entries.setdefault((found.claim.session, found.claim.n), found)
    stays = set(claims[count:])
    one.peeked = {
        key: e for key, e in one.peeked.items() if e.bucket != bucket.name or key in stays
    }
    at = buckets.index(bucket)
    rest = nodes[count : count + 1]
    buckets[at : at + 1] = [bucket._replace(start=node, is_sealed=is_sealed) for node in rest]
    one.is_refilled = True
    one.open_reads |= not is_sealed
    if seals and bucket == last:
        one.next_start = nodes[-1] if nodes else ""
    if is_sealed and not below.children and not below.error:
        one.emptied.append(bucket.node)


async def peek(
    requests: Requests, one: Loaded, name: str, of: ClaimId, is_over: Callable[[str], bool]
) -> None:
    """Read a claim from its bucket, with the claims next to it, and leave them there."""
    bucket = next(b for b in one.document.buckets if b.name == name)
    path = f"{one.path}/{bucket.node}"
    (below,) = await requests.call(Children(path))
    nodes = sorted(node for node in below.children if node >= bucket.start)
    at = next((i for i, node in enumerate(nodes) if k.claim_of(node) == of), -1)
    near = nodes[max(0, at - 1) : at + 2] if at >= 0 else []
    found = {
        (entry.claim.session, entry.claim.n): entry
        for entry in await read_entries(requests, path, near, is_over)
    }
    if of not in found:
        one.missed.add(of)
    one.peeked.update({key: e for key, e in found.items() if key not in one.document.entries})


async def read_entries(
    requests: Requests, path: str, nodes: Sequence[str], is_over: Callable[[str], bool]
) -> list[Entry]:
    """Read claims that wait in a bucket, without those that were revoked or whose session ended.

    Raises Outdated if one of them was granted since the document was read.
    """
    entries: list[Entry] = []
    for answer in await requests.call(*(Get(f"{path}/{node}") for node in nodes)) if nodes else ():
        if not answer.error and not answer.data:
            raise Outdated
        if not answer.error and answer.data.startswith(b"["):
            entry = k.entry_from(k.decode(answer.data), Base(0, 0), 0)
            if not is_over(entry.claim.session):
                entries.append(entry)
    return entries


async def load_all(requests: Requests) -> list[Loaded]:
    """Return every resource in use, with all its claims."""
    (found,) = await requests.call(Children(requests.context.paths.resources))
    names = sorted(k.resource_of(node) for node in found.children)
    step = Step(requests, Settle(()))
    step.reads_all = True
    await step._load(names)
    return list(step._loaded.values())
