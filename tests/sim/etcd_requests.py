"""Random requests for etcd: few keys, so that they conflict, and occasional mistakes."""

from __future__ import annotations

import random
from base64 import b64encode
from typing import Any

Json = dict[str, Any]

_KEYS = (b"a", b"a/1", b"a/2", b"b", b"b/1", b"c")
_ENDS = (b"", b"", b"a/9", b"b", b"c\x00", b"\x00")
_VALUES = (b"", b"x", b"y")
TTL_S = 600
_OFTEN = {
    "range": 3,
    "put": 5,
    "deleterange": 2,
    "txn": 14,
    "grant": 2,
    "revoke": 1,
    "timetolive": 1,
    "keepalive": 1,
    "compaction": 0.5,
}


def text(plain: bytes) -> str:
    return b64encode(plain).decode()


class Requests:
    """A stream of requests that depends on the server's answers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"etcd requests {seed}")
        self.revision = 1
        self.leases = (7001, 7002, 7003)

    def next(self) -> tuple[str, Json]:
        """Return a path and a body."""
        rng = self.rng
        kind = rng.choices(list(_OFTEN), list(_OFTEN.values()))[0]
        if kind == "txn":
            return "/v3/kv/txn", self.txn(0)
        if kind in ("grant", "revoke", "timetolive", "keepalive"):
            return f"/v3/lease/{kind}", self._lease_request(kind)
        if kind == "compaction":
            revision = max(0, self.revision + rng.choice((-3, -1, 0, 1)))
            return "/v3/kv/compaction", {"revision": str(revision)}
        return f"/v3/kv/{kind}", {
            "range": self.range,
            "put": self.put,
            "deleterange": self.delete,
        }[kind]()

    def _lease_request(self, kind: str) -> Json:
        rng = self.rng
        body: Json = {"ID": str(rng.choice((*self.leases, 9999)))}
        if kind == "grant":
            body["TTL"] = str(rng.choice((TTL_S, TTL_S, TTL_S + 1, 10_000_000_000)))
        if kind == "timetolive" and rng.random() < 0.7:
            body["keys"] = True
        return body

    # ── the parts of transactions ────────────────────────────────────────────────────

    def txn(self, depth: int) -> Json:
        rng = self.rng
        body: Json = {}
        if rng.random() < 0.8:
            body["compare"] = [self.compare() for _ in range(rng.randrange(4))]
        for branch in ("success", "failure"):
            if rng.random() < 0.8:
                count = 130 if rng.random() < 0.01 else rng.randrange(5 if depth == 0 else 3)
                body[branch] = [self.operation(depth) for _ in range(count)]
        return body

    def operation(self, depth: int) -> Json:
        rng = self.rng
        draw = rng.random()
        if draw < 0.3 and depth < 2:
            return {"request_txn": self.txn(depth + 1)}
        if draw < 0.55:
            return {"request_range": self.range()}
        if draw < 0.9:
            return {"request_put": self.put()}
        if draw < 0.995:
            return {"request_delete_range": self.delete()}
        return {}

    def compare(self) -> Json:
        rng = self.rng
        body: Json = {"key": self._key()}
        if rng.random() < 0.3:
            body["range_end"] = text(rng.choice(_ENDS))
        target = rng.choice(("VERSION", "CREATE", "MOD", "VALUE", "LEASE", None))
        if target is not None:
            body["target"] = target if rng.random() < 0.8 else _NUMBER[target]
        if rng.random() < 0.7:
            body["result"] = rng.choice(("EQUAL", "GREATER", "LESS", "NOT_EQUAL"))
        if rng.random() < 0.9:
            name = _COMPARED[target or "VERSION"]
            body[name] = {
                "version": str(rng.randrange(4)),
                "value": text(rng.choice(_VALUES)),
                "lease": str(rng.choice((0, *self.leases))),
            }.get(name, str(self._some_revision()))
        return body

    def range(self) -> Json:
        rng = self.rng
        body: Json = {"key": self._key()}
        if rng.random() < 0.7:
            body["range_end"] = text(rng.choice(_ENDS))
        if rng.random() < 0.3:
            body["limit"] = str(rng.randrange(4))
        if rng.random() < 0.2:
            body["revision"] = str(self._some_revision())
        if rng.random() < 0.3:
            body["sort_order"] = rng.choice(("NONE", "ASCEND", "DESCEND"))
        if rng.random() < 0.3:
            body["sort_target"] = rng.choice(("KEY", "VERSION", "CREATE", "MOD", "VALUE"))
        for name in ("keys_only", "count_only", "serializable"):
            if rng.random() < 0.15:
                body[name] = True
        for bound in ("min_mod_revision", "max_mod_revision", "min_create_revision"):
            if rng.random() < 0.08:
                body[bound] = str(self._some_revision())
        return body

    def put(self) -> Json:
        rng = self.rng
        body: Json = {"key": self._key(), "value": text(rng.choice(_VALUES))}
        if rng.random() < 0.4:
            body["lease"] = str(rng.choice(self.leases))
        if rng.random() < 0.2:
            body["prev_kv"] = True
        if rng.random() < 0.03:
            body["ignore_value"] = True
        if rng.random() < 0.03:
            body["ignore_lease"] = True
        return body

    def delete(self) -> Json:
        rng = self.rng
        body: Json = {"key": self._key()}
        if rng.random() < 0.4:
            body["range_end"] = text(rng.choice(_ENDS))
        if rng.random() < 0.3:
            body["prev_kv"] = True
        return body

    def _key(self) -> str:
        if self.rng.random() < 0.005:
            return ""
        return text(self.rng.choice(_KEYS))

    def _some_revision(self) -> int:
        return max(0, self.revision + self.rng.choice((-20, -5, -2, -1, 0, 0, 1)))


_NUMBER = {"VERSION": 0, "CREATE": 1, "MOD": 2, "VALUE": 3, "LEASE": 4}
_COMPARED = {
    "VERSION": "version",
    "CREATE": "create_revision",
    "MOD": "mod_revision",
    "VALUE": "value",
    "LEASE": "lease",
}
