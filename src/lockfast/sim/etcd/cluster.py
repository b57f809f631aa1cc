"""A cluster in virtual time: members, a leader, leases that expire, watches that lag.

All members share one state, because etcd's log has one order. Members differ only in how far they
have applied it: a serializable read and a watch see no further. All other requests go through the
leader. Without a leader, requests are parked; the next election executes some of them, drops
others, and leaves the outcome of the rest unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from lockfast.sim.etcd.gateway import KEEP_ALIVE, WATCH, Gateway, is_local_read
from lockfast.sim.etcd.state import State
from lockfast.sim.etcd.watches import Watches
from lockfast.sim.etcd.wire import UNAUTHENTICATED, UNAVAILABLE, EtcdError, Json, number
from lockfast.sim.network import Network
from lockfast.sim.runtime import MS, Host

REQUEST_TIMEOUT_US: Final = 7_000 * MS
"""A member gives up a request that has not been committed after this long."""
ELECTION_US: Final = 1_000 * MS
"""A new leader adds this to every lease, for the time in which no renewal was possible."""
REVOKE_EVERY_US: Final = 500 * MS
"""How often the leader looks for leases whose TTL has expired."""
SYNC_EVERY_US: Final = 100 * MS
"""How often a member sends past events to new watches."""

Answer = Callable[[int, Json], None]
"""Takes the status and the body of a reply."""


class Request:
    """One request as a member sees it."""

    __slots__ = ("answer", "body", "headers", "host", "path")

    def __init__(
        self, host: Host, path: str, body: Json, headers: Sequence[str], answer: Answer
    ) -> None:
        self.host = host
        """The client's host."""
        self.path = path
        self.body = body
        self.headers = headers
        self.answer = answer

    def header(self, name: str) -> str:
        """Return the value of a header line; "" if it is missing."""
        for line in self.headers:
            found, _, value = line.partition(":")
            if found.strip().lower() == name:
                return value.strip()
        return ""


class Stream:
    """The open response to a watch: lines that arrive in order until the connection breaks."""

    def __init__(
        self,
        member: Member,
        host: Host,
        deliver: Callable[[Json], None],
        ended: Callable[[], None],
    ) -> None:
        self.watches = Watches(member.cluster.state.mvcc)
        self.wants_leader = False
        self._member = member
        self._host = host
        self._deliver = deliver
        self._ended = ended
        self._last_us = 0
        self._open = True

    def push(self, lines: Iterator[Json]) -> None:
        """Send lines after everything sent before."""
        for line in lines:
            if not self._open:
                return
            self._member.fill(line.get("result", {}).get("header"))
            self._carry(line)

    def _carry(self, line: Json) -> None:
        network, member = self._member.cluster.network, self._member
        if network.loses(member.host, self._host):
            # TCP retransmits a lost line until the connection counts as broken; the client learns
            # of the break at once, or only from the silence.
            self.break_off(told=network.chance(0.5))
            return
        kernel = network.kernel
        self._last_us = max(self._last_us, kernel.now + network.transit_us())
        kernel.arrive(self._last_us - kernel.now, self._host, partial(self._arrive, line))

    def _arrive(self, line: Json) -> None:
        if self._open:
            self._deliver(line)

    def fail(self, error: EtcdError) -> None:
        """End the stream with an error as its last line."""
        self.push(iter((error.line(),)))
        self.break_off(told=True)

    def break_off(self, *, told: bool) -> None:
        """End the stream; if `told`, the client learns of it after everything in flight."""
        if not self._open:
            return
        self._member.streams.pop(self, None)
        if told:
            kernel = self._host.kernel
            kernel.arrive(max(1, self._last_us - kernel.now), self._host, self._end)

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._ended()

    def close(self) -> None:
        """Close the stream at the client's request."""
        self._open = False
        self._member.streams.pop(self, None)


class Member:
    """One server of the cluster."""

    def __init__(self, cluster: Cluster, host: Host, number: int) -> None:
        self.cluster = cluster
        self.host = host
        self.number = number
        self.down = False
        self.isolated = False
        """It cannot reach the other members."""
        self.lag_us = 0
        """How long after the leader it applies a commit."""
        self.applied = cluster.state.mvcc.revision
        self.streams: dict[Stream, None] = {}
        """In the order in which they were opened."""

    def fill(self, header: Json | None) -> None:
        """Add this member's fields to a header."""
        if header is not None:
            header["cluster_id"] = "14841639068965178418"
            header["member_id"] = str(10276657743932975437 + self.number)
            header["raft_term"] = str(self.cluster.term)

    # ── requests ─────────────────────────────────────────────────────────────────────

    def receive(self, request: Request) -> None:
        """Answer a local read; propose any other request to the leader."""
        cluster = self.cluster
        try:
            cluster.check_token(request)
            if is_local_read(request.path, request.body):
                answer = cluster.gateway.read(request.path, request.body, self.applied)
                self.reply(request, 200, answer)
                return
        except EtcdError as error:
            self.reply(request, error.status, error.body())
            return
        cluster.propose(self, request)

    def reply(self, request: Request, status: int, body: Json) -> None:
        header = body.get("result", body).get("header")
        if header is not None:
            header.setdefault("revision", str(self.applied))
            self.fill(header)
        if self.lag_us and self.cluster.leader is not self:
            # A lagging follower replies only when it has applied the request.
            self.cluster.network.kernel.after(self.lag_us, partial(request.answer, status, body))
        else:
            request.answer(status, body)

    def open_stream(self, request: Request, stream: Stream, bodies: Sequence[Json]) -> None:
        """Create the watches of a stream, or fail it if it requires a leader and there is none."""
        stream.wants_leader = request.header("grpc-metadata-hasleader") == "true"
        if stream.wants_leader and not self.has_leader():
            stream.fail(no_leader())
            return
        self.streams[stream] = None
        for body in bodies:
            stream.push(stream.watches.ask(body, self.applied))
        if stream.watches.has_unsynced():
            kernel = self.cluster.network.kernel
            kernel.after(self.cluster.draw(SYNC_EVERY_US), partial(self._catch_up, stream))

    def _catch_up(self, stream: Stream) -> None:
        if stream in self.streams:
            stream.push(stream.watches.catch_up(self.applied))

    # ── what was agreed on ───────────────────────────────────────────────────────────

    def has_leader(self) -> bool:
        return self.cluster.leader is not None and not self.isolated

    def advance(self, revision: int) -> None:
        """Apply the log up to a revision, and send its events to the watches."""
        if self.down or self.isolated:
            return
        while self.applied < revision:
            self.applied += 1
            for stream in list(self.streams):
                stream.push(stream.watches.tell(self.applied))

    # ── what happens to it ───────────────────────────────────────────────────────────

    def crash(self) -> None:
        self.down = True
        for stream in list(self.streams):
            stream.break_off(told=self.cluster.network.chance(0.8))

    def start(self) -> None:
        self.down = False
        self.advance(self.cluster.state.mvcc.revision)

    def cut_off(self) -> None:
        """Separate this member from the others; clients still reach it."""
        self.isolated = True
        self.cluster.notice_no_leader(self)

    def rejoin(self) -> None:
        self.isolated = False
        self.advance(self.cluster.state.mvcc.revision)


class Cluster:
    """Several members with one leader, except during elections."""

    def __init__(
        self,
        hosts: Sequence[Host],
        network: Network,
        observe: Callable[[str, Json], None] = lambda path, answer: None,
    ) -> None:
        self.network = network
        self._observe = observe
        """Called with every executed request and its reply."""
        self.state = State()
        self.term = 2
        self._chance = hosts[0].kernel.random
        self.members = [Member(self, host, number) for number, host in enumerate(hosts)]
        self.leader: Member | None = self.members[0]
        self._clock = hosts[0].clock
        """The clock of the current leader, or of the last one."""
        self.gateway = Gateway(self.state, lambda: self._clock.local_us())
        self.gateway.on_grant = self._watch_over
        self.slow_us = 0
        """How long each request takes; requests are executed one at a time."""
        self._free_us = 0
        self.password = ""
        """The password of the user `root`; "" disables authentication."""
        self._tokens: set[str] = set()
        self._tokens_given = 0
        self._parked: list[tuple[Member, Request]] = []
        self._expiring: dict[int, list[tuple[Member, Request]]] = {}
        """Keep-alives of leases that have expired but are not yet revoked."""

    def draw(self, below: int) -> int:
        return self._chance.randrange(below)

    # ── requests ─────────────────────────────────────────────────────────────────────

    def check_token(self, request: Request) -> None:
        if not self.password:
            return
        if request.path == "/v3/auth/authenticate":
            return
        if request.header("authorization") not in self._tokens:
            raise EtcdError(UNAUTHENTICATED, "etcdserver: invalid auth token")

    def forget_tokens(self) -> None:
        """Invalidate all tokens, so that every client has to authenticate again."""
        self._tokens.clear()

    def propose(self, member: Member, request: Request) -> None:
        """Execute a request on the shared state; park it while the member has no leader."""
        if not member.has_leader():
            parked = (member, request)
            self._parked.append(parked)
            self.network.kernel.after(REQUEST_TIMEOUT_US, partial(self._give_up, parked))
        elif self.slow_us:
            self._free_us = max(self._free_us, self.network.kernel.now) + self.slow_us
            self.network.kernel.at(self._free_us, partial(self._carry_out, member, request))
        else:
            self._carry_out(member, request)

    def _give_up(self, parked: tuple[Member, Request]) -> None:
        if parked in self._parked:
            self._parked.remove(parked)
            member, request = parked
            error = timed_out()
            member.reply(request, error.status, error.body())

    def _carry_out(self, member: Member, request: Request, *, answer: bool = True) -> None:
        body = request.body
        if request.path == KEEP_ALIVE and self._is_expiring(number(body, "ID")):
            # The leader replies once it has revoked the lease.
            self._expiring[number(body, "ID")].append((member, request))
            return
        try:
            if request.path == "/v3/auth/authenticate":
                status, made = 200, self._authenticate(body)
            else:
                status, made = 200, self.gateway.call(request.path, body)
        except EtcdError as error:
            status, made = error.status, error.body()
        self._observe(f"{request.path} {request.host.name}", {"asked": body, "answered": made})
        self._spread()
        if answer:
            member.reply(request, status, made)

    def _authenticate(self, body: Json) -> Json:
        if not self.password:
            raise EtcdError(9, "etcdserver: authentication is not enabled")
        if (body.get("name"), body.get("password")) != ("root", self.password):
            raise EtcdError(3, "etcdserver: authentication failed, invalid user ID or password")
        self._tokens_given += 1
        token = f"token.{self._tokens_given}"
        self._tokens.add(token)
        return {"header": {}, "token": token}

    def _spread(self) -> None:
        """Send the latest revision to every member; lagging ones apply it later."""
        revision = self.state.mvcc.revision
        for member in self.members:
            if member.lag_us and member is not self.leader:
                self.network.kernel.after(member.lag_us, partial(member.advance, revision))
            elif member.applied < revision:
                member.advance(revision)

    def lag(self, late_us: Mapping[Member, int]) -> None:
        """Set how long after the leader each member applies commits."""
        for member in self.members:
            member.lag_us = late_us.get(member, 0)
            if not member.lag_us:
                member.advance(self.state.mvcc.revision)

    # ── leases ───────────────────────────────────────────────────────────────────────

    def _is_expiring(self, lease_id: int) -> bool:
        if lease_id not in self.state.leases or self.gateway.left_us(lease_id) > 0:
            return False
        self._expiring.setdefault(lease_id, [])
        return True

    def _watch_over(self, lease_id: int) -> None:
        """Check a lease when its TTL may have expired."""
        left_us = max(0, self.gateway.left_us(lease_id))
        wait_us = self._clock.ticks_for(left_us) + self.draw(REVOKE_EVERY_US)
        self.network.kernel.after(wait_us, partial(self._look_at, lease_id))

    def _look_at(self, lease_id: int) -> None:
        if lease_id not in self.state.leases or self.leader is None:
            return  # a new leader looks at all of them
        if self.gateway.left_us(lease_id) > 0:
            self._watch_over(lease_id)
            return
        self.state.revoke(lease_id)
        self._spread()
        for member, request in self._expiring.pop(lease_id, ()):
            answer: Json = {"result": {"header": {}, "ID": str(lease_id)}}
            member.reply(request, 200, answer)

    # ── leaders ──────────────────────────────────────────────────────────────────────

    def depose(self) -> None:
        """Remove the leader; nothing is committed until another one is elected."""
        self.leader = None
        for member in self.members:
            self.notice_no_leader(member)

    def notice_no_leader(self, member: Member) -> None:
        """End the watches that require a leader if the member has none a few elections later."""

        def end_watches() -> None:
            if member.has_leader() or member.down:
                return
            for stream in list(member.streams):
                if stream.wants_leader:
                    stream.fail(no_leader())

        self.network.kernel.after(self.draw(3 * ELECTION_US), end_watches)

    def elect(self) -> None:
        """Elect one of the reachable members, if they are a majority and there is no leader."""
        able = [member for member in self.members if not member.down and not member.isolated]
        if self.leader is not None or 2 * len(able) <= len(self.members):
            return
        self.leader = able[self.draw(len(able))]
        self.leader.applied = max(self.leader.applied, self.state.mvcc.revision)
        self._clock = self.leader.host.clock
        self.term += 1
        for lease_id in list(self.state.leases):
            self.gateway.refresh(lease_id, ELECTION_US)
            self._watch_over(lease_id)
        expiring, self._expiring = self._expiring, {}
        parked, self._parked = self._parked, []
        parked += [waiting for waits in expiring.values() for waiting in waits]
        for member, request in parked:
            self._decide(member, request)

    def _decide(self, member: Member, request: Request) -> None:
        """Draw the outcome of a request that no leader has answered."""
        if not member.has_leader():
            self.propose(member, request)
            return
        draw = self._chance.random()
        if draw < 0.6:
            self._carry_out(member, request)
            return
        if draw < 0.8:
            self._carry_out(member, request, answer=False)
        error = timed_out()
        member.reply(request, error.status, error.body())

    # ── what happens to it ───────────────────────────────────────────────────────────

    def disband(self) -> None:
        """Drop all streams and parked requests."""
        for member in self.members:
            member.streams.clear()
        self._parked.clear()
        self._expiring.clear()
        del self.gateway

    def heal(self) -> None:
        """Start and reconnect every member, bring it up to date, and elect a leader."""
        self.slow_us = 0
        self.state.no_space = False
        for member in self.members:
            member.lag_us = 0
            member.rejoin()
            member.start()
        self.elect()


def no_leader() -> EtcdError:
    return EtcdError(UNAVAILABLE, "etcdserver: no leader")


def timed_out() -> EtcdError:
    return EtcdError(
        UNAVAILABLE, "etcdserver: request timed out, possibly due to previous leader failure"
    )


__all__ = ["WATCH", "Cluster", "Member", "Request", "Stream"]
