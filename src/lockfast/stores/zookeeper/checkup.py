"""`lockfast doctor` for ZooKeeper: is this ensemble safe for locks?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from time import time_ns
from typing import Any, Final

from lockfast.core.wording import counted
from lockfast.errors import (
    AccessDeniedError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from lockfast.stores.derived.stored import UnreadableError, decode
from lockfast.stores.diagnosis import Diagnosis, enough_members, round_trip
from lockfast.stores.http.members import Member
from lockfast.stores.zookeeper import layout
from lockfast.stores.zookeeper.address import Address
from lockfast.stores.zookeeper.layout import Paths
from lockfast.stores.zookeeper.probe import (
    NOT_SERVING,
    READ_ONLY,
    ProbeError,
    Session,
    Status,
    status,
)
from lockfast.stores.zookeeper.sessions import link_timeout_ms

TIMEOUT_S: Final = 5.0
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
    with _client(address) as client:
        yield _members(client)
        yield from _session_limits(address, ttl_ms)
        yield _nodes(client, address, states)
        yield _to_the_leader(client, address)
        yield _rights(client, address)
        yield _namespace(client, address)


def raise_epoch(address: Address) -> Iterator[Diagnosis]:
    """Raise tokens to the wall clock's microseconds, above all tokens from before a restore."""
    from kazoo.exceptions import BadVersionError, NoNodeError

    node = Paths(address.root).base
    with _client(address) as client:
        while True:
            _ask(client.sync_async(node))
            try:
                data, stat = _ask(client.get_async(node))
            except NoNodeError:
                yield Diagnosis("epoch", f"{address.root}: not used yet")
                return
            base = layout.base_from(address.label, decode(data))
            raised = base.raised(client.last_zxid, time_ns() // 1000)
            try:
                _ask(client.set_async(node, layout.data_of(list(raised)), stat.version))
            except BadVersionError:
                continue  # a client that opened a session has just raised it
            added = raised.value - base.value
            yield Diagnosis("epoch", f"raised by {added}" if added > 0 else "is high enough")
            return


@contextmanager
def _client(address: Address) -> Iterator[Any]:
    from kazoo.client import KazooClient
    from kazoo.exceptions import AuthFailedError, KazooException, NoAuthError
    from kazoo.handlers.threading import KazooTimeoutError

    client = KazooClient(timeout=TIMEOUT_S, **address.client_options())
    try:
        client.start(timeout=TIMEOUT_S)
        yield client
    except KazooTimeoutError as error:
        raise StoreUnavailableError(
            address.label,
            f"no member opened a session within {TIMEOUT_S:g} s",
            "most members must run and reach each other; check user and certificates",
        ) from error
    except (AuthFailedError, NoAuthError) as error:
        raise AccessDeniedError(
            address.label, "refuses this user or password", "check the URL and the nodes' ACLs"
        ) from error
    except KazooException as error:
        raise StoreError(address.label, f"failed with {type(error).__name__}") from error
    finally:
        client.stop()
        client.close()


def _ask(pending: Any) -> Any:
    return pending.get(timeout=TIMEOUT_S)


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


def _members(client: Any) -> Diagnosis:
    """Count the voting members in the ensemble's configuration."""
    from kazoo.exceptions import NoNodeError

    try:
        data = _ask(client.get_async("/zookeeper/config"))[0]
    except NoNodeError:
        data = b""
    count = len(re.findall(rb"^server\.\d+=.*:participant", data, re.MULTILINE)) or 1
    return enough_members(count, f"{count} voting")


def _session_limits(address: Address, ttl_ms: int) -> Iterator[Diagnosis]:
    """Compare the session timeouts that the members grant with what a session needs."""
    for member in address.members:
        try:
            with Session(address, member, 1, PROBE_S) as shortest:
                least_ms = shortest.timeout_ms
            with Session(address, member, TIMEOUT_MS_MAX, PROBE_S) as longest:
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


def _nodes(client: Any, address: Address, states: dict[Member, Status | None]) -> Diagnosis:
    paths = Paths(address.root)
    children = [_ask(client.exists_async(node)) for node in (paths.alive, paths.resources)]
    ours = [stat.numChildren if stat is not None else 0 for stat in children]
    total = max(state.node_count if state is not None else -1 for state in states.values())
    found = f"{total} in all" if total >= 0 else "unknown number in all"
    parts = f"{counted(ours[0], 'session')}, {counted(ours[1], 'resource')}"
    return Diagnosis("nodes", f"{found}; {parts} of ours")


def _to_the_leader(client: Any, address: Address) -> Diagnosis:
    measured = round_trip(lambda: _ask(client.sync_async(address.root)))
    return measured._replace(found=f"{measured.found}, to the leader")


def _rights(client: Any, address: Address) -> Diagnosis:
    """Try to create a node, in a transaction that cannot succeed."""
    from kazoo.exceptions import NoAuthError

    above = address.root
    while above and _ask(client.exists_async(above)) is None:
        above = above.rpartition("/")[0]
    trial = client.transaction()
    trial.create(f"{above}/lockfast-doctor", b"")
    trial.check("/", TIMEOUT_MS_MAX)
    if isinstance(_ask(trial.commit_async())[0], NoAuthError):
        return Diagnosis(
            "rights",
            f"may not create nodes in {above or '/'}",
            "bad",
            "grant cdrw on it to this user, or create the chroot with such an ACL",
        )
    return Diagnosis("rights", f"may create nodes in {above or '/'}")


def _namespace(client: Any, address: Address) -> Diagnosis:
    from kazoo.exceptions import NoNodeError

    root = address.root
    try:
        data = _ask(client.get_async(Paths(root).base))[0]
    except NoNodeError:
        return Diagnosis("namespace", f"{root}: not used yet")
    try:
        base = layout.base_from(address.label, decode(data))
    except StoreMisconfiguredError as error:
        return Diagnosis("namespace", f"{root}: {error.what}", "bad", error.advice)
    except UnreadableError as error:
        found = f"{root}: has other data in it ({error})"
        return Diagnosis("namespace", found, "bad", "use another namespace")
    return Diagnosis("namespace", f"{root}: schema {base.schema}")
