"""A look at an etcd cluster: is it fit to keep locks?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from time import monotonic
from typing import Final

from lockfast.core.commands import Sessions, SessionsReply
from lockfast.errors import StoreError, StoreUnavailableError
from lockfast.runtimes.threads import run
from lockfast.stores.diagnosis import Diagnosis
from lockfast.stores.etcd.address import Address, Endpoint
from lockfast.stores.etcd.cluster import Cluster
from lockfast.stores.etcd.epoch import raise_epoch
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.requests import Json
from lockfast.stores.etcd.rows import EPOCH_KEY, SCHEMA, decode
from lockfast.stores.etcd.shared import Shared
from lockfast.stores.etcd.sockets import BlockingTransport
from lockfast.stores.etcd.steps import Step

ROUNDS: Final = 10
TIMEOUT_S: Final = 5.0
QUOTA_BYTES: Final = 2 * 1024**3
"""What etcd allows itself unless told otherwise."""
INCONSISTENT: Final = ("3.5.0", "3.5.1", "3.5.2")
"""A crash under load may leave members that differ, says etcd's own post-mortem."""


def examine(address: Address, *, raises_epoch: bool = False) -> Iterator[Diagnosis]:
    """Look at everything; raises StoreUnavailableError or StoreMisconfiguredError if there
    is no way in."""
    transport = BlockingTransport(address)
    try:
        yield from _Checkup(address, transport).findings(raises_epoch)
    finally:
        transport.close()


class _Checkup:
    def __init__(self, address: Address, transport: BlockingTransport) -> None:
        self._address = address
        self._transport = transport
        self._shared = Shared(Cluster(address))
        self._gateway = Gateway(self._shared.cluster, transport)

    def findings(self, raises_epoch: bool) -> Iterator[Diagnosis]:
        status = self._ask("/v3/maintenance/status", {})
        yield self._version(status)
        yield from self._members()
        yield self._leader(status)
        yield Diagnosis("revision", status["header"]["revision"])
        yield self._size(status)
        alarms = self._alarms()
        yield alarms
        if alarms.verdict == "bad":
            return  # it may refuse even to be read
        yield self._round_trip()
        yield self._namespace()
        if raises_epoch:
            keys, wall_us = self._shared.keys, time.time_ns() // 1000
            added = run(raise_epoch(self._gateway, keys, wall_us, monotonic() + TIMEOUT_S))
            yield Diagnosis("epoch", f"raised by {added}" if added else "is high enough")

    def _ask(self, path: str, body: Json) -> Json:
        return run(self._gateway.call(path, body, monotonic() + TIMEOUT_S))

    def _version(self, status: Json) -> Diagnosis:
        version = str(status.get("version", "?"))
        if tuple(map(int, version.split(".")[:2])) < (3, 4):
            return Diagnosis("server", f"etcd {version}", "bad", "use etcd 3.4 or newer")
        if version in INCONSISTENT:
            advice = "a crash may leave members that differ; use 3.5.3 or newer"
            return Diagnosis("server", f"etcd {version}", "note", advice)
        return Diagnosis("server", f"etcd {version}")

    def _members(self) -> Iterator[Diagnosis]:
        members = self._ask("/v3/cluster/member/list", {}).get("members", [])
        found = f"{len(members)}: {', '.join(m.get('name', '?') for m in members)}"
        if len(members) < 3:
            yield Diagnosis("members", found, "note", "one that is lost takes the locks with it")
        elif len(members) % 2 == 0:
            yield Diagnosis("members", found, "note", "an even number tolerates no more losses")
        else:
            yield Diagnosis("members", found)
        silent = [str(one) for one in self._address.endpoints if not self._answers(one)]
        if silent:
            yield Diagnosis("endpoints", f"{', '.join(silent)} silent", "note", "look at them")

    def _answers(self, endpoint: Endpoint) -> bool:
        alone = Cluster(self._address._replace(endpoints=(endpoint,)))
        status = Gateway(alone, self._transport).call("/v3/maintenance/status", {}, monotonic() + 1)
        try:
            run(status)
        except StoreUnavailableError:
            return False
        return True

    def _leader(self, status: Json) -> Diagnosis:
        if not int(status.get("leader", 0)):
            return Diagnosis("leader", "none", "bad", "most members must run and reach each other")
        return Diagnosis("leader", f"{int(status['leader']):x}, term {status.get('raftTerm', '?')}")

    def _size(self, status: Json) -> Diagnosis:
        size, used = int(status.get("dbSize", 0)), int(status.get("dbSizeInUse", 0))
        found = f"{size / 1e6:.1f} MB, {used / 1e6:.1f} MB in use"
        if used > 0.8 * QUOTA_BYTES:
            return Diagnosis(
                "database", found, "note", "compact it: see --auto-compaction-retention"
            )
        return Diagnosis("database", found)

    def _alarms(self) -> Diagnosis:
        alarms = self._ask("/v3/maintenance/alarm", {"action": "GET"}).get("alarms", [])
        if alarms:
            found = ", ".join(sorted({str(alarm.get("alarm")) for alarm in alarms}))
            advice = "compact and defragment it, then `etcdctl alarm disarm`"
            return Diagnosis("alarms", found, "bad", advice)
        return Diagnosis("alarms", "none")

    def _round_trip(self) -> Diagnosis:
        took_ms = []
        for _ in range(ROUNDS):
            sent_s = monotonic()
            read = {"success": [self._shared.keys.range(EPOCH_KEY)]}
            run(self._gateway.txn(read, sent_s + TIMEOUT_S, repeatable=True))
            took_ms.append((monotonic() - sent_s) * 1000)
        found = f"{median(took_ms):.2f} ms (slowest of {ROUNDS}: {max(took_ms):.2f} ms)"
        return Diagnosis("round trip", found)

    def _namespace(self) -> Diagnosis:
        keys, root = self._shared.keys, self._address.root
        until_s = monotonic() + TIMEOUT_S
        answer = run(self._gateway.txn({"success": [keys.range(EPOCH_KEY)]}, until_s))
        stored = keys.found(answer["responses"][0]).kvs
        if not stored:
            return Diagnosis("namespace", f"{root}: not used yet")
        try:
            schema = decode(stored[0].value)[1]
        except (ValueError, LookupError, TypeError):
            return Diagnosis("namespace", f"{root}: has other data in it", "bad", "use another")
        if schema != SCHEMA:
            return Diagnosis(
                "namespace", f"{root}: schema {schema}", "bad", "use this version's own"
            )
        try:
            step = Step(self._gateway, self._shared, Sessions(), until_s)
            reply = run(step.run()).reply
        except StoreError as error:
            return Diagnosis("namespace", f"{root}: {error.what}", "bad", "use another")
        assert isinstance(reply, SessionsReply)
        living = sum(not view.ended for view in reply.sessions)
        return Diagnosis("namespace", f"{root}: schema {schema}, {living} sessions")
