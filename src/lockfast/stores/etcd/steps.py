"""One command: guess or read, let the lock table decide, commit if it is so; else once more.

Most commands meet what their client expects: the lock it enters is free, the lock it leaves has
the heirs it was told of. So an enter or a leave first lets the table decide on what it assumes
(`_guess`) and sends that, one request in all. A guess needs no trust, because a transaction
compares everything its decision rests on; where it is wrong, the failed transaction reads what
is so, and the step goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from lockfast.core import commands as c
from lockfast.core.commands import Reply, Wake
from lockfast.core.modes import MODES_OF_KIND
from lockfast.core.rows import Claim
from lockfast.core.table import Limits, Table
from lockfast.errors import StoreError, StoreUnavailableError
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.errors import LeaseExistsError, LeaseGoneError
from lockfast.stores.etcd.gateway import Committed, Gateway
from lockfast.stores.etcd.layout import Base
from lockfast.stores.etcd.order import lag_ms, tail_of
from lockfast.stores.etcd.owned import Location, OwnSessions
from lockfast.stores.etcd.plan import Plan, TooLargeError, make_plan
from lockfast.stores.etcd.requests import GRANT, TIME_TO_LIVE, Kv, Range
from lockfast.stores.etcd.view import WINDOW, Instant, Known, Missing, View

SEVERAL_MAX: Final = 40
LIMITS: Final = Limits(places_max=SEVERAL_MAX)
MOVES: Final = 20
"""Claims that one transaction grants; the next one goes on."""
READS_MAX: Final = 100
CONFLICTS_MAX: Final = 200
PAUSE_MS_MAX: Final = 16


class Settle(NamedTuple):
    """Grant whatever can be granted at these resources."""

    places: tuple[c.Place, ...]


class Joined(NamedTuple):
    """A claim stands in line since a moment ago: grant what can be granted, and look at it."""

    session: str
    n: int
    places: tuple[c.Place, ...]


class Outcome(NamedTuple):
    """What became of a command."""

    reply: Reply
    wakes: Sequence[Wake] = ()
    revision: int = 0


Steppable: TypeAlias = c.Command | Settle | Joined
_INEXACT: Final = (c.Leave, Settle, Joined)


class Context:
    """What the steps of one store share."""

    def __init__(self, own: OwnSessions, lease_s: Callable[[int], int]) -> None:
        self.own = own
        self.lease_s = lease_s
        """The TTL of a lease for a span of milliseconds."""
        self.remembering: tuple[int, int] | None = None
        """The lease for tombstones, and when it was granted."""
        self.base: Base | None = None
        self.base_kv = Kv(k.EPOCH_KEY, "", 0)
        """The base of tokens as last read, and as it is stored."""
        self.busy: dict[str, int] = {}
        """Resources where others were met, and how many waited there."""

    def met(self, prefix: str, waiting: int) -> None:
        if len(self.busy) > 10_000:
            self.busy.clear()
        self.busy[prefix] = waiting


class Step:
    """One command on its way."""

    def __init__(
        self,
        gateway: Gateway,
        context: Context,
        command: Steppable,
        until_ms: int,
        instant: Instant | None = None,
    ) -> None:
        self._gateway = gateway
        self._keys = gateway.keys
        self._context = context
        self._own = context.own
        self._command = command
        self._until_ms = until_ms
        wall_us = gateway.network.wall_us()
        # One instant and one place in line for all attempts, so that they read the same ranges.
        self._instant = instant or Instant(wall_us // 1000, wall_us)
        self._arrival = context.own.next_arrival(gateway.cluster.revision)
        self._wants: dict[Range, None] = {}
        """What to read, in the order in which it was found to be needed."""
        self._located: dict[tuple[str, int], Location | None] = {}
        self._windows: dict[str, int] = {}
        self._moves = MOVES
        self._places: list[tuple[str, str]] = []
        """Resources that the command surely concerns."""
        self._conflicts = 0
        self._lag_ms: int | None = None
        """Known once the tail of the line has been read; it stays, so that ranges do not change."""
        self.unsettled: list[c.Place] = []
        """Where more can be granted than one transaction could."""

    async def run(self, known: Known | None = None) -> Outcome:
        """Carry the command out in one transaction; `known` is what was read for it before.

        Raises StoreUnavailableError only if it surely was not carried out.
        """
        self._expect()
        while True:
            if known is None:
                known = await self._read()
            view = self._view(known)
            try:
                reply, wakes = self._decide(view)
                is_whole = not (view.wants or view.unlocated)
            except Missing:
                is_whole = False
            if not is_whole:
                await self._read_on(view)
                known = None
                continue
            try:
                plan = make_plan(view, wakes, self._own, self._keys, self._as_command())
                if plan.is_empty:
                    self._settled(plan, reply)
                    return Outcome(reply, wakes, known.revision)
                known, outcome = await self._commit(plan, reply)
            except TooLargeError:
                if self._moves == 1:
                    raise StoreError(
                        self._keys.label, "the step does not fit into one transaction"
                    ) from None
                self._moves //= 2
                continue
            if outcome is not None:
                return outcome
            await self._conflict()

    def _as_command(self) -> c.Command | None:
        return None if isinstance(self._command, Settle | Joined) else self._command

    # ── reading ──────────────────────────────────────────────────────────────────────

    def _expect(self) -> None:
        """What the command surely needs is read at once."""
        command = self._command
        self._want(Range(k.EPOCH_KEY))
        session = getattr(command, "session", "")
        if session:
            self._want(Range(k.session_key(session)))
            if self._is_exact():
                self._want(Range(k.alive_key(session)))
        own = self._own.get(session)
        numbers = command.waiting if isinstance(command, c.Renew) else [getattr(command, "n", 0)]
        places: list[Any] = list(getattr(command, "places", ()))[:SEVERAL_MAX]
        for n in numbers:
            if own is None or n not in own.claims:
                continue
            claim = own.claims[n].claim
            places += claim.places
            if not isinstance(command, c.Enter):
                self._want(Range(next(key for _, key in k.keys_of(claim))))
        if isinstance(command, c.Inspect | c.Resize):
            places.append(command)
        for place in places:
            if place.kind not in MODES_OF_KIND or (place.kind, place.name) in self._places:
                continue
            self._places.append((place.kind, place.name))
            prefix = k.resource_prefix(place.kind, place.name)
            if isinstance(command, c.Inspect):
                self._windows[prefix] = command.waiting_max + 32
            self._want(Range(prefix, k.end_of(prefix), self._windows.get(prefix, WINDOW)))

    def _want(self, one: Range) -> None:
        self._wants[one] = None

    async def _read(self) -> Known:
        """Everything wanted, at one revision."""
        wanted = list(self._wants)
        known = Known()
        for at in range(0, len(wanted), READS_MAX):
            part = wanted[at : at + READS_MAX]
            operations = self._keys.reads(part, known.revision)
            answer = await self._gateway.read(operations, self._until_ms)
            known.revision = known.revision or answer.revision
            for index, one in enumerate(part):
                known.learn(one, answer.found(index))
        return known

    async def _read_on(self, view: View) -> None:
        for one in sorted(view.wants):
            self._want(one)
        for of in view.unlocated:
            self._located[of] = await locate(self._gateway, *of, self._until_ms)

    def _view(self, known: Known) -> View:
        instant = self._instant
        label, kv = self._keys.label, known.kvs.get(k.EPOCH_KEY)
        base = known.parsed.get(k.EPOCH_KEY) or k.base_from(label, kv)
        if base is not None and kv is not None:
            self._context.base, self._context.base_kv = base, kv
        if base is None:
            base = Base(max(0, instant.wall_us - k.STRIDE * known.revision))
        n = getattr(self._command, "n", 0)
        view = View(known, self._own, base, instant, self._arrival, n, exact=self._is_exact())
        view.windows, view.located = self._windows, self._located
        return view

    def _is_exact(self) -> bool:
        """Whether the answer says how often those ahead were renewed."""
        command = self._command
        return not (
            command.queue if isinstance(command, c.Enter) else isinstance(command, _INEXACT)
        )

    # ── deciding ─────────────────────────────────────────────────────────────────────

    def _decide(self, view: View) -> tuple[Reply, list[Wake]]:
        now_ms, wall_us, _ = view.instant
        table = Table(view, LIMITS)
        table.moves_left = self._moves
        command = self._command
        for kind, name in self._places:
            view.resource(kind, name)
        if isinstance(command, Settle | Joined):
            reply, wakes = _settle(table, command, now_ms, wall_us)
        elif isinstance(command, c.Look) and view.has_due:
            _, wakes = _settle(table, Settle(()), now_ms, wall_us)
            reply = table.look(command)
        else:
            lag = 0
            if isinstance(command, c.Enter) and command.queue:
                lag = self._lag(view)
                command = command._replace(head_start_ms=command.head_start_ms - lag)
            reply, wakes = table.apply(command, now_ms, wall_us)
            entered = self._entered(view)
            if entered is not None:
                entered.entered_ms += lag
        self.unsettled = [c.Place(row.kind, row.name, "") for row in table.unsettled]
        return reply, wakes

    def _lag(self, view: View) -> int:
        """How far our clock is behind those who stand in the lines that are entered."""
        if self._lag_ms is None:
            kvs: list[Kv] = []
            for place in self._places:
                lines = view.resource(*place)
                tail = tail_of(lines.prefix)
                if tail in view.known.found:
                    kvs += view.known.found[tail].kvs
                elif len(lines.waiting_kvs) < lines.stored_waiting:
                    view.wants.add(tail)
                    raise Missing
                else:
                    kvs += lines.waiting_kvs
            self._lag_ms = lag_ms(kvs, self._instant.now_ms, self._arrival)
        return self._lag_ms

    def _entered(self, view: View) -> Claim | None:
        """The claim that the command stores anew."""
        command = self._command
        if not isinstance(command, c.Enter):
            return None
        of = (command.session, command.n)
        return view.claims.get(of) if view.claims_before.get(of) is None else None

    # ── committing ───────────────────────────────────────────────────────────────────

    async def _commit(self, plan: Plan, reply: Reply) -> tuple[Known | None, Outcome | None]:
        """The outcome if it was so; else what is so now."""
        leases = [await self._lease(span_ms) for span_ms in plan.spans]
        wanted = list(self._wants)
        if len(wanted) > READS_MAX:
            wanted = []
        proposal = plan.proposal(self._keys, leases, wanted)
        entered = self._doubt(plan)
        try:
            committed = await self._gateway.txn(proposal, self._until_ms)
        except LeaseGoneError:
            self._undoubt(entered)
            return None, None
        except StoreUnavailableError:
            self._undoubt(entered)
            raise
        if committed.answer.succeeded:
            if entered is not None:
                self._own.begin(entered.session).doubted.discard(entered.n)
            return None, self._committed(plan, reply, committed)
        self._undoubt(entered)
        if not wanted:
            return None, None
        known = Known()
        known.revision = committed.answer.revision
        for index, one in enumerate(wanted):
            known.learn(one, committed.answer.found(index))
        return known, None

    def _doubt(self, plan: Plan) -> Claim | None:
        """The claim that the transaction stores anew: in doubt until there is a reply."""
        claim = self._entered(plan.view)
        own = self._own.get(claim.session) if claim is not None else None
        if own is None or claim is None:
            return None
        own.doubt(claim)
        return claim

    def _undoubt(self, entered: Claim | None) -> None:
        if entered is not None:
            self._own.begin(entered.session).undoubt(entered.n)

    def _committed(self, plan: Plan, reply: Reply, committed: Committed) -> Outcome:
        revision = committed.answer.revision
        for (session, n), claim in plan.view.claims.items():
            own = self._own.get(session)
            if own is None or claim == plan.view.claims_before.get((session, n)):
                continue
            if claim is None:
                own.left(n)
            else:
                claim.token = plan.resolved(claim.token, committed)
                own.note(claim, revision, plan.heirs.get((session, n)))
        for lines in plan.view.lines.values():
            if lines.row.waiting or (lines.before is not None and lines.before.waiting):
                self._context.met(lines.prefix, lines.row.waiting)
        self._settled(plan, reply)
        resolved = plan.resolved(reply, committed)
        wakes = [plan.resolved(wake, committed) for wake in plan.wakes]
        deliver_all(self._own, wakes)
        return Outcome(resolved, wakes, revision)

    def _settled(self, plan: Plan, reply: Reply) -> None:
        """Remember what the answer says of our own session."""
        command = self._command
        own = self._own.get(getattr(command, "session", ""))
        if own is None:
            return
        if isinstance(reply, c.Ended):
            own.ended = True
        kv = plan.view.known.kvs.get(k.session_key(own.id))
        if kv is not None and own.mod < kv.mod:
            own.mod = kv.mod
        for (session, n), at in plan.view.kv_of.items():
            claim = plan.view.claims_before[session, n]
            if session == own.id and claim is not None and claim == plan.view.claims[session, n]:
                known = own.claims.get(n)
                if known is not None and n not in own.doubted and known.mod < at.mod:
                    own.note(claim, at.mod)
        if (
            isinstance(command, c.Enter) and isinstance(reply, c.Granted | c.Queued | c.Busy)
        ) or isinstance(command, c.Leave):
            own.saw(command.n)
            if isinstance(command, c.Leave) and not isinstance(reply, c.Ended):
                own.left(command.n)
        if isinstance(command, c.Renew) and isinstance(reply, c.Renewed):
            own.forget_below(command.lowest)

    async def _lease(self, span_ms: int) -> int:
        return await grant_lease(self._gateway, self._context.lease_s(span_ms), self._until_ms)

    async def _conflict(self) -> None:
        self._conflicts += 1
        network = self._gateway.network
        if self._conflicts > CONFLICTS_MAX or network.now_ms() >= self._until_ms:
            raise StoreUnavailableError(
                self._keys.label,
                f"gave up after {self._conflicts} conflicting updates of this queue",
                "retry",
            )
        if self._conflicts > 2:
            bound = min(PAUSE_MS_MAX, 2 * self._conflicts)
            await self._gateway.transport.pause(1 + network.random_bits(8) % bound)


def _settle(
    table: Table, command: Settle | Joined, now_ms: int, wall_us: int
) -> tuple[Reply, list[Wake]]:
    table.begin(now_ms, wall_us)
    if now_ms >= table.meta.due_ms:
        table._reap()
    reply: Reply = c.Done()
    if isinstance(command, Joined):
        (resource,) = (table.resource(*place[:2]) for place in command.places)
        if resource.waiting == 1:
            table._tell_retaining(resource)
    table.settle(command.places)
    if isinstance(command, Joined):
        reply = table.look(c.Look(command.session, command.n))
    table.flush()
    mine = (getattr(command, "session", ""), getattr(command, "n", 0))
    return reply, [wake for wake in table.wakes if (wake.session, wake.n) != mine]


async def settle(
    gateway: Gateway,
    context: Context,
    places: Iterable[c.Place],
    until_ms: int,
    instant: Instant | None = None,
) -> list[Wake]:
    """Grant whatever can be granted, resource by resource, in as many steps as it takes."""
    wakes: list[Wake] = []
    left = list(dict.fromkeys(c.Place(place.kind, place.name, "") for place in places))
    while left:
        step = Step(gateway, context, Settle((left.pop(0),)), until_ms, instant)
        wakes += (await step.run()).wakes
        left += step.unsettled
    return wakes


def deliver_all(own: OwnSessions, wakes: Iterable[Wake]) -> None:
    """Tell the sessions of this process, after the commit."""
    for wake in wakes:
        session = own.get(wake.session)
        if session is not None and session.deliver is not None:
            session.deliver(wake)


async def grant_lease(gateway: Gateway, ttl_s: int, until_ms: int) -> int:
    while True:
        lease = gateway.network.random_bits(62) + 1
        try:
            await gateway.call(GRANT, k.encode({"ID": str(lease), "TTL": str(ttl_s)}), until_ms)
        except LeaseExistsError:
            continue  # a retry met its own first try, or another's: take a new one
        return lease


async def keys_of_lease(gateway: Gateway, lease: int, until_ms: int) -> list[str]:
    """The keys under a lease; none if it is over."""
    try:
        reply = await gateway.call(
            TIME_TO_LIVE, k.encode({"ID": str(lease), "keys": True}), until_ms
        )
        return [gateway.keys.plain(key) for key in reply.get("keys", ())]
    except LeaseGoneError:
        return []
    except (TypeError, ValueError) as error:
        raise gateway.keys.malformed(error) from None


async def locate(gateway: Gateway, session: str, n: int, until_ms: int) -> Location | None:
    """Where a claim of any process stands: among the keys of its session's lease."""
    answer = await gateway.read(gateway.keys.reads([Range(k.session_key(session))]), until_ms)
    found = answer.found(0).kvs
    if not found:
        return None
    for key in await keys_of_lease(gateway, found[0].lease, until_ms):
        if key[:1] == "n" and key.endswith(f"\x1f{session}\x1f{n}"):
            place = k.parse_place(key)
            if place.rank:
                return Location(place.kind, place.name, place.rank)
    return None
