"""The gateway's paths, and the request of the state machine that each stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lockfast.sim.etcd.state import State, is_serializable, lease_not_found, only_reads
from lockfast.sim.etcd.wire import NOT_FOUND, EtcdError, Json, number

RANGE: Final = "/v3/kv/range"
TXN: Final = "/v3/kv/txn"
KEEP_ALIVE: Final = "/v3/lease/keepalive"
WATCH: Final = "/v3/watch"


class Gateway:
    """Executes requests one at a time. `now_us` is the clock that lease TTLs are measured by."""

    def __init__(self, state: State, now_us: Callable[[], int]) -> None:
        self.state = state
        self._now_us = now_us
        self._paths: dict[str, Callable[[Json], Json]] = {
            RANGE: state.range,
            "/v3/kv/put": state.put,
            "/v3/kv/deleterange": state.delete_range,
            TXN: state.txn,
            "/v3/kv/compaction": state.compact,
            "/v3/lease/grant": self._grant,
            "/v3/lease/revoke": self._revoke,
            KEEP_ALIVE: self._keep_alive,
            "/v3/lease/timetolive": self._time_to_live,
            "/v3/kv/lease/timetolive": self._time_to_live,
            "/v3/lease/leases": self._leases,
        }
        self.on_grant: Callable[[int], None] = lambda lease_id: None

    def call(self, path: str, body: Json) -> Json:
        """Execute a request and return its reply. Raises EtcdError."""
        handler = self._paths.get(path)
        if handler is None:
            raise EtcdError(NOT_FOUND, "Not Found")
        return handler(body)

    def read(self, path: str, body: Json, revision: int) -> Json:
        """Execute a serializable read as a member that has applied the log up to a revision."""
        return self.state.range(body, revision) if path == RANGE else self.state.txn(body, revision)

    def left_us(self, lease_id: int) -> int:
        """Return the rest of a lease's TTL; negative if it has expired but is not yet revoked."""
        return self.state.leases[lease_id].expires_us - self._now_us()

    def refresh(self, lease_id: int, more_us: int = 0) -> None:
        """Restart a lease's TTL."""
        lease = self.state.leases[lease_id]
        lease.expires_us = self._now_us() + lease.ttl_s * 1_000_000 + more_us

    def _grant(self, body: Json) -> Json:
        lease = self.state.grant(body)
        self.refresh(lease.id)
        self.on_grant(lease.id)
        return {"header": {}, "ID": str(lease.id), "TTL": str(lease.ttl_s)}

    def _revoke(self, body: Json) -> Json:
        self.state.revoke(number(body, "ID"))
        return {"header": {"revision": str(self.state.mvcc.revision)}}

    def _keep_alive(self, body: Json) -> Json:
        lease_id = number(body, "ID")
        answer: Json = {"header": {}}
        if lease_id:
            answer["ID"] = str(lease_id)
        if lease_id in self.state.leases:
            self.refresh(lease_id)
            answer["TTL"] = str(self.state.leases[lease_id].ttl_s)
        return {"result": answer}

    def _time_to_live(self, body: Json) -> Json:
        lease_id = number(body, "ID")
        left_us = self.left_us(lease_id) if lease_id in self.state.leases else 0
        keys = bool(body.get("keys"))
        return {"header": {}, **self.state.time_to_live(lease_id, left_us // 1_000_000, keys=keys)}

    def _leases(self, body: Json) -> Json:
        found = [{"ID": str(lease_id)} for lease_id in self.state.leases]
        return {"header": {}, **({"leases": found} if found else {})}


def is_local_read(path: str, body: Json) -> bool:
    """Return whether a member answers from its own applied state, without the leader."""
    if path == RANGE:
        return bool(body.get("serializable"))
    return path == TXN and only_reads(body) and is_serializable(body)


__all__ = ["KEEP_ALIVE", "WATCH", "Gateway", "is_local_read", "lease_not_found"]
