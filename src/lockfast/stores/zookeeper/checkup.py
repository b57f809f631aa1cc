"""`lockfast doctor` for ZooKeeper: is this ensemble safe for locks?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lockfast.core.wording import counted
from lockfast.errors import AccessDeniedError, StoreMisconfiguredError, StoreUnavailableError
from lockfast.runtimes.threads import run
from lockfast.stores.derived.stored import UnreadableError, decode
from lockfast.stores.diagnosis import Diagnosis, enough_members, round_trip
from lockfast.stores.http.members import Member
from lockfast.stores.zookeeper import layout
from lockfast.stores.zookeeper.address import Address
from lockfast.stores.zookeeper.context import Context, Requests, raise_base
from lockfast.stores.zookeeper.layout import Paths, Sizes
from lockfast.stores.zookeeper.network import KazooNetwork
from lockfast.stores.zookeeper.probe import (
    NOT_SERVING,
    READ_ONLY,
    ProbeError,
    Status,
    session,
    status,
)
from lockfast.stores.zookeeper.sessions import link_timeout_ms
from lockfast.stores.zookeeper.transport import (
    Answer,
    Check,
    Create,
    Exists,
    Get,
    Multi,
    Request,
    Set,
    Sync,
)

TIMEOUT_MS: Final = 5000
EXAMINED_MS: Final = 60_000
"""The most time that all checks together may take."""
PROBE_S: Final = 2.0
BUFFER_BYTES: Final = 1_000_000
"""Slightly less than the default of jute.maxbuffer."""
TIMEOUT_MS_MAX: Final = (1 << 31) - 1


def examine(address: Address, ttl_ms: int) -> Iterator[Diagnosis]:
    """Run all checks without changing anything.

    Raises StoreUnavailableError if no majority of the ensemble can be reached, and
    StoreMisconfiguredError if the ensemble refuses the client.
    """
    states = {member: _status(address, member) for member in address.members}
    if not any(states.values()):
        raise StoreUnavailableError(address.label, "no member answers", "check hosts and ports")
    yield _version(states)
    yield _endpoints(states)
    with _session(address) as requests:
        yield _members(requests)
        yield from _session_limits(address, ttl_ms)
        yield _nodes(requests, states)
        yield _to_the_leader(requests)
        yield _rights(requests)
        yield _namespace(requests)


def raise_epoch(address: Address) -> Iterator[Diagnosis]:
    """Raise tokens to the wall clock's microseconds, above all tokens from before a restore."""
    with _session(address) as requests:
        context = requests.context
        if not _ask(requests, Sync(context.paths.base), Exists(context.paths.base)).stat:
            yield Diagnosis("epoch", f"{address.root}: not used yet")
            return
        # Only the answer to a write reveals the last zxid.
        _ask(requests, Multi((Set(context.paths.root, b""),)))
        added = run(raise_base(requests, 0))
        yield Diagnosis("epoch", f"raised by {added}" if added > 0 else "is high enough")


@contextmanager
def _session(address: Address) -> Iterator[Requests]:
    """Open a session with any member."""
    network = KazooNetwork(address)
    link = network.link(TIMEOUT_MS, lambda _: None, lambda: None, pings=True)
    context = Context(address.label, network, Paths(address.root), Sizes())
    try:
        run(network.keeper.wait(link.open(), TIMEOUT_MS))
        yield Requests(context, link, network.keeper, network.now_ms() + EXAMINED_MS)
    except StoreUnavailableError as error:
        raise StoreUnavailableError(
            address.label,
            error.what,
            "most members must run and reach each other; check user and certificates",
        ) from error
    finally:
        link.stop()


def _ask(requests: Requests, *asked: Request) -> Answer:
    """Return the answer to the last request."""
    return run(requests.call(*asked))[-1]


def _status(address: Address, member: Member) -> Status | None:
    try:
        return status(address, member, PROBE_S)
    except ProbeError:
        return None


def _version(states: dict[Member, Status | None]) -> Diagnosis:
    found = sorted({state.version for state in states.values() if state and state.version})
    text = f"ZooKeeper {', '.join(found)}" if found else "unknown"
    if not found:
        return Diagnosis("server", text, "note", "allow the four-letter word srvr to see it")
    for version in found:
        numbers = re.match(r"(\d+)\.(\d+)\.", version)
        if numbers is None:
            return Diagnosis("server", text, "note", "its version is not readable")
        if (int(numbers[1]), int(numbers[2])) < (3, 5):
            return Diagnosis("server", text, "bad", "use ZooKeeper 3.5 or newer")
    return Diagnosis("server", text)


def _endpoints(states: dict[Member, Status | None]) -> Diagnosis:
    modes = {
        str(member): "silent" if state is None else state.mode or "mode unknown"
        for member, state in states.items()
    }
    found = ", ".join(f"{member} {mode}" for member, mode in modes.items())
    if READ_ONLY in modes.values():
        return Diagnosis("endpoints", found, "note", "read-only: cut off from the majority")
    if {"silent", NOT_SERVING} & set(modes.values()):
        return Diagnosis("endpoints", found, "note", "check those that do not serve clients")
    return Diagnosis("endpoints", found)


def _members(requests: Requests) -> Diagnosis:
    """Count the voting members in the ensemble's configuration."""
    found = _ask(requests, Get("/zookeeper/config")).data
    count = len(re.findall(rb"^server\.\d+=.*:participant", found, re.MULTILINE)) or 1
    return enough_members(count, f"{count} voting")


def _session_limits(address: Address, ttl_ms: int) -> Iterator[Diagnosis]:
    """Compare the session timeouts that the members grant with what a session needs."""
    for member in address.members:
        try:
            with session(address, member, 1, PROBE_S) as shortest:
                least_ms = shortest.timeout_ms
            with session(address, member, TIMEOUT_MS_MAX, PROBE_S) as longest:
                most_ms, buffer = longest.timeout_ms, longest.accepts(BUFFER_BYTES)
        except ProbeError:
            continue
        yield _timeouts(least_ms, most_ms, ttl_ms)
        if buffer:
            yield Diagnosis("jute.maxbuffer", f"at least {BUFFER_BYTES:,} bytes")
        else:
            yield Diagnosis(
                "jute.maxbuffer",
                f"less than {BUFFER_BYTES:,} bytes",
                "note",
                "long lines and large metadata may be refused; use the default of 1 MiB",
            )
        return


def _timeouts(least_ms: int, most_ms: int, ttl_ms: int) -> Diagnosis:
    found = f"{least_ms / 1000:g} to {most_ms / 1000:g} s"
    needed_ms = link_timeout_ms(ttl_ms)
    if needed_ms > most_ms:
        return Diagnosis(
            "session timeouts",
            found,
            "bad",
            f"a TTL of {ttl_ms / 1000:g} s needs {needed_ms / 1000:g} s; raise maxSessionTimeout, "
            f"or use a TTL of at most {most_ms * 3 // 4 / 1000:g} s",
        )
    if needed_ms < least_ms:
        return Diagnosis(
            "session timeouts",
            found,
            "note",
            f"after a crash the locks of a session are free after {least_ms / 1000:g} s, "
            f"not after the TTL of {ttl_ms / 1000:g} s; lower minSessionTimeout",
        )
    return Diagnosis("session timeouts", found)


def _nodes(requests: Requests, states: dict[Member, Status | None]) -> Diagnosis:
    paths = requests.context.paths
    stats = [_ask(requests, Exists(node)).stat for node in (paths.alive, paths.resources)]
    ours = [stat.children if stat is not None else 0 for stat in stats]
    total = max(state.node_count if state is not None else -1 for state in states.values())
    found = f"{total} in all" if total >= 0 else "unknown number in all"
    parts = f"{counted(ours[0], 'session')}, {counted(ours[1], 'resource')}"
    return Diagnosis("nodes", f"{found}; {parts} of ours")


def _to_the_leader(requests: Requests) -> Diagnosis:
    measured = round_trip(lambda: _ask(requests, Sync(requests.context.paths.root)))
    return measured._replace(found=f"{measured.found}, to the leader")


def _rights(requests: Requests) -> Diagnosis:
    """Try to create a node, in a transaction that cannot succeed."""
    above = requests.context.paths.root
    while above and not _ask(requests, Exists(above)).stat:
        above = above.rpartition("/")[0]
    trial = (Create(f"{above}/lockfast-doctor"), Check("/", TIMEOUT_MS_MAX))
    try:
        _ask(requests, Multi(trial))
    except AccessDeniedError:
        return Diagnosis(
            "rights",
            f"may not create nodes in {above or '/'}",
            "bad",
            "grant cdrw on it to this user, or create the chroot with such an ACL",
        )
    return Diagnosis("rights", f"may create nodes in {above or '/'}")


def _namespace(requests: Requests) -> Diagnosis:
    root, label = requests.context.paths.root, requests.context.label
    answer = _ask(requests, Get(requests.context.paths.base))
    if answer.error:
        return Diagnosis("namespace", f"{root}: not used yet")
    try:
        base = layout.base_from(label, decode(answer.data))
    except StoreMisconfiguredError as error:
        return Diagnosis("namespace", f"{root}: {error.what}", "bad", error.advice)
    except UnreadableError as error:
        found = f"{root}: has other data in it ({error})"
        return Diagnosis("namespace", found, "bad", "use another namespace")
    return Diagnosis("namespace", f"{root}: schema {base.schema}")
