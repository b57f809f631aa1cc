"""`lockfast doctor` for etcd: is this cluster safe for locks?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lockfast.core.wording import counted
from lockfast.errors import StoreError, StoreMisconfiguredError, StoreUnavailableError
from lockfast.runtimes.threads import run
from lockfast.stores.derived.stored import UnreadableError, encode
from lockfast.stores.diagnosis import Diagnosis, enough_members, live_sessions, round_trip
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.address import Address
from lockfast.stores.etcd.execution import Execution
from lockfast.stores.etcd.requests import Kv
from lockfast.stores.etcd.sessions import raised_base
from lockfast.stores.etcd.transport import Json
from lockfast.stores.http.members import Member

TIMEOUT_MS: Final = 5000
QUOTA_BYTES: Final = 2 * 1024**3
"""etcd's default."""
INCONSISTENT: Final = ("3.5.0", "3.5.1", "3.5.2")
"""After a crash under load, members may disagree, according to etcd's post-mortem."""
PANICS_BEFORE: Final[dict[tuple[int, ...], int]] = {(3, 4): 23, (3, 5): 7}
"""A client that abandons a read-only transaction makes the member panic (etcd's #14110)."""


def examine(address: Address, *, raises_epoch: bool = False) -> Iterator[Diagnosis]:
    """Run all checks.

    Raises StoreUnavailableError if the cluster cannot be reached, StoreMisconfiguredError if it
    refuses the client.
    """
    store = EtcdStore(address)
    try:
        yield from _Checkup(address, store).findings(raises_epoch)
    finally:
        store.close()


async def raise_epoch(execution: Execution) -> int:
    """Raise the epoch until tokens reach the wall clock's microseconds; return the increase."""
    keys = execution.keys
    while True:
        (stored,), revision = await execution.read_keys(k.EPOCH_KEY)
        base = k.base_from(keys.label, stored)
        raised = raised_base(base, revision, execution.instant.wall_us, 0)
        if raised == base:
            return 0
        write = keys.put(k.EPOCH_KEY, encode(list(raised)))
        if (await execution.commit([write], [keys.same(k.EPOCH_KEY, stored)])).succeeded:
            return raised.epoch - (base.epoch if base is not None else 0)


def _list_in(reply: Json, name: str) -> list[Json]:
    """Return a list of objects from a reply; etcd omits empty lists."""
    found = reply.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise StoreError("etcd", f"sent {name}={str(found)[:60]!r}, which is not a list")
    return found


class _Checkup:
    def __init__(self, address: Address, store: EtcdStore) -> None:
        self._address = address
        self._store = store
        self._wire = store.keeper_wire()
        self._keys = store.context.keys

    def findings(self, raises_epoch: bool) -> Iterator[Diagnosis]:
        status = self._ask("/v3/maintenance/status")
        yield self._version(status)
        yield from self._members()
        yield self._leader(status)
        yield Diagnosis("revision", str(self._keys.revision_of(status)))
        yield self._size(status)
        alarms = self._alarms()
        yield alarms
        if alarms.verdict == "bad":
            return  # the cluster may reject even reads
        yield round_trip(self._stored_base)
        yield self._namespace()
        if raises_epoch:
            added = run(raise_epoch(self._execution()))
            yield Diagnosis("epoch", f"raised by {added}" if added else "is high enough")

    def _execution(self) -> Execution:
        gateway = self._wire.gateway
        return Execution(gateway, gateway.until_ms(TIMEOUT_MS))

    def _ask(self, path: str, **fields: Any) -> Json:
        return run(self._execution().call(path, **fields))

    def _stored_base(self) -> Kv | None:
        return run(self._execution().read_keys(k.EPOCH_KEY))[0][0]

    def _version(self, status: Json) -> Diagnosis:
        version = str(status.get("version", "?"))
        try:
            *numbers, patch = map(int, version.split("-")[0].split("."))
        except ValueError:
            return Diagnosis("server", f"etcd {version!r}", "note", "its version is not readable")
        minor = tuple(numbers)
        if minor < (3, 4):
            return Diagnosis("server", f"etcd {version}", "bad", "use etcd 3.4 or newer")
        if version in INCONSISTENT:
            advice = "a crash may leave members that differ; use 3.5.7 or newer"
            return Diagnosis("server", f"etcd {version}", "note", advice)
        if patch < PANICS_BEFORE.get(minor, 0):
            fixed = f"{version.rpartition('.')[0]}.{PANICS_BEFORE[minor]}"
            advice = f"a read that is given up may crash a member; use {fixed} or newer"
            return Diagnosis("server", f"etcd {version}", "note", advice)
        return Diagnosis("server", f"etcd {version}")

    def _members(self) -> Iterator[Diagnosis]:
        members = _list_in(self._ask("/v3/cluster/member/list"), "members")
        names = ", ".join(str(member.get("name", "?")) for member in members)
        yield enough_members(len(members), f"{len(members)}: {names}")
        silent = [str(one) for one in self._address.members if not self._answers(one)]
        if silent:
            yield Diagnosis("endpoints", f"{', '.join(silent)} silent", "note", "check them")

    def _answers(self, member: Member) -> bool:
        alone = EtcdStore(self._address._replace(members=(member,)))
        gateway = alone.keeper_wire().gateway
        try:
            run(gateway.call("/v3/maintenance/status", "{}", gateway.until_ms(1000)))
        except StoreUnavailableError:
            return False
        finally:
            alone.close()
        return True

    def _leader(self, status: Json) -> Diagnosis:
        leader = self._keys.number(status, "leader")
        if not leader:
            return Diagnosis("leader", "none", "bad", "most members must run and reach each other")
        return Diagnosis("leader", f"{leader:x}, term {status.get('raftTerm', '?')}")

    def _size(self, status: Json) -> Diagnosis:
        size = self._keys.number(status, "dbSize")
        used = self._keys.number(status, "dbSizeInUse")
        found = f"{size / 1e6:.1f} MB, {used / 1e6:.1f} MB in use"
        if used > 0.8 * QUOTA_BYTES:
            return Diagnosis(
                "database", found, "note", "compact it: see --auto-compaction-retention"
            )
        return Diagnosis("database", found)

    def _alarms(self) -> Diagnosis:
        # Without alarms, etcd 3.4 answers `{}`, without even a header.
        alarms = _list_in(self._ask("/v3/maintenance/alarm", action="GET"), "alarms")
        if alarms:
            found = ", ".join(sorted({str(alarm.get("alarm")) for alarm in alarms}))
            advice = "compact and defragment it, then `etcdctl alarm disarm`"
            return Diagnosis("alarms", found, "bad", advice)
        return Diagnosis("alarms", "none")

    def _namespace(self) -> Diagnosis:
        root = self._address.root
        stored = self._stored_base()
        if stored is None:
            return Diagnosis("namespace", f"{root}: not used yet")
        try:
            base = k.base_from(self._address.label, stored)
            assert base is not None
            living = live_sessions(lambda command: run(self._wire.send(command, TIMEOUT_MS)))
        except StoreMisconfiguredError as error:
            return Diagnosis("namespace", f"{root}: {error.what}", "bad", error.advice)
        except (StoreError, UnreadableError) as error:
            found = f"{root}: has other data in it ({error})"
            return Diagnosis("namespace", found, "bad", "use another namespace")
        return Diagnosis("namespace", f"{root}: schema {base.schema}, {counted(living, 'session')}")
