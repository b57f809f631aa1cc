"""Encode comparisons and operations as etcd's JSON; decode and check replies.

Requests are built as text: keys and values are base64, so nothing needs escaping.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import b2a_base64
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from lockfast.errors import StoreError
from lockfast.stores.etcd.errors import CompactedError, TokenRefusedError, error_of
from lockfast.stores.etcd.transport import Json

TXN: Final = "/v3/kv/txn"
GRANT: Final = "/v3/lease/grant"
KEEP_ALIVE: Final = "/v3/lease/keepalive"
REVOKE: Final = "/v3/lease/revoke"
TIME_TO_LIVE: Final = "/v3/lease/timetolive"
AUTHENTICATE: Final = "/v3/auth/authenticate"

OPERATIONS_MAX: Final = 128
"""The most comparisons or operations that etcd accepts per transaction by default."""
_CODED_MAX: Final = 1024


class Kv(NamedTuple):
    """A key, as stored."""

    key: str
    value: str
    mod: int
    """The revision that last wrote the key."""
    lease: int = 0


class Found(NamedTuple):
    """The content of a range."""

    kvs: list[Kv]
    count: int  # type: ignore[assignment]  # hides tuple.count
    """The number of keys in the range, including those beyond the limit."""


class Change(NamedTuple):
    """A key that was put or deleted at the revision `kv.mod`."""

    kv: Kv
    before: Kv | None
    """For a deleted key: as it was, if the watch asked for that. None if the key was put."""


class Range(NamedTuple):
    """Keys to read: from `start` up to but not including `stop`; only `start` if `stop` is ""."""

    start: str
    stop: str = ""
    limit: int = 0
    reverse: bool = False


class Known:
    """What one request has read, at one revision."""

    def __init__(self, revision: int = 0) -> None:
        self.revision = revision
        self.found: dict[Range, Found] = {}
        self.kvs: dict[str, Kv] = {}

    def learn(self, wanted: Sequence[Range], answer: Answer) -> None:
        """Add the ranges that a branch of a transaction has read."""
        self.revision = self.revision or answer.revision
        for index, one in enumerate(wanted):
            self.found[one] = found = answer.found(index)
            for kv in found.kvs:
                self.kvs[kv.key] = kv

    def has(self, key: str) -> bool:
        """Return whether the key was read, even if it was absent."""
        return key in self.kvs or Range(key) in self.found

    def get(self, key: str) -> Kv | None:
        return self.kvs.get(key)


def txn(success: list[str], compare: Sequence[str] = (), failure: Sequence[str] = ()) -> str:
    """Encode a transaction of comparisons and operations."""
    parts = (("compare", compare), ("success", success), ("failure", failure))
    branches = [f'"{name}":[{",".join(part)}]' for name, part in parts if part]
    return f"{{{','.join(branches)}}}"


def _coded(value: str) -> str:
    return b2a_base64(value.encode(), newline=False).decode()


class Answer:
    """The reply to a transaction. A malformed reply raises StoreError."""

    def __init__(self, keys: Keys, reply: Json, revision: int = 0) -> None:
        self._keys = keys
        self._reply = reply
        self.succeeded = reply.get("succeeded") is True
        self.revision = revision or keys.revision_of(reply)

    def found(self, index: int) -> Found:
        """Return the result of the range at this index of the executed branch."""
        try:
            answer = self._responses()[index]["response_range"]
            kvs = [self._keys.kv(kv) for kv in answer.get("kvs", ())]
            return Found(kvs, int(answer.get("count", 0)))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._keys.malformed(error) from None

    def nested(self, index: int) -> Answer:
        """Return the reply to the transaction at this index of the executed branch."""
        try:
            reply = self._responses()[index]["response_txn"]
            if not isinstance(reply, dict):
                raise TypeError(f"a transaction answered {reply!r}")
        except (LookupError, TypeError) as error:
            raise self._keys.malformed(error) from None
        return Answer(self._keys, reply, self.revision)

    def _responses(self) -> list[Json]:
        responses = self._reply.get("responses", [])
        if not isinstance(responses, list):
            raise TypeError(f"{responses!r} is not a list of responses")
        return responses


def changes_in(keys: Keys, message: Json) -> tuple[bool, list[Change]]:
    """Decode a message of a watch: whether it confirms a range, and the changes it reports.

    Raises CompactedError, TokenRefusedError, or StoreError.
    """
    error = error_of(keys.label, message)
    if isinstance(error, StoreError | CompactedError | TokenRefusedError):
        raise error
    if error is not None:
        raise StoreError(keys.label, str(error))
    try:
        result = message["result"]
        if not result.get("canceled"):
            changes = [keys.change(event) for event in result.get("events", ())]
            return bool(result.get("created")), changes
        if "compact_revision" in result:
            raise CompactedError(int(result["compact_revision"]))
        reason = str(result.get("cancel_reason", "no reason given"))[:200]
    except (LookupError, TypeError, ValueError, AttributeError) as wrong:
        raise keys.malformed(wrong) from None
    if "auth" in reason or "permission" in reason:
        raise TokenRefusedError(reason)
    raise StoreError(keys.label, f"ended a watch ({reason})")


class Keys:
    """The keys of one namespace: text for the store, bytes under a common root in etcd."""

    def __init__(self, root: str, label: str) -> None:
        self.label = label
        self._root = root.encode()
        self._cut = len(self._root)
        self.coded = lru_cache(_CODED_MAX)(self._coded)
        """Encode a key for the gateway."""

    def _coded(self, key: str) -> str:
        return b2a_base64(self._root + key.encode(), newline=False).decode()

    def plain(self, coded: str) -> str:
        return b64decode(coded)[self._cut :].decode()

    # ── comparisons ──────────────────────────────────────────────────────────────────

    def unchanged(self, key: str, mod: int) -> str:
        """Compare that the key was last written by this revision; 0 means absent."""
        return f'{{"key":"{self.coded(key)}","target":"MOD","mod_revision":"{mod}"}}'

    def same_revision(self, key: str, kv: Kv | None) -> str:
        """Compare that the key has not been written since it was read; None means absent."""
        return self.unchanged(key, kv.mod if kv is not None else 0)

    def same(self, key: str, kv: Kv | None) -> str:
        """Compare that the key has the value that was read; None means absent.

        For values that are never written twice. After a cluster has lost its data or a backup was
        restored, revisions may repeat.
        """
        if kv is None:
            return self.unchanged(key, 0)
        return f'{{"key":"{self.coded(key)}","target":"VALUE","value":"{_coded(kv.value)}"}}'

    # Comparisons without a target compare the version, which is 0 for an absent key. Most of what
    # etcd does for a short transaction is decoding its JSON, so these are the shortest there are.

    def present(self, key: str, stop: str = "") -> str:
        """Compare that the key, or any key in the range, exists."""
        return f'{{{self._span(key, stop)},"result":"GREATER"}}'

    def absent(self, key: str, stop: str = "") -> str:
        """Compare that the key, or every key in the range, is absent."""
        return f"{{{self._span(key, stop)}}}"

    def nothing_since(self, start: str, stop: str, revision: int) -> str:
        """Compare that no key in a range was written after a revision; ignores deletions."""
        last = f'"target":"MOD","result":"LESS","mod_revision":"{revision + 1}"'
        return f"{{{self._span(start, stop)},{last}}}"

    # ── operations ───────────────────────────────────────────────────────────────────

    def put(self, key: str, value: str, lease: int = 0) -> str:
        under = f',"lease":"{lease}"' if lease else ""
        coded = _coded(value)
        return f'{{"request_put":{{"key":"{self.coded(key)}","value":"{coded}"{under}}}}}'

    def delete(self, key: str, stop: str = "") -> str:
        return f'{{"request_delete_range":{{{self._span(key, stop)}}}}}'

    def range(self, wanted: Range, revision: int = 0) -> str:
        start, stop, limit, reverse = wanted
        how = f',"limit":"{limit}"' if limit else ""
        if reverse:
            how += ',"sort_order":"DESCEND","sort_target":"KEY"'
        if revision:
            how += f',"revision":"{revision}"'
        return f'{{"request_range":{{{self._span(start, stop)}{how}}}}}'

    def reads(self, wanted: Iterable[Range], revision: int = 0) -> list[str]:
        return [self.range(one, revision) for one in wanted]

    def _span(self, start: str, stop: str) -> str:
        if not stop:
            return f'"key":"{self.coded(start)}"'
        return f'"key":"{self.coded(start)}","range_end":"{self.coded(stop)}"'

    # ── replies ──────────────────────────────────────────────────────────────────────

    def kv(self, kv: Json) -> Kv:
        """Decode a key of a reply; the caller handles the errors that a malformed one raises."""
        return Kv(
            self.plain(kv["key"]),
            b64decode(kv.get("value", "")).decode(),
            int(kv.get("mod_revision", 0)),
            int(kv.get("lease", 0)),
        )

    def change(self, event: Json) -> Change:
        """Decode a change of a watch's message, like `kv`."""
        kv = self.kv(event["kv"])
        if event.get("type") != "DELETE":
            return Change(kv, None)
        return Change(kv, self.kv(event["prev_kv"]) if "prev_kv" in event else kv)

    def number(self, reply: Json, name: str) -> int:
        """Return a number from a reply; 0 if it is missing, since etcd omits zeros."""
        try:
            return int(reply.get(name, 0))
        except (TypeError, ValueError) as error:
            raise self.malformed(error) from None

    def revision_of(self, reply: Json) -> int:
        header = reply.get("header")
        if not isinstance(header, dict):
            raise self.malformed(ValueError("no header"))
        return self.number(header, "revision")

    def malformed(self, error: Exception) -> StoreError:
        return StoreError(
            self.label,
            f"sent a reply that is not etcd's ({error!r})",
            "check that the URL names etcd's client port",
        )
