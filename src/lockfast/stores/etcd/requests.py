"""The gateway's JSON: what is asked for, and what was answered."""

from __future__ import annotations

from base64 import b64decode
from binascii import b2a_base64
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

Json: TypeAlias = dict[str, Any]

TXN: Final = "/v3/kv/txn"
GRANT: Final = "/v3/lease/grant"
KEEP_ALIVE: Final = "/v3/lease/keepalive"
WATCH: Final = "/v3/watch"
AUTHENTICATE: Final = "/v3/auth/authenticate"

CODED_MAX: Final = 1024
"""Keys whose coded form is kept: most locks are taken again and again."""
OPERATIONS_MAX: Final = 128
"""What etcd allows in each part of a transaction, by default."""


class Kv(NamedTuple):
    """One key as stored."""

    key: str
    value: str
    mod: int
    """The revision that wrote it."""
    version: int = 0
    """How often it was written."""


class Found(NamedTuple):
    """What a range has."""

    kvs: list[Kv]
    count: int  # type: ignore[assignment]  # hides tuple.count
    more: bool


def coded(plain: bytes) -> str:
    return b2a_base64(plain, newline=False).decode()


class Keys:
    """The keys of one namespace: ours are text, etcd's are bytes behind a common root."""

    def __init__(self, root: str) -> None:
        self._root = root.encode()
        self._cut = len(self._root)
        self.coded = lru_cache(CODED_MAX)(self._coded)
        """A key as the gateway wants it."""

    def _coded(self, key: str) -> str:
        return coded(self._root + key.encode())

    def plain(self, coded: str) -> str:
        return b64decode(coded)[self._cut :].decode()

    # ── comparisons ──────────────────────────────────────────────────────────────────

    def unchanged(self, key: str, mod: int) -> Json:
        """Written last by this revision; 0: not there."""
        return {"key": self.coded(key), "target": "MOD", "mod_revision": str(mod)}

    def present(self, key: str) -> Json:
        compare = {"key": self.coded(key), "target": "MOD", "mod_revision": "0"}
        return {**compare, "result": "GREATER"}

    def empty(self, start: str, stop: str) -> Json:
        """There is no key in a range."""
        return self._over(start, stop, {"target": "CREATE", "create_revision": "0"})

    def nothing_since(self, start: str, stop: str, revision: int) -> Json:
        """No key in a range was written after a revision."""
        last = {"target": "MOD", "result": "LESS", "mod_revision": str(revision + 1)}
        return self._over(start, stop, last)

    def _over(self, start: str, stop: str, condition: Json) -> Json:
        return {"key": self.coded(start), "range_end": self.coded(stop), **condition}

    # ── operations ───────────────────────────────────────────────────────────────────

    def put(self, key: str, value: str, lease: int = 0) -> Json:
        request = {"key": self.coded(key), "value": coded(value.encode())}
        if lease:
            request["lease"] = str(lease)
        return {"request_put": request}

    def delete(self, key: str, stop: str = "") -> Json:
        request = {"key": self.coded(key)}
        if stop:
            request["range_end"] = self.coded(stop)
        return {"request_delete_range": request}

    def range(
        self,
        start: str,
        stop: str = "",
        limit: int = 0,
        *,
        reverse: bool = False,
        revision: int = 0,
        since: int = 0,
        keys_only: bool = False,
        count_only: bool = False,
    ) -> Json:
        """One key, or those of a range; as of a revision; changed since another."""
        request: Json = {"key": self.coded(start)}
        if stop:
            request["range_end"] = self.coded(stop)
        if limit:
            request["limit"] = str(limit)
        if reverse:
            request["sort_order"], request["sort_target"] = "DESCEND", "KEY"
        if revision:
            request["revision"] = str(revision)
        if since:
            request["min_mod_revision"] = str(since)
        if keys_only:
            request["keys_only"] = True
        if count_only:
            request["count_only"] = True
        return {"request_range": request}

    # ── answers ──────────────────────────────────────────────────────────────────────

    def found(self, response: Json) -> Found:
        answer = response["response_range"]
        kvs = [self.kv(kv) for kv in answer.get("kvs", ())]
        return Found(kvs, int(answer.get("count", 0)), bool(answer.get("more")))

    def kv(self, kv: Json) -> Kv:
        value = b64decode(kv.get("value", "")).decode()
        mod, version = int(kv.get("mod_revision", 0)), int(kv.get("version", 0))
        return Kv(self.plain(kv["key"]), value, mod, version)


def revision_of(answer: Json) -> int:
    return int(answer["header"]["revision"])
