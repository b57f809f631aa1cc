"""`lockfast doctor` and `lockfast reset` on Redis: check a server, repair or empty a namespace."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final

from lockfast.core.commands import Reply, Sessions
from lockfast.core.wording import counted
from lockfast.errors import StoreError
from lockfast.stores.diagnosis import Diagnosis, Maintenance, live_sessions, round_trip
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.codec import ENCODERS, decode
from lockfast.stores.redis.connection import EVICTING, Connection, info_field
from lockfast.stores.redis.errors import translate
from lockfast.stores.redis.resp import pack
from lockfast.stores.redis.scripts import (
    SCHEMA,
    Script,
    channel_of,
    keys_of,
    probe,
    repair,
    reset,
    script_of,
)

CLOCK_MS_MAX: Final = 1000
"""After data loss, tokens follow the server's clock: a second of difference is worth a note."""
TIMEOUT_S: Final = 5.0
REPAIR_S: Final = 120.0
"""A repair reads all claims of the namespace in one script."""
OLDEST: Final = [6, 2]
"""The oldest version that the tests cover."""
_RIGHTS: Final = 'grant the rights listed in docs/stores/redis.md, "Permissions"'


class RedisMaintenance(Maintenance):
    def __init__(self, address: Address, *, in_cluster: bool = False) -> None:
        super().__init__(address.label)
        self._address = address
        self._in_cluster = in_cluster

    def examine(self) -> Iterator[Diagnosis]:
        with self._connected() as connection:
            yield from _Checkup(self._address, connection, self._in_cluster).findings()

    def repair(self) -> Iterator[Diagnosis]:
        sessions, claims, lost = self._run(repair(self._address.layout))
        yield Diagnosis(
            "repair", f"rebuilt {counted(sessions, 'session')} and {counted(claims, 'claim')}"
        )
        if lost:
            advice = "their holders are told at their next keep-alive"
            found = f"deleted {counted(lost, 'unreadable row')}"
            yield Diagnosis("repair", found, "note", advice)

    def reset(self) -> Iterator[Diagnosis]:
        (sessions,) = self._run(reset(self._address.layout))
        found = f"ended {counted(sessions, 'session')} and deleted all their claims"
        yield Diagnosis("reset", found)

    def _run(self, script: Script) -> list[int]:
        keys = keys_of(self._address.namespace)
        with self._connected() as connection:
            packed = pack("EVAL", script.body, len(keys), *keys)
            reply = connection.exchange(packed, monotonic() + REPAIR_S)
        if isinstance(reply, Exception):
            raise translate(str(reply), self.label)
        return [int(value) for value in reply]

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        # Unchecked: doctor reports what a store would refuse.
        connection = Connection(self._address, monotonic() + TIMEOUT_S, checked=False)
        try:
            yield connection
        finally:
            connection.close()


class _Checkup:
    def __init__(self, address: Address, connection: Connection, in_cluster: bool) -> None:
        self._address = address
        self._in_cluster = in_cluster
        self._connection = connection

    def findings(self) -> Iterator[Diagnosis]:
        info = self._run("INFO")
        if isinstance(info, Exception):
            raise translate(str(info), self._address.label)
        yield self._server(info)
        yield round_trip(lambda: self._run("PING"))
        yield self._clock()
        yield from self._persistence(info)
        yield self._eviction(info)
        yield self._memory(info)
        yield from self._replication(info)
        yield self._rights()
        yield self._namespace()

    def _run(self, *arguments: str | bytes | int) -> Any:
        return self._connection.exchange(pack(*arguments), monotonic() + TIMEOUT_S)

    def _server(self, info: str) -> Diagnosis:
        version = info_field(info, "valkey_version")
        name = "Valkey" if version else "Redis"
        version = version or info_field(info, "redis_version")
        mode = info_field(info, "redis_mode")
        found = f"{name} {version}, {mode}"
        if [int(part) for part in version.split(".")[:2] if part.isdecimal()] < OLDEST:
            return Diagnosis("server", found, "bad", "use Redis 6.2 or newer, or Valkey")
        if mode == "cluster" and not self._in_cluster:
            advice = "it serves only a part of the keys; write redis+cluster://"
            return Diagnosis("server", found, "note", advice)
        return Diagnosis("server", found)

    def _clock(self) -> Diagnosis:
        sent_s = time.time()
        reply = self._run("TIME")
        answered_s = time.time()
        if isinstance(reply, Exception):
            return Diagnosis("clock", f"cannot be read ({reply})", "bad", "allow TIME")
        server_s = int(reply[0]) + int(reply[1]) / 1e6
        off_ms = max(sent_s - server_s, server_s - answered_s, 0) * 1000
        found = f"{off_ms:.0f} ms apart from this machine's"
        if off_ms > CLOCK_MS_MAX:
            return Diagnosis("clock", found, "note", "synchronize the clocks of both machines")
        return Diagnosis("clock", found)

    def _persistence(self, info: str) -> Iterator[Diagnosis]:
        if info_field(info, "aof_enabled") == "1":
            policy = self._config("appendfsync")
            found = f"append-only file, appendfsync {policy or 'unknown'}"
            if policy == "always":
                yield Diagnosis("persistence", found)
            else:
                advice = "a crash loses up to a second of grants; guards still refuse old tokens"
                yield Diagnosis("persistence", found, "note", advice)
        else:
            saves = self._config("save")
            found = f"snapshots ({saves})" if saves else "none"
            advice = "a crash loses grants: two clients may believe they hold; use guards"
            yield Diagnosis("persistence", found, "note", advice)
        if info_field(info, "rdb_last_bgsave_status") not in ("ok", ""):
            yield Diagnosis("last save", "failed", "bad", "check the server's log and disk")
        if info_field(info, "aof_last_write_status") not in ("ok", ""):
            yield Diagnosis("last append", "failed", "bad", "check the server's log and disk")

    def _config(self, name: str) -> str:
        reply = self._run("CONFIG", "GET", name)
        return str(reply[1]) if isinstance(reply, list) and len(reply) == 2 else ""

    def _eviction(self, info: str) -> Diagnosis:
        policy = info_field(info, "maxmemory_policy") or "unknown"
        if not policy.startswith(EVICTING):
            return Diagnosis("maxmemory-policy", policy)
        if self._address.allows_eviction:
            return Diagnosis("maxmemory-policy", policy, "note", "accepted by eviction=allow")
        advice = "set noeviction or a volatile- policy, or accept the risk with ?eviction=allow"
        return Diagnosis("maxmemory-policy", f"{policy}: may evict held locks", "bad", advice)

    def _memory(self, info: str) -> Diagnosis:
        used = int(info_field(info, "used_memory") or 0)
        limit = int(info_field(info, "maxmemory") or 0)
        if not limit:
            return Diagnosis("memory", f"{used / 1e6:.1f} MB, no limit")
        found = f"{used / 1e6:.1f} MB of {limit / 1e6:.1f} MB"
        if used > 0.9 * limit:
            return Diagnosis("memory", found, "note", "when it is full, new claims are refused")
        return Diagnosis("memory", found)

    def _replication(self, info: str) -> Iterator[Diagnosis]:
        role = info_field(info, "role")
        if role != "master":
            yield Diagnosis("role", "replica", "bad", "connect to the primary")
            return
        replicas = int(info_field(info, "connected_slaves") or 0)
        wait = self._address.wait
        if wait > replicas:
            found, advice = (
                f"{replicas}, but wait={wait}",
                "no grant can be confirmed; lower ?wait=",
            )
            yield Diagnosis("replicas", found, "bad", advice)
        elif wait:
            advice = (
                f"a grant is handed out when {wait} have it in memory; a failover to one that"
                " has not, or the loss of both, still forgets it: use guards"
            )
            yield Diagnosis("replicas", f"{replicas}, wait={wait}", "note", advice)
        elif replicas:
            advice = "a failover may lose the last grants: two clients may believe they hold"
            yield Diagnosis("replicas", str(replicas), "note", advice)
        else:
            yield Diagnosis("replicas", "none")

    def _rights(self) -> Diagnosis:
        who = self._run("ACL", "WHOAMI")
        user = who if isinstance(who, str) else "this user"
        keys = keys_of(self._address.namespace)
        channel = channel_of(self._address.namespace, "probe")
        tried = {
            "EVAL": self._run("EVAL", probe().body, len(keys), *keys, channel),
            "EVALSHA": self._run("EVALSHA", "0" * 40, 0),
            "SCRIPT LOAD": self._run("SCRIPT", "LOAD", "return 1"),
            **({"WAIT": self._run("WAIT", 0, 1)} if self._address.wait else {}),
            **({"ROLE": self._run("ROLE")} if self._address.service else {}),
            # On a separate connection: a subscriber may send little else, and the store does not
            # need the UNSUBSCRIBE permission.
            "SUBSCRIBE": self._subscribed(channel),
        }
        for name, reply in tried.items():
            missing_is_fine = name == "EVALSHA" and str(reply).startswith("NOSCRIPT")
            if isinstance(reply, Exception) and not missing_is_fine:
                found = f"{user} may not use {name} ({reply})"
                return Diagnosis("rights", found, "bad", _RIGHTS)
        return Diagnosis("rights", f"{user} has all that are needed")

    def _subscribed(self, channel: str) -> Any:
        until_s = monotonic() + TIMEOUT_S
        connection = Connection(self._address, until_s, checked=False)
        try:
            return connection.exchange(pack("SUBSCRIBE", channel), until_s)
        finally:
            connection.close()

    def _namespace(self) -> Diagnosis:
        keys = keys_of(self._address.namespace)
        script = script_of(Sessions, self._address.layout)

        def send(command: Sessions) -> Reply:
            reply = self._run("EVAL", script.body, len(keys), *keys, *ENCODERS[Sessions](command))
            if isinstance(reply, Exception):
                raise translate(str(reply), self._address.label)
            return decode(reply)

        name = self._address.namespace
        try:
            living = live_sessions(send)
        except StoreError as error:
            return Diagnosis("namespace", f"{name}: {error.what}", "bad", error.advice)
        used = "in use" if self._run("EXISTS", *keys) else "not used yet"
        sessions = counted(living, "session")
        return Diagnosis("namespace", f"{name}: schema {SCHEMA}, {used}, {sessions}")
