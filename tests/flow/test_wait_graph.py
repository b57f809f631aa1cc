"""Who waits for whom, read page by page, and sessions whose keep-alives have stopped."""

from __future__ import annotations

from lockfast.core.commands import (
    HOLDING,
    WAITING,
    Blocker,
    ClaimView,
    Command,
    Inspect,
    Listing,
    ListingReply,
    Place,
    Reply,
    ResourceView,
)
from lockfast.flow.silent_sessions import Silent, SilentSessions, just_before
from lockfast.flow.wait_graph import WaitGraph, graph_of, wait_graph
from lockfast.runtimes.threads import run


def claim(who: str, name: str, token: int = 0, wants: str = "") -> ClaimView:
    place = Place("lock", name, "shared" if wants else "exclusive")
    state = HOLDING if token else WAITING
    session = f"s-{who}"
    return ClaimView(
        session, 1, f"host-{who}", who, (place,), state, token, 0, None, 1500, 9000, wants=wants
    )


def queue(name: str, holders: tuple[ClaimView, ...], *waiting: ClaimView) -> ResourceView:
    return ResourceView("lock", name, holders, waiting, len(holders), len(waiting), 0, 0)


def edges(graph: WaitGraph) -> list[tuple[str, str, bool, bool]]:
    return [(e.waiter.actor, e.blocker.actor, e.blocker_holds, e.deadlocked) for e in graph.edges]


def test_a_claim_waits_for_the_holder_and_the_claim_just_ahead() -> None:
    graph = graph_of(
        [queue("a", (claim("x", "a", 17),), claim("y", "a"), claim("z", "a"), claim("q", "a"))]
    )
    assert edges(graph) == [
        ("y", "x", True, False),
        ("z", "x", True, False),
        ("z", "y", False, False),
        ("q", "x", True, False),
        ("q", "z", False, False),
    ]
    first, _, behind, *_ = graph.edges
    assert (first.name, first.mode, first.seconds) == ("a", "exclusive", 1.5)
    assert (first.blocker_token, behind.blocker_token) == (17, None)
    assert [waiter.actor for waiter in graph.waiters] == ["q", "x", "y", "z"]


def test_edges_of_a_deadlock_are_marked() -> None:
    one = queue("a", (claim("x", "a", 17),), claim("y", "a"), claim("z", "a"))
    other = queue("b", (claim("y", "b", 18),), claim("x", "b"))
    assert edges(graph_of([one, other])) == [
        ("y", "x", True, True),
        ("z", "x", True, False),
        ("z", "y", False, False),
        ("x", "y", True, True),
    ]


def test_every_page_is_read_and_only_queues_with_waiters_are_inspected() -> None:
    busy = {name: queue(name, (claim("x", name, 17),), claim("y", name)) for name in ("b", "d")}
    idle = queue("a", (claim("x", "a", 17),))
    upgrading = queue("c", (claim("x", "c", 17, wants="exclusive"), claim("y", "c", 18, wants="")))
    listed = {"": ((idle, busy["b"]), True), "b": ((upgrading, busy["d"]), False)}
    sent: list[Command] = []

    async def send(command: Command) -> Reply:
        sent.append(command)
        if isinstance(command, Listing):
            found = listed[command.after] if command.kind == "lock" else ((), False)
            return ListingReply(*found)
        assert isinstance(command, Inspect)
        return {**busy, "c": upgrading}[command.name]

    graph = run(wait_graph(send, "prefix"))
    assert [c.name for c in sent if isinstance(c, Inspect)] == ["b", "c", "d"]
    assert {c.prefix for c in sent if isinstance(c, Listing)} == {"prefix"}
    assert [edge.name for edge in graph.edges] == ["b", "c", "d"]


def blocker(session: str, renewals: int) -> Blocker:
    return Blocker(session, 1, "host", "", renewals, True, 17, 0)


def test_a_session_is_silent_while_its_counter_does_not_change() -> None:
    sessions = SilentSessions()
    sessions.saw({1: [blocker("one", 5), blocker("two", 5)]}, {1}, 1000)
    sessions.saw({1: [blocker("one", 5), blocker("two", 6)]}, {1}, 2000)
    assert sessions.silent(2999, 2000) == []
    assert sessions.silent(3000, 2000) == [Silent("one", 5, 2000)]
    sessions.saw({1: [blocker("two", 6)]}, {1}, 3000)
    assert sessions.silent(9000, 6000) == [Silent("two", 6, 7000)]
    sessions.clear()
    assert sessions.silent(9000, 0) == []


def test_a_session_stays_silent_while_the_claim_behind_it_is_not_looked_at() -> None:
    """Keep-alives take turns if more claims wait than one can name."""
    sessions = SilentSessions()
    sessions.saw({1: [blocker("one", 5)]}, {1, 2}, 1000)
    sessions.saw({2: [blocker("two", 5)]}, {1, 2}, 2000)
    assert sessions.silent(4000, 3000) == [Silent("one", 5, 3000)]
    sessions.saw({1: [blocker("one", 6)]}, {1, 2}, 4000)
    assert sessions.silent(5000, 3000) == [Silent("two", 5, 3000)]
    sessions.saw({1: [blocker("one", 6)]}, {1}, 5000)
    assert sessions.silent(9000, 0) == [Silent("one", 6, 5000)], "claim 2 has stopped waiting"


def test_the_key_before_a_session_sorts_directly_before_it() -> None:
    assert "s-1c" < just_before("s-1d") < "s-1d"
    assert just_before("s-1d") > "s-1c~zzz"
