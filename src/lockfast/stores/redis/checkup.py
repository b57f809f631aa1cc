"""A look at a Redis server: is it fit to keep locks, and what would it lose?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from time import monotonic
from typing import Any, Final

from lockfast.core.commands import Sessions
from lockfast.errors import StoreError
from lockfast.stores.diagnosis import Diagnosis
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.connection import (
    EVICTING,
    Connection,
    info_field,
    pack,
)
from lockfast.stores.redis.errors import translate
from lockfast.stores.redis.scripts import inbox_of, keys_of, probe, script_of

PINGS: Final = 20
CLOCK_MS_MAX: Final = 1000
"""Tokens after a loss of data rest on the server's clock; a second is far off."""
TIMEOUT_S: Final = 5.0
OLDEST: Final = [6, 2]
"""What every build is tested on."""


def examine(address: Address) -> Iterator[Diagnosis]:
    """Look at everything; what cannot be seen is said, not passed over.

    Raises StoreUnavailableError or StoreMisconfiguredError if there is no way in.
    """
    # First without the check of its own that a store makes, so as to report instead.
    connection = Connection(address, monotonic() + TIMEOUT_S)
    try:
        yield from _Checkup(address, connection).findings()
    finally:
        connection.close()


class _Checkup:
    def __init__(self, address: Address, connection: Connection) -> None:
        self._address = address
        self._connection = connection

    def findings(self) -> Iterator[Diagnosis]:
        info = self._run("INFO")
        if isinstance(info, Exception):
            raise translate(str(info), self._address.label)
        yield self._server(info)
        yield self._round_trip()
        yield self._clock()
        yield from self._persistence(info)
        yield self._eviction(info)
        yield self._memory(info)
        yield from self._replication(info)
        yield self._rights()
        yield self._schema()

    def _run(self, *arguments: str | bytes | int) -> Any:
        return self._connection.exchange(pack(*arguments), monotonic() + TIMEOUT_S)

    def _server(self, info: str) -> Diagnosis:
        version = info_field(info, "valkey_version")
        name = "Valkey" if version else "Redis"
        version = version or info_field(info, "redis_version")
        mode = info_field(info, "redis_mode")
        if [int(part) for part in version.split(".")[:2]] < OLDEST:
            return Diagnosis(
                "server", f"{name} {version}", "bad", "use Redis 6.2 or newer, or Valkey"
            )
        if mode == "cluster":
            return Diagnosis("server", f"{name} {version}, {mode}", "note", "one shard is one slot")
        return Diagnosis("server", f"{name} {version}, {mode}")

    def _round_trip(self) -> Diagnosis:
        took_ms = []
        for _ in range(PINGS):
            sent_s = monotonic()
            self._run("PING")
            took_ms.append((monotonic() - sent_s) * 1000)
        found = f"{median(took_ms):.2f} ms (slowest of {PINGS}: {max(took_ms):.2f} ms)"
        return Diagnosis("round trip", found)

    def _clock(self) -> Diagnosis:
        sent_s = time.time()
        reply = self._run("TIME")
        answered_s = time.time()
        if isinstance(reply, Exception):
            return Diagnosis("clock", f"cannot be read ({reply})", "bad", "allow TIME")
        server_s = int(reply[0]) + int(reply[1]) / 1e6
        off_ms = max(sent_s - server_s, server_s - answered_s, 0) * 1000
        found = f"{off_ms:.0f} ms apart from ours"
        if off_ms > CLOCK_MS_MAX:
            return Diagnosis("clock", found, "note", "let NTP set the clocks of both machines")
        return Diagnosis("clock", found)

    def _persistence(self, info: str) -> Iterator[Diagnosis]:
        if info_field(info, "aof_enabled") == "1":
            policy = self._config("appendfsync")
            found = f"append-only file, appendfsync {policy or 'unknown'}"
            if policy == "always":
                yield Diagnosis("persistence", found)
            else:
                advice = "a crash forgets up to a second of grants; guards still hold"
                yield Diagnosis("persistence", found, "note", advice)
        else:
            saves = self._config("save")
            found = f"snapshots ({saves})" if saves else "none"
            advice = "a crash forgets grants: two may believe they hold; guard what matters"
            yield Diagnosis("persistence", found, "note", advice)
        if info_field(info, "rdb_last_bgsave_status") not in ("ok", ""):
            yield Diagnosis("last save", "failed", "bad", "look at the server's log and disk")
        if info_field(info, "aof_last_write_status") not in ("ok", ""):
            yield Diagnosis("last append", "failed", "bad", "look at the server's log and disk")

    def _config(self, name: str) -> str:
        reply = self._run("CONFIG", "GET", name)
        return str(reply[1]) if isinstance(reply, list) and len(reply) == 2 else ""

    def _eviction(self, info: str) -> Diagnosis:
        policy = info_field(info, "maxmemory_policy") or "unknown"
        if not policy.startswith(EVICTING):
            return Diagnosis("maxmemory-policy", policy)
        if self._address.allows_eviction:
            return Diagnosis("maxmemory-policy", policy, "note", "locks may vanish, as you allowed")
        advice = "set noeviction (or a volatile- policy), or write ?eviction=allow"
        return Diagnosis("maxmemory-policy", f"{policy}: held locks may be dropped", "bad", advice)

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
        if replicas:
            advice = "a failover may forget the last grants: two may believe they hold"
            yield Diagnosis("replicas", str(replicas), "note", advice)
        else:
            yield Diagnosis("replicas", "none")

    def _rights(self) -> Diagnosis:
        who = self._run("ACL", "WHOAMI")
        user = who if isinstance(who, str) else "this user"
        keys = keys_of(self._address.namespace)
        channel = inbox_of(self._address.namespace, "probe")
        tried = {
            "EVAL": self._run("EVAL", probe().body, len(keys), *keys, channel),
            "EVALSHA": self._run("EVALSHA", "0" * 40, 0),
            "SCRIPT LOAD": self._run("SCRIPT", "LOAD", "return 1"),
        }
        for name, reply in tried.items():
            missing_is_fine = name == "EVALSHA" and str(reply).startswith("NOSCRIPT")
            if isinstance(reply, Exception) and not missing_is_fine:
                advice = "see the ACL line in docs/stores/redis.md"
                return Diagnosis("rights", f"{user} may not use {name} ({reply})", "bad", advice)
        heard = self._run("SUBSCRIBE", channel)
        if isinstance(heard, Exception):
            advice = "see the ACL line in docs/stores/redis.md"
            return Diagnosis("rights", f"{user} may not SUBSCRIBE ({heard})", "bad", advice)
        self._run("UNSUBSCRIBE", channel)
        return Diagnosis("rights", f"{user} may do all that is needed")

    def _schema(self) -> Diagnosis:
        keys = keys_of(self._address.namespace)
        script = script_of(Sessions)
        reply = self._run("EVAL", script.body, len(keys), *keys, "", 1000)
        namespace = self._address.namespace
        if isinstance(reply, Exception):
            try:
                raise translate(str(reply), self._address.label)
            except StoreError as error:
                return Diagnosis("namespace", f"{namespace}: {error.what}", "bad", "use another")
        used = "in use" if self._run("EXISTS", *keys) else "not used yet"
        living = sum(not session[8] for session in reply[1])
        return Diagnosis("namespace", f"{namespace}: schema 1, {used}, {living} sessions")
