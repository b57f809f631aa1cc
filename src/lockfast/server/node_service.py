"""This server as a node of a majority: one request of one principal.

The rules of a node (`stores/quorum/node.py`) trust their clients. Here are the checks that make
this safe for clients that do not trust each other: whose session it is, which locks the principal
may use, and bounds on numbers that a node would remember for ever.

Each namespace is a separate node in a file of its own. All requests run on one worker thread, so
that checking whose session it is and using it are one step. Only one process serves a directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple, TypeVar, cast

from lockfast import __version__
from lockfast.core.codec import TOKEN_MAX
from lockfast.core.commands import WAKE_FREE, Open, Wake
from lockfast.core.names import INTERNAL, check_prefix, has_controls
from lockfast.core.reasons import CLOSED
from lockfast.core.table import Limits
from lockfast.server.checks import (
    BOUNDS_MAX_MS,
    PAGE_MAX,
    REASON_MAX,
    check_kind,
    check_lock,
    check_range,
    check_session,
    invalid,
)
from lockfast.server.problems import forbidden, over_quota
from lockfast.server.rights import ACQUIRE, READ, REVOKE
from lockfast.server.service import Caller, need, principal_in, with_principal
from lockfast.server.wakes import Hearers
from lockfast.stores.memory import wall_us
from lockfast.stores.quorum import messages as m
from lockfast.stores.quorum.sqlite import SqliteNode

NODES_MAX: Final = 1024
BOUND_MAX: Final = 100_000
"""How many sessions are cached with their principals; the node's file knows the others."""
TEXT_MAX: Final = Limits().text_max
DEFAULT_FILE: Final = "default.db"

Outcome = tuple[m.Answer, list[m.FreeWake]]
T = TypeVar("T")


class NodeOptions(NamedTuple):
    """The options of the command line."""

    directory: str
    skew_us: int
    silence_ms: int


class NodeHost:
    """The nodes of one directory, by namespace."""

    def __init__(self, options: NodeOptions) -> None:
        self._options = options
        self.began_s = monotonic()
        self._nodes: dict[str, NodeService] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="lockfast-node")

    def node(self, namespace: str) -> NodeService:
        """Return the node of a valid namespace; create its file on first use."""
        found = self._nodes.get(namespace)
        if found is None:
            if len(self._nodes) >= NODES_MAX:
                raise over_quota(f"more than {NODES_MAX} namespaces on this node")
            options = self._options
            file = f"{namespace}.db" if namespace else DEFAULT_FILE
            path = Path(options.directory, "nodes", file)
            # Nobody else serves this directory, so nobody has used the file since we started.
            idle_ms = int(1000 * (monotonic() - self.began_s))
            node = SqliteNode(path, str(path), options.skew_us, options.silence_ms, idle_ms)
            found = self._nodes[namespace] = NodeService(node, options, self._worker)
        return found

    def close(self) -> None:
        """Close the files. Sessions stay alive in them."""
        self._worker.shutdown()
        for node in self._nodes.values():
            node.close()
        self._nodes.clear()


class NodeService:
    """The node of one namespace."""

    def __init__(self, node: SqliteNode, options: NodeOptions, worker: ThreadPoolExecutor) -> None:
        self.wakes = Hearers()
        self._node = node
        self._options = options
        self._worker = worker
        self._bound: dict[str, str] = {}

    async def about(self) -> m.About:
        id_, silent_ms = await self._on_worker(lambda: _answered(self._node.identity()))
        options = self._options
        return m.About(id_, options.skew_us, options.silence_ms, silent_ms, wall_us(), __version__)

    async def execute(self, caller: Caller, request: m.Request) -> m.Answer:
        """Execute a request. Raises Problem if the principal lacks the right or exceeds a quota."""
        _validate(request, self._options.silence_ms)
        _check_quotas(caller, request)
        answer, wakes = await self._on_worker(lambda: self._execute(caller, request))
        for wake in wakes:
            self.wakes.tell(Wake(wake.inbox, wake.session, wake.n, WAKE_FREE))
        _count(caller, request, answer)
        return answer

    async def is_foreign(self, caller: Caller, session: str) -> bool:
        """Return whether a session belongs to another principal."""
        return await self._on_worker(lambda: self._is_foreign(caller, session))

    def bound(self, session: str) -> str | None:
        """Return the principal of a session if this server has cached it."""
        return self._bound.get(session)

    def close(self) -> None:
        self._node.close()

    async def _on_worker(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    # ── on the worker ────────────────────────────────────────────────────────────────

    def _execute(self, caller: Caller, request: m.Request) -> Outcome:
        if isinstance(request, m.ReadLocks | m.ReadSessions):
            return self._read(caller, request), []
        session = request.open.session if isinstance(request, m.Sync) else request.session
        if self._is_foreign(caller, session):
            return self._foreign(caller, request)
        if isinstance(request, m.Take):
            need(caller, ACQUIRE, request.name)
            opening = request.open and self._completed(caller, request.open)
            answer, wakes = self._apply(request._replace(open=opening))
            return _without_holder(caller, request, answer), wakes
        if isinstance(request, m.Give):
            self._check_release(caller, request)
        elif isinstance(request, m.Describe) and request.what == "value":
            need(caller, ACQUIRE, request.name)
        elif isinstance(request, Open):
            request = self._completed(caller, request)
        elif isinstance(request, m.Sync):
            request = self._permitted(caller, request)
        return self._apply(request)

    def _apply(self, request: m.Request) -> Outcome:
        answer, wakes = self._node.apply(request)
        if isinstance(answer, m.NoAnswer):
            raise answer.error
        return answer, wakes

    def _is_foreign(self, caller: Caller, session: str) -> bool:
        if not caller.principal:
            return False
        principal = self._bound.get(session)
        if principal is None:
            owner = _answered(self._node.owner_of(session))
            if owner is None:
                return False
            principal = principal_in(owner)
            self._bind(session, principal)
        return principal != caller.principal

    def _bind(self, session: str, principal: str) -> None:
        if len(self._bound) >= BOUND_MAX:
            self._bound.clear()
        self._bound[session] = principal

    def _completed(self, caller: Caller, opening: Open) -> Open:
        """Replace the fields that no client may choose."""
        opening = opening._replace(inbox=opening.session, process="")
        if not caller.principal:
            return opening
        return opening._replace(owner=with_principal(opening.owner, caller.principal))

    def _foreign(self, caller: Caller, request: m.Request) -> Outcome:
        """Answer a request about the session of another principal."""
        if isinstance(request, m.End):
            if request.reason == CLOSED:
                raise forbidden("only its own client closes a session; give another reason")
            held = self._claims_of(request.session)
            names = [claim.name for claim in held.claims]
            if not caller.rights.everything and not (
                names and all(caller.rights.allow(REVOKE, name) for name in names)
            ):
                raise forbidden(f"{caller.principal} may not revoke all locks of this session")
            return self._apply(request)
        if isinstance(request, m.ReadClaims):
            held = self._claims_of(request.session)
            shown = tuple(c for c in held.claims if caller.rights.allow(READ, c.name))
            return held._replace(claims=shown), []
        kind: Any = m.ANSWERS[type(request)]
        return cast("m.Answer", kind(m.UNKNOWN)), []

    def _claims_of(self, session: str) -> m.SessionClaims:
        answer, _ = self._apply(m.ReadClaims(session))
        assert isinstance(answer, m.SessionClaims)
        return answer

    def _check_release(self, caller: Caller, request: m.Give) -> None:
        """Raise Problem unless the principal may acquire the lock, or holds it.

        A node notes a released ballot even for a lock that is not held, and refuses lower ones.
        Who holds the lock may have lost the right since then.
        """
        if caller.rights.allow(ACQUIRE, request.name):
            return
        held = {claim[:4] for claim in self._claims_of(request.session).claims}
        if request[1:5] not in held:
            need(caller, ACQUIRE, request.name)

    def _permitted(self, caller: Caller, request: m.Sync) -> m.Sync:
        """Return the request with only those claims to restore that the node may accept.

        A ballot far above the node's clock would make it refuse all others, for this lock and later
        for every lock. No majority can have accepted such a ballot, so it is not restored.
        """
        highest = wall_us() + 2 * self._options.skew_us
        claims = (
            claim._replace(
                restore=claim.restore
                and claim.ballot <= highest
                and caller.rights.allow(ACQUIRE, claim.name)
            )
            for claim in request.claims
        )
        opening = self._completed(caller, request.open)
        return m.Sync(opening, request.flight, tuple(claims))

    def _read(self, caller: Caller, request: m.ReadLocks | m.ReadSessions) -> m.Answer:
        """Return what the caller may see of a page; skip pages without anything to see."""
        while True:
            answer, _ = self._apply(request)
            if isinstance(answer, m.Locks):
                if isinstance(request, m.ReadLocks) and not request.limit:
                    return answer._replace(locks=tuple(_seen(caller, v) for v in answer.locks))
                locks = tuple(
                    view
                    for view in answer.locks
                    if INTERNAL not in view.name and caller.rights.allow(READ, view.name)
                )
                if locks or not answer.more:
                    return answer._replace(locks=locks)
                request = request._replace(after=answer.locks[-1].name, limit=PAGE_MAX)
            else:
                assert isinstance(answer, m.NodeSessions)
                sessions = tuple(view for view in answer.sessions if _owns(caller, view))
                if sessions or not answer.more:
                    return answer._replace(sessions=sessions)
                request = request._replace(after=answer.sessions[-1].session, limit=PAGE_MAX)


def _answered(answer: T | m.NoAnswer) -> T:
    if isinstance(answer, m.NoAnswer):
        raise answer.error
    return answer


def _owns(caller: Caller, view: m.NodeSession) -> bool:
    return caller.rights.everything or principal_in(view.owner) == caller.principal


def _seen(caller: Caller, view: m.LockView) -> m.LockView:
    if caller.rights.allow(READ, view.name):
        return view
    return m.LockView(view.kind, view.name, 0, 0, None)


def _without_holder(caller: Caller, request: m.Take, answer: m.Answer) -> m.Answer:
    """Hide who holds the lock from a principal that may acquire but not read."""
    if isinstance(answer, m.Taken) and not caller.rights.allow(READ, request.name):
        return answer._replace(holder=None)
    return answer


# ── quotas ───────────────────────────────────────────────────────────────────────────


def _check_quotas(caller: Caller, request: m.Request) -> None:
    if isinstance(request, m.Take | m.Sync) and request.open is not None:
        caller.usage.may_open(request.open.session)
    elif isinstance(request, Open):
        caller.usage.may_open(request.session)
    if isinstance(request, m.Take):
        caller.usage.may_enter(request.session, request.n)
    elif isinstance(request, m.Sync) and len(request.claims) > caller.usage.quotas.claims:
        raise over_quota(f"more than {caller.usage.quotas.claims} claims")


def _count(caller: Caller, request: m.Request, answer: m.Answer) -> None:
    usage = caller.usage
    if isinstance(answer, m.Locks | m.NodeSessions):
        return
    opening = request if isinstance(request, Open) else getattr(request, "open", None)
    if opening is not None and answer.status not in (m.UNKNOWN, m.ENDED):
        usage.opened(opening.session, opening.ttl_ms)
    if answer.status == m.OK:
        if isinstance(request, m.Take):
            usage.entered(request.session, request.n, (request.name,), False)
        elif isinstance(request, m.Keep):
            usage.renewed(request.session)
        elif isinstance(request, m.Sync) and isinstance(answer, m.SessionClaims):
            for claim in answer.claims:
                usage.entered(request.open.session, claim.n, (claim.name,), False)
    if isinstance(request, m.Give):
        usage.left(request.session, request.n)
    elif isinstance(request, m.End) or (
        isinstance(request, m.Keep) and answer.status in (m.UNKNOWN, m.ENDED)
    ):
        usage.ended(request.session)


# ── validation ───────────────────────────────────────────────────────────────────────


def _validate(request: m.Request, silence_ms: int) -> None:
    """Repeat every check that a client makes. Raises Problem or InvalidNameError."""
    if isinstance(request, m.Sync):
        _validate_open(request.open, silence_ms)
        check_range("flight", request.flight, 0, TOKEN_MAX)
        for claim in request.claims:
            _validate_ballot(claim.kind, claim.name, claim.ballot)
            _validate_texts(actor=claim.actor, value=claim.value)
            check_range("lock_delay_ms", claim.lock_delay_ms, 0, BOUNDS_MAX_MS)
    elif isinstance(request, m.ReadLocks):
        check_kind(request.kind)
        check_range("limit", request.limit, 0, PAGE_MAX)
        if request.limit:
            check_prefix(request.name)
            check_prefix(request.after)
        else:
            check_lock(request.kind, request.name)
    elif isinstance(request, m.ReadSessions):
        check_range("limit", request.limit, 1, PAGE_MAX)
    elif isinstance(request, Open):
        _validate_open(request, silence_ms)
    else:
        check_session(request.session)
        if isinstance(request, m.Take | m.Give | m.Describe):
            _validate_ballot(request.kind, request.name, request.ballot)
        _validate_rest(request, silence_ms)


def _validate_rest(request: m.Request, silence_ms: int) -> None:
    if isinstance(request, m.Take):
        _validate_texts(actor=request.actor, value=request.value)
        for name in ("max_hold_ms", "lock_delay_ms", "window_ms"):
            check_range(name, getattr(request, name), 0, BOUNDS_MAX_MS)
        for name in ("since_us", "flight"):
            check_range(name, getattr(request, name), 0, TOKEN_MAX)
        if request.open is not None:
            _validate_open(request.open, silence_ms)
            if request.open.session != request.session:
                raise invalid("open.session has to be the session of the claim")
    elif isinstance(request, m.Give):
        check_range("close_ms", request.close_ms, 0, BOUNDS_MAX_MS)
    elif isinstance(request, m.Describe):
        if request.what not in ("actor", "value"):
            raise invalid("what is either actor or value")
        _validate_texts(text=request.text)
    elif isinstance(request, m.End) and not 0 < len(request.reason.encode()) <= REASON_MAX:
        raise invalid(f"reason has 1 to {REASON_MAX} bytes")


def _validate_open(opening: Open, silence_ms: int) -> None:
    check_session(opening.session)
    # A node that lost its file refuses ballots for this long only.
    check_range("ttl_ms", opening.ttl_ms, 1, silence_ms)
    _validate_texts(owner=opening.owner, metadata=opening.metadata)
    if has_controls(opening.owner):
        raise invalid("owner must not have control characters")


def _validate_ballot(kind: str, name: str, ballot: int) -> None:
    check_kind(kind)
    check_lock(kind, name)
    check_range("ballot", ballot, 1, TOKEN_MAX)


def _validate_texts(**texts: str | None) -> None:
    for name, text in texts.items():
        if text is not None and len(text.encode()) > TEXT_MAX:
            raise invalid(f"{name} has at most {TEXT_MAX} bytes")
