"""Execute one command: assume or read, let the lock table decide, commit; on conflict, retry.

An enter or a leave first assumes that a resource is as this process last knew it, and an enter that
it is free if the process knows nothing of it. This is safe because the multi checks everything the
decision rests on. If the assumption was wrong, the step reads the current state and continues from
there. A reply without a write, such as that to a claim that does not wait, never rests on an
assumption.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from lockfast.core import commands as c
from lockfast.core.commands import HOLDING, Place, Reply, Wake
from lockfast.core.modes import MODES_OF_KIND
from lockfast.core.reasons import ALREADY_RELEASED
from lockfast.core.rows import entered_of
from lockfast.core.table import Table
from lockfast.errors import StoreError, StoreUnavailableError
from lockfast.stores.derived import steps
from lockfast.stores.derived.steps import (
    LIMITS,
    SEVERAL_MAX,
    Conflicts,
    Outcome,
    Settle,
    lag_ms,
)
from lockfast.stores.derived.stored import resolved
from lockfast.stores.derived.view import Name
from lockfast.stores.zookeeper import entries
from lockfast.stores.zookeeper import layout as k
from lockfast.stores.zookeeper.context import (
    Requests,
    raise_base,
    read_base,
    read_session,
    remember,
)
from lockfast.stores.zookeeper.loaded import Loaded
from lockfast.stores.zookeeper.loading import (
    Loader,
    Missing,
    Purge,
    Steppable,
    is_consistent,
    load_all,
    numbers_in,
)
from lockfast.stores.zookeeper.owned import OwnClaim, OwnSession
from lockfast.stores.zookeeper.plan import Plan
from lockfast.stores.zookeeper.transport import (
    Answer,
    Check,
    Children,
    Create,
    Exists,
    LinkLostError,
    Multi,
    Operation,
)
from lockfast.stores.zookeeper.view import View

MOVES: Final = 24
"""The most claims that one multi grants; the next multi continues."""
REQUEST_MAX: Final = 1_000_000
"""The largest multi, in bytes. A server cuts the connection of a client that sends it more than
its `jute.maxbuffer`, 1 MiB by default."""
ROOM: Final = 100_000
"""Claims enter and are granted only while this much of it is left: for a window of claims that the
next step may have to read, with their texts."""
OPERATION_SIZE: Final = 80
"""How many bytes an operation adds to its path and data, at most."""
WRITTEN_MS: Final = 20
"""How long a resource that other clients use is assumed to be as we last knew it. A worker that
releases a lock often asks for it again immediately."""
SEEN_MS: Final = 1000
"""How long claims join a bucket without reading the resource. Its holder may have died since; then
the lock is handed over only when a claim in the queue looks at it."""
TAKES_TURN: Final = (c.Enter, c.Leave, c.Convert)
"""Commands that usually change a document, so they take their turn before they read it."""
OF_A_SESSION: Final = (c.Enter, c.Leave, c.Convert, c.Proclaim, c.Adopt)
"""Commands that require a session that has not ended."""


class Step:
    """The execution of one command."""

    def __init__(self, requests: Requests, command: Steppable, given: Loaded | None = None) -> None:
        """`given`: the resource that the command concerns, if it was read just now."""
        self._requests = requests
        self._context = context = requests.context
        self._paths = context.paths
        self._own = context.own
        self._command = command
        self._session = self._own.get(getattr(command, "session", ""))
        """The session that the command is about, if it is ours."""
        # All attempts use the same instant and the same arrival number.
        self._instant = context.instant()
        self._arrival = self._own.next_arrival(self._instant.wall_us)
        self._is_guess = False
        """Whether the state of resources is assumed, and was not read by this step."""
        self._loader = Loader(requests, command)
        self._loaded = self._loader.loaded
        self._given = given
        self._conflicts = Conflicts(
            context.label, context.network, requests.pause, requests.until_ms,
            requests.turn(self._names(), goes_first=isinstance(command, c.Leave)),
        )  # fmt: skip
        self._met: OwnClaim | None = None
        """The claim that the command is about, as its session knew it initially."""
        self._lag_ms = 0
        self._moves = MOVES
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
        try:
            return await self._run()
        finally:
            try:
                self._conflicts.over()
            except BaseException:
                self._conflicts.over()  # it was interrupted
                raise

    async def _run(self) -> Outcome:
        if isinstance(self._command, TAKES_TURN):
            await self._conflicts.take_turn()
        await self._begin()
        while True:
            if not is_consistent(self._loaded):
                await self._conflicts.another()
                await self._load()
                continue
            assert self._context.base is not None
            if self._context.base[0].is_outgrown(self._context.zxid):
                await raise_base(self._requests)
            view = View(self._loader, self._own, self._instant, self._arrival)
            try:
                reply, wakes = self._decide(view)
                plan = self._plan(view, wakes)
            except Missing as missing:
                await self._loader.read_on(missing)
                continue
            if self._is_too_large(size := size_of(plan.operations)):
                if self._is_guess:
                    await self._load()
                elif isinstance(self._command, c.Enter):
                    what = "the size of a queue's document in bytes"
                    return Outcome(c.Refused(c.WHY_TOO_LARGE, what, size, REQUEST_MAX - ROOM))
                elif not self._moves:
                    raise StoreError(self._context.label, "the step does not fit into one multi")
                else:
                    self._moves //= 2
                continue
            if not plan.operations and self._is_guess:
                # Nothing would be written that checks the assumption.
                await self._load()
                continue
            if not plan.operations:
                reply = await self._checked(reply)
                self._settled(view, plan, reply)
                return Outcome(reply, wakes, view.logged)
            if not plan.after:
                # The documents stay as they are, so our other steps need not wait for this one.
                if plan.joined:
                    self._context.crowd(plan.joined).sent += 1
                self._conflicts.over()
            outcome = await self._commit(view, plan, reply, [*wakes, *plan.wakes])
            if outcome is not None:
                if plan.entry % entries.TRIMMED_EVERY == entries.TRIMMED_EVERY - 1:
                    await entries.trim(self._requests, plan.base.log_number)
                return outcome
            await self._conflicts.another()
            await self._load()

    def _is_too_large(self, size: int) -> bool:
        """Return whether a multi of this size must not be sent, while the step may grant claims."""
        return size > (REQUEST_MAX - ROOM if self._moves else REQUEST_MAX)

    async def _checked(self, reply: Reply) -> Reply:
        """Return a reply that rests on reads only, or Ended if another client ended the session."""
        own = self._session
        if own is None or not isinstance(reply, c.Gone | c.ClaimsReply):
            return reply
        (node,) = await self._requests.call(Exists(self._paths.session(own.id)))
        if node.stat is None or node.stat.version:
            await self._read_session(own.id)
        return c.Ended(own.ended, own.by) if own.ended else reply

    # ── reading ──────────────────────────────────────────────────────────────────────

    async def _begin(self) -> None:
        """Assume the state that the command will find, or read it."""
        if self._context.base is None:
            await read_base(self._requests)
        if self._given is not None:
            self._loader.assume(self._given)
            return
        command, own = self._command, self._session
        names = self._names()
        if isinstance(command, c.Look | c.Claims) and own is None:
            found = await read_session(self._requests, command.session)
            self._loader.sessions[command.session] = found
            if isinstance(command, c.Claims):
                # Of another client: only the resources say where it has claims.
                for one in await load_all(self._requests):
                    if any(session == command.session for session, _ in one.document.entries):
                        self._loader.assume(one)
                return
        # Before anything is read: a read does not show an enter that is sent after it.
        n = getattr(command, "n", 0)
        if isinstance(command, c.Leave) and own is not None:
            own.finish(n)
        self._met, is_doubted = own.known(n) if own is not None else (None, False)
        assumed = self._assumed(names, is_doubted=is_doubted)
        self._is_guess = bool(assumed)
        for one in assumed:
            self._loader.assume(one.copy())
        if not assumed:
            fresh = isinstance(command, c.Inspect | Settle | Purge)
            await self._loader.load(names, fresh=fresh)
        if own is not None and self._met is not None and is_doubted:
            await self._resolve_doubt(own, n, self._met)

    def _assumed(self, names: Sequence[Name], *, is_doubted: bool) -> list[Loaded]:
        """Return resources as we last knew them, or as free ones; none if they have to be read."""
        command, own = self._command, self._session
        known = [self._context.known.get(name) or self._loader.absent(name) for name in names]
        if isinstance(command, c.Enter) and own is not None and not own.is_used(command.n):
            return known if all(self._may_enter(one, command) for one in known) else []
        if isinstance(command, c.Leave) and own and self._met and not is_doubted:
            entries = [one.document.entries.get((own.id, command.n)) for one in known]
            # If the tokens differ, another client has granted the claim since.
            if all(entry and entry.claim.token == self._met.token for entry in entries):
                return known
        return []

    def _may_enter(self, one: Loaded, command: c.Enter) -> bool:
        """Return whether a claim may enter a resource before we read it again.

        To join a bucket, it is enough to have known of it lately: the server numbers the claims
        that join, and refuses those that come too late.
        """
        bucket, lately_ms = one.bucket_for(command.head_start_ms), WRITTEN_MS
        if bucket is not None:
            crowd, sizes = self._context.crowd(bucket.node), self._context.sizes
            if crowd.is_full(sizes) or crowd.sent >= sizes.joins_per_read:
                return False
            lately_ms = SEEN_MS
        is_recent = self._context.network.now_ms() <= one.seen_ms + lately_ms
        return is_recent or not one.is_shared(self._own)

    async def _load(self) -> None:
        """Read again what the step has read or assumed."""
        self._is_guess = False
        await self._loader.load(list(self._loaded), fresh=True)

    async def _resolve_doubt(self, own: OwnSession, n: int, claim: OwnClaim) -> None:
        """Determine whether an enter without a reply was executed."""
        path = f"{self._paths.resource(*claim.places[0][:2])}/{claim.node}"
        above, _, name = path.rpartition("/")
        (below,) = await self._requests.call(Children(above))
        lacks_number = name.endswith(".")
        found = [
            node
            for node in below.children
            if node == name or (lacks_number and node.startswith(name))
        ]
        if not found:
            own.undoubt(n, claim)
            return
        own.saw(n)
        if lacks_number:
            own.numbered(n, found[0])

    def _names(self) -> list[Name]:
        """Return the resources that the command certainly concerns."""
        command, own = self._command, self._session
        places: list[Any] = []
        if not isinstance(command, c.Leave):
            places += list(getattr(command, "places", ()))[:SEVERAL_MAX]
        if isinstance(command, c.Inspect | c.Resize):
            places.append(command)
        if own is not None and not isinstance(command, c.Enter):
            claims = map(own.claims.get, numbers_in(command, own))
            places += [place for claim in claims if claim is not None for place in claim.places]
        names = [(p.kind, p.name) for p in places if p.kind in MODES_OF_KIND]
        return list(dict.fromkeys(names))

    # ── deciding ─────────────────────────────────────────────────────────────────────

    def _decide(self, view: View) -> tuple[Reply, list[Wake]]:
        now_ms, wall_us, _ = self._instant
        table = Table(view, LIMITS)
        table.moves_left = self._moves
        command = self._command
        if isinstance(command, Purge):
            reply, wakes = table.end_apart(
                command.session, command.what, command.reason, command.places, now_ms, wall_us
            )
        elif isinstance(command, Settle):
            reply, wakes = table.settle_apart(command.places, now_ms, wall_us)
        elif isinstance(command, c.Look) and self._instant.by_server:
            claim = table.claim(command.session, command.n)
            places = claim.places if claim is not None else ()
            reply, wakes = table.settle_apart(places, now_ms, wall_us, command)
        elif isinstance(command, c.Enter) and (command.session, command.n) not in view.before:
            self._lag_ms = max(self._lag_ms, self._lag())
            late = command._replace(head_start_ms=command.head_start_ms - self._lag_ms)
            reply, wakes = table.apply(late, now_ms, wall_us)
            entered = view.stored(command.session, command.n)
            if entered is not None:
                entered.entered_ms += self._lag_ms
        else:
            reply, wakes = table.apply(command, now_ms, wall_us)
        # Without room for another grant, the claims go on waiting.
        unsettled = table.unsettled if self._moves else []
        self.unsettled = [Place(row.kind, row.name, "") for row in unsettled]
        return self._dated(view, reply), wakes

    def _plan(self, view: View, wakes: list[Wake]) -> Plan:
        command = self._command
        acting = command.session if isinstance(command, OF_A_SESSION) else ""
        tidies = isinstance(command, Settle | Purge | c.Enter | c.Leave)
        plan = Plan(view, self._context, self._arrival)
        plan.make(acting, wakes, tidies=tidies)
        return plan

    def _dated(self, view: View, reply: Reply) -> Reply:
        """Return a reply that dates an earlier grant by the upper bound of the leader's clock.

        The holder counts its max_hold from then.
        """
        if not isinstance(reply, c.Granted) or not self._instant.by_server:
            return reply
        of = (getattr(self._command, "session", ""), getattr(self._command, "n", 0))
        before = view.before.get(of)
        if before is None or before.state != HOLDING:
            return reply
        doubt_ms = self._context.clock.doubt_ms(self._context.network.now_ms())
        return reply._replace(for_ms=reply.for_ms + doubt_ms)

    def _lag(self) -> int:
        """Return how far our clock lags behind the claims in the queues to join."""
        loaded = self._loaded.values()
        claims = [entry.claim for one in loaded for entry in one.document.entries.values()]
        others = [(claim.entered_ms, claim.rank) for claim in claims]
        buckets = [bucket for one in loaded for bucket in one.document.buckets]
        others += [(entered_of(b.start) + b.head_start_ms, b.start) for b in buckets]
        return lag_ms(others, self._instant.now_ms, self._arrival)

    # ── committing ───────────────────────────────────────────────────────────────────

    async def _commit(
        self, view: View, plan: Plan, reply: Reply, wakes: list[Wake]
    ) -> Outcome | None:
        """Commit a plan; return the outcome, or None on conflict."""
        operations = tuple(plan.operations)
        own, n = (self._session, plan.entered[1]) if plan.entered else (None, 0)
        claim = OwnClaim(plan.claims[plan.entered].places, plan.node) if plan.entered else None
        try:
            if own is None or claim is None:
                flight = self._requests.submit([Multi(operations)])
            else:
                # Atomically: a release of the claim either came first, which prevents the enter, or
                # finds the claim in doubt and reads after the enter on the same link.
                with own.mutex:
                    if own.doubt(n, claim) is None:
                        return Outcome(c.Refused(c.WHY_FINISHED, ALREADY_RELEASED))
                    flight = self._requests.submit([Multi(operations)])
            (answer,) = await self._requests.finish(flight)
        except (StoreUnavailableError, LinkLostError):
            if own is not None and claim is not None:
                own.undoubt(n, claim)
            raise
        if answer.error:
            if own is not None and claim is not None:
                own.undoubt(n, claim)
            await self._learn(operations[answer.failed])
            return None
        if own is not None:
            own.saw(n)
            if "/" in plan.node:
                own.numbered(n, answer.numbered[0])
        return self._committed(view, plan, answer, reply, wakes)

    def _committed(
        self, view: View, plan: Plan, answer: Answer, reply: Reply, wakes: list[Wake]
    ) -> Outcome:
        stat = next((stat for stat in answer.stats if stat is not None), None)
        if plan.raised is not None:
            self._context.base = plan.raised

        def token_at(position: int) -> int:
            # Not the base of the context, which another thread may have read since.
            assert stat is not None
            return plan.base.token(stat.mzxid, position)

        for name in plan.closed:
            assert stat is not None
            plan.after[name].document.closed_ms += stat.mtime_ms - self._instant.now_ms
        now_ms, _, by_server = self._instant
        for claim in plan.claims.values():
            if by_server and k.is_granted_at(claim, now_ms):
                assert stat is not None
                claim.granted_ms, claim.until_ms = k.granted_times(claim.max_hold_ms, stat)
            claim.token = resolved(claim.token, token_at)
        if plan.is_logged:
            plan.entry = entries.number_of(answer.numbered[-1])
        outcome = Outcome(
            resolved(reply, token_at),
            [resolved(wake, token_at) for wake in wakes],
            [e._replace(token=resolved(e.token, token_at)) for e in view.logged],
        )
        for name, after in plan.after.items():
            after.seen_ms = self._context.network.now_ms()
            if after.exists:
                remember(self._context.known, name, after)
            else:
                self._context.known.pop(name, None)
        self._settled(view, plan, outcome.reply)
        self._own.deliver(outcome.wakes)
        return outcome

    async def _learn(self, failed: Any) -> None:
        """Forget what a failed check has shown to be different; read it unless it is a resource."""
        path = failed.path
        for name, one in self._loaded.items():
            known = self._context.known.get(name)
            if known is not None and known.version <= one.version:
                self._context.known.pop(name, None)
        if path == self._paths.base:
            await read_base(self._requests)
        elif path.startswith(f"{self._paths.logs}/"):
            # The log was deleted by hand. No lock may depend on it.
            log = path.rpartition("/")[0]
            await self._requests.call(Create(self._paths.logs), Create(log))
        elif path.startswith(f"{self._paths.sessions}/") and isinstance(failed, Check):
            await self._read_session(k.session_of(path.rpartition("/")[2]))

    async def _read_session(self, session: str) -> None:
        row = await read_session(self._requests, session)
        own = self._own.get(session)
        if own is None:
            self._loader.sessions[session] = row
        elif row is None or row.ended:
            own.abandon(row)

    def _settled(self, view: View, plan: Plan, reply: Reply) -> None:
        """Record the state of our own claims, and what the reply says about the command's."""
        command, own = self._command, self._session
        for of in {**view.before, **plan.claims}:
            session, claim = self._own.get(of[0]), plan.claims.get(of)
            if session is None or (session is not own and of not in plan.changed):
                continue
            if claim is None:
                session.left(of[1])
            else:
                session.note(claim)
        if own is None:
            return
        if isinstance(command, c.Enter):
            if isinstance(reply, c.Granted | c.Queued | c.Busy):
                own.saw(command.n)
        elif isinstance(command, c.Leave) and not isinstance(reply, c.Ended):
            own.saw(command.n)
            own.left(command.n)
        is_gone = isinstance(command, c.Look) and isinstance(reply, c.Gone)
        if is_gone and (own.id, getattr(command, "n", 0)) not in view.before:
            own.missed(getattr(command, "n", 0), self._met)


def size_of(operations: Iterable[Operation]) -> int:
    """Return the size of a multi, or slightly more."""
    return sum(
        len(one.path.encode()) + len(getattr(one, "data", b"")) + OPERATION_SIZE
        for one in operations
    )


async def settle(requests: Requests, places: Iterable[Place]) -> Outcome:
    """Grant whatever can be granted at these resources."""
    return await steps.settle(places, lambda command: Step(requests, command))
