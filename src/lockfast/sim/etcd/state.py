"""What etcd's members agree on: keys, leases and alarms, changed by one request after another.

The rules are those of etcd 3.5, as a real server applies them (a test compares both on random
requests). Three of them decide whether a lock is safe:

- All comparisons of a transaction, those of its nested transactions included, are evaluated on
  the state before the request. Only reads see what siblings have written.
- A put under a lease that does not exist fails the whole request, but only on the path taken.
- All keys of a lease are deleted in one revision.

Time is not part of this state: the leader revokes leases (`cluster.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from lockfast.sim.etcd.mvcc import Kv, Mvcc
from lockfast.sim.etcd.wire import (
    EXHAUSTED,
    INVALID,
    NOT_FOUND,
    OUT_OF_RANGE,
    PRECONDITION,
    EtcdError,
    Json,
    choice,
    coded,
    known,
    kv_json,
    number,
    octets,
)

OPERATIONS_MAX: Final = 128
LEASE_TTL_MAX_S: Final = 9_000_000_000

_TARGETS: Final = {"VERSION": 0, "CREATE": 1, "MOD": 2, "VALUE": 3, "LEASE": 4}
_RESULTS: Final = {"EQUAL": 0, "GREATER": 1, "LESS": 2, "NOT_EQUAL": 3}
_ORDERS: Final = {"NONE": 0, "ASCEND": 1, "DESCEND": 2}
_SORTS: Final = {"KEY": 0, "VERSION": 1, "CREATE": 2, "MOD": 3, "VALUE": 4}
_SORT_KEYS: Final[tuple[Callable[[Kv], Any], ...]] = (
    lambda kv: kv.key,
    lambda kv: kv.version,
    lambda kv: kv.create,
    lambda kv: kv.mod,
    lambda kv: kv.value,
)
_COMPARED: Final = ("version", "create_revision", "mod_revision", "value", "lease")

_PUT: Final = frozenset(("key", "value", "lease", "prev_kv", "ignore_value", "ignore_lease"))
_DELETE: Final = frozenset(("key", "range_end", "prev_kv"))
_BOUNDS: Final = (
    "min_mod_revision",
    "max_mod_revision",
    "min_create_revision",
    "max_create_revision",
)
_BOUNDED: Final = frozenset(_BOUNDS)
_RANGE: Final = frozenset(
    [
        "key",
        "range_end",
        "limit",
        "revision",
        "sort_order",
        "sort_target",
        "serializable",
        "keys_only",
        "count_only",
    ]
) | frozenset(_BOUNDS)
_COMPARE: Final = frozenset(("key", "range_end", "target", "result", *_COMPARED))
_TXN: Final = frozenset(("compare", "success", "failure"))
_OPERATIONS: Final = frozenset(
    ("request_range", "request_put", "request_delete_range", "request_txn")
)


def empty_key() -> EtcdError:
    return EtcdError(INVALID, "etcdserver: key is not provided")


def lease_not_found() -> EtcdError:
    return EtcdError(NOT_FOUND, "etcdserver: requested lease not found")


def compacted() -> EtcdError:
    return EtcdError(OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted")


def _duplicate() -> EtcdError:
    return EtcdError(INVALID, "etcdserver: duplicate key given in txn request")


class Lease:
    """A lease that keys can be attached to."""

    __slots__ = ("expires_us", "id", "keys", "ttl_s")

    def __init__(self, number: int, ttl_s: int) -> None:
        self.id = number
        self.ttl_s = ttl_s
        self.keys: set[bytes] = set()
        self.expires_us = 0
        """When its TTL expires, by the leader's clock."""


class _Path(NamedTuple):
    """The branch of a transaction that its comparisons select."""

    succeeded: bool
    operations: list[Json]
    nested: list[_Path]
    """One for each nested transaction of the branch, in order."""


class State:
    """The state machine that a cluster's log is applied to."""

    def __init__(self, lease_ttl_min_s: int = 1) -> None:
        self.mvcc = Mvcc()
        self.leases: dict[int, Lease] = {}
        self.no_space = False
        """The NOSPACE alarm is active: requests that need space are refused."""
        self._lease_ttl_min_s = lease_ttl_min_s
        self._next_lease = 7_587_000_000_000_000_001

    # ── keys ─────────────────────────────────────────────────────────────────────────

    def range(self, body: Json, revision: int = 0) -> Json:
        """Return the keys of a range; `revision` is how far a lagging member has come."""
        check_range(body)
        self._check_revision(body, revision or self.mvcc.revision)
        return self._range(body, revision)

    def put(self, body: Json) -> Json:
        check_put(body)
        self._check_space()
        # A plain put checks its lease first; a put inside a transaction checks its key first.
        self._check_lease(body)
        self._check_put(body)
        answer = self._put(body)
        self.mvcc.end()
        return answer

    def delete_range(self, body: Json) -> Json:
        check_delete(body)
        answer = self._delete(body)
        self.mvcc.end()
        return answer

    def txn(self, body: Json, revision: int = 0) -> Json:
        """Execute a transaction; a read-only one may run at the revision of a lagging member."""
        check_txn(body)
        if self.no_space and _puts(body):
            self._check_space()
        path = self._path(body, revision)
        for name, request in _requests(path):
            if name == "request_put":
                self._check_put(request)
        for name, request in _requests(path):
            if name == "request_range":
                self._check_revision(request, revision or self.mvcc.revision)
        answer = self._run(path, revision)
        self.mvcc.end()
        answer["header"] = {"revision": str(revision or self.mvcc.revision)}
        return answer

    def compact(self, body: Json) -> Json:
        revision = number(body, "revision")
        if revision <= self.mvcc.compacted:
            raise compacted()
        if revision > self.mvcc.revision:
            raise _future()
        self.mvcc.compact(revision)
        return {"header": {"revision": str(self.mvcc.revision)}}

    # ── leases ───────────────────────────────────────────────────────────────────────

    def grant(self, body: Json) -> Lease:
        self._check_space()
        lease_id, ttl_s = number(body, "ID"), number(body, "TTL")
        if ttl_s > LEASE_TTL_MAX_S:
            raise EtcdError(OUT_OF_RANGE, "etcdserver: too large lease TTL")
        if not lease_id:
            lease_id, self._next_lease = self._next_lease, self._next_lease + 1
        if lease_id in self.leases:
            raise EtcdError(PRECONDITION, "etcdserver: lease already exists")
        lease = self.leases[lease_id] = Lease(lease_id, max(ttl_s, self._lease_ttl_min_s))
        return lease

    def revoke(self, lease_id: int) -> None:
        """Revoke a lease and delete its keys in one revision. Raises EtcdError if it is unknown."""
        lease = self.leases.get(lease_id)
        if lease is None:
            raise lease_not_found()
        for key in sorted(lease.keys):
            self.mvcc.delete(key, b"")
        del self.leases[lease_id]
        self.mvcc.end()

    def time_to_live(self, lease_id: int, left_s: int, *, keys: bool) -> Json:
        """Return the reply for a lease; the leader, which counts its TTL, passes `left_s`."""
        lease = self.leases.get(lease_id)
        answer: Json = {"ID": str(lease_id)} if lease_id else {}
        if lease is None:
            return {**answer, "TTL": "-1"}
        if left_s:
            answer["TTL"] = str(left_s)
        answer["grantedTTL"] = str(lease.ttl_s)
        if keys and lease.keys:
            # In no particular order: the server iterates over a hash map.
            answer["keys"] = [coded(key) for key in sorted(lease.keys, reverse=True)]
        return answer

    # ── what a request must fulfil ───────────────────────────────────────────────────

    def _check_space(self) -> None:
        if self.no_space:
            raise EtcdError(EXHAUSTED, "etcdserver: mvcc: database space exceeded")

    def _check_put(self, body: Json) -> None:
        ignores = body.get("ignore_value") or body.get("ignore_lease")
        if ignores and octets(body, "key") not in self.mvcc.live:
            raise EtcdError(INVALID, "etcdserver: key not found")
        self._check_lease(body)

    def _check_lease(self, body: Json) -> None:
        lease = number(body, "lease")
        if lease and lease not in self.leases:
            raise lease_not_found()

    def _check_revision(self, body: Json, current: int) -> None:
        revision = number(body, "revision")
        if revision > current:
            raise _future()
        if revision and revision < self.mvcc.compacted:
            raise compacted()

    # ── comparing ────────────────────────────────────────────────────────────────────

    def _path(self, body: Json, revision: int) -> _Path:
        succeeded = all(self._holds(compare, revision) for compare in body.get("compare", ()))
        operations = body.get("success" if succeeded else "failure", [])
        nested = [
            self._path(operation["request_txn"], revision)
            for operation in operations
            if "request_txn" in operation
        ]
        return _Path(succeeded, operations, nested)

    def _holds(self, body: Json, revision: int) -> bool:
        """Return whether all keys of a comparison satisfy it; a missing key compares as zeros."""
        target = choice(body, "target", _TARGETS)
        result = choice(body, "result", _RESULTS)
        found = self.mvcc.range(octets(body, "key"), octets(body, "range_end"), revision)
        name = _COMPARED[target]
        if name == "value":
            value = octets(body, "value")
            return bool(found) and all(_agrees(kv.value, value, result) for kv in found)
        expected = number(body, name)
        return all(
            _agrees((kv.version, kv.create, kv.mod, 0, kv.lease)[target], expected, result)
            for kv in found or (Kv(b"", 0, 0, 0),)
        )

    # ── carrying out ─────────────────────────────────────────────────────────────────

    def _run(self, path: _Path, revision: int) -> Json:
        answer: Json = {"header": {}}
        if path.succeeded:
            answer["succeeded"] = True
        nested = iter(path.nested)
        responses: list[Json] = []
        for operation in path.operations:
            if "request_range" in operation:
                made = {"response_range": self._range(operation["request_range"], revision)}
            elif "request_put" in operation:
                made = {"response_put": self._put(operation["request_put"])}
            elif "request_delete_range" in operation:
                deleted = self._delete(operation["request_delete_range"])
                made = {"response_delete_range": deleted}
            else:
                made = {"response_txn": self._run(next(nested), revision)}
            responses.append(made)
        if responses:
            answer["responses"] = responses
        return answer

    def _range(self, body: Json, member_revision: int) -> Json:
        revision = number(body, "revision") or member_revision
        start, stop = octets(body, "key"), octets(body, "range_end")
        limit = number(body, "limit")
        order, sort = choice(body, "sort_order", _ORDERS), choice(body, "sort_target", _SORTS)
        bounds = [number(body, bound) for bound in _BOUNDS] if not _BOUNDED.isdisjoint(body) else []
        # A limited range in key order reads only its head or its tail.
        is_part = limit > 0 and not sort and not any(bounds)
        head, tail = limit + 1, order == _ORDERS["DESCEND"]
        found, count = self.mvcc.part(start, stop, revision, head if is_part else 0, tail=tail)
        answer: Json = {"header": {"revision": str(member_revision or self.mvcc.visible())}}
        if count:
            answer["count"] = str(count)
        if body.get("count_only"):
            return answer
        if limit > 0 and not order and not any(bounds):
            # The server reads one more than requested, then sorts.
            found = found[: limit + 1]
        if any(bounds):
            found = [kv for kv in found if _is_within(kv, bounds)]
        if order or sort:
            # Equal entries stay in key order, in both directions.
            found.sort(key=_SORT_KEYS[sort], reverse=order == _ORDERS["DESCEND"])
        if 0 < limit < len(found):
            found = found[:limit]
            answer["more"] = True
        if found:
            keys_only = bool(body.get("keys_only"))
            answer["kvs"] = [kv_json(kv, keys_only=keys_only) for kv in found]
        return answer

    def _put(self, body: Json) -> Json:
        key, mvcc = octets(body, "key"), self.mvcc
        former = mvcc.live.get(key)
        value, lease = octets(body, "value"), number(body, "lease")
        if former is not None and body.get("ignore_value"):
            value = former.value
        if former is not None and body.get("ignore_lease"):
            lease = former.lease
        mvcc.put(key, value, lease)
        if former is not None:
            self._detach(former)
        if lease:
            self.leases[lease].keys.add(key)
        answer: Json = {"header": {"revision": str(mvcc.visible())}}
        if former is not None and body.get("prev_kv"):
            answer["prev_kv"] = kv_json(former)
        return answer

    def _delete(self, body: Json) -> Json:
        gone = self.mvcc.delete(octets(body, "key"), octets(body, "range_end"))
        for kv in gone:
            self._detach(kv)
        answer: Json = {"header": {"revision": str(self.mvcc.visible())}}
        if gone:
            answer["deleted"] = str(len(gone))
            if body.get("prev_kv"):
                answer["prev_kvs"] = [kv_json(kv) for kv in gone]
        return answer

    def _detach(self, kv: Kv) -> None:
        if kv.lease:
            self.leases[kv.lease].keys.discard(kv.key)


def _future() -> EtcdError:
    return EtcdError(OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision")


def _agrees(found: object, expected: object, result: int) -> bool:
    if result == 0:
        return found == expected
    if result == 1:
        return found > expected  # type: ignore[operator,no-any-return]
    if result == 2:
        return found < expected  # type: ignore[operator,no-any-return]
    return found != expected


def _is_within(kv: Kv, bounds: list[int]) -> bool:
    mod_min, mod_max, create_min, create_max = bounds
    return not (
        (mod_min and kv.mod < mod_min)
        or (mod_max and kv.mod > mod_max)
        or (create_min and kv.create < create_min)
        or (create_max and kv.create > create_max)
    )


# ── what the server checks before it looks at any key ────────────────────────────────


def check_range(body: Json) -> None:
    known(body, _RANGE, "RangeRequest")
    if not body.get("key"):
        raise empty_key()


def check_put(body: Json) -> None:
    known(body, _PUT, "PutRequest")
    if not body.get("key"):
        raise empty_key()
    if body.get("ignore_value") and body.get("value"):
        raise EtcdError(INVALID, "etcdserver: value is provided")
    if body.get("ignore_lease") and number(body, "lease"):
        raise EtcdError(INVALID, "etcdserver: lease is provided")


def check_delete(body: Json) -> None:
    known(body, _DELETE, "DeleteRangeRequest")
    if not body.get("key"):
        raise empty_key()


def check_txn(body: Json) -> None:
    """Refuse a transaction that is malformed, too large, or writes a key twice."""
    _check_size(body, OPERATIONS_MAX)
    _check_writes(body.get("success", ()))
    _check_writes(body.get("failure", ()))


def _check_size(body: Json, operations_max: int) -> None:
    known(body, _TXN, "TxnRequest")
    compares = body.get("compare", ())
    branches = (body.get("success", ()), body.get("failure", ()))
    operations = max(len(compares), *map(len, branches))
    if operations > operations_max:
        raise EtcdError(INVALID, "etcdserver: too many operations in txn request")
    for compare in compares:
        known(compare, _COMPARE, "Compare")
        if not compare.get("key"):
            raise empty_key()
    for branch in branches:
        for operation in branch:
            _check_operation(operation, operations_max - operations)


def _check_operation(operation: Json, operations_max: int) -> None:
    if len(operation) > 1 or not operation.keys() <= _OPERATIONS:
        raise EtcdError(INVALID, f"not one operation: {sorted(operation)}")
    if not operation:
        raise EtcdError(INVALID, "etcdserver: key not found")
    ((name, body),) = operation.items()
    if name == "request_range":
        check_range(body)
    elif name == "request_put":
        check_put(body)
    elif name == "request_delete_range":
        check_delete(body)
    else:
        _check_size(body, operations_max)


_Spans = list[tuple[bytes, bytes]]


def _check_writes(operations: list[Json]) -> tuple[set[bytes], _Spans]:
    """Refuse a key that is written twice; return the keys put and the ranges deleted.

    As in the server, a put conflicts with deletes on its own level and with earlier siblings, but
    not with a delete of a later sibling.
    """
    deleted: _Spans = [
        (octets(body, "key"), octets(body, "range_end"))
        for body in _of_kind(operations, "request_delete_range")
    ]
    put: set[bytes] = set()
    for body in _of_kind(operations, "request_txn"):
        then_put, then_deleted = _check_writes(body.get("success", []))
        else_put, else_deleted = _check_writes(body.get("failure", []))
        _check_apart(then_put, put, deleted)
        # Only one of the two branches runs, so they cannot conflict with each other.
        _check_apart(else_put, put, deleted)
        put |= then_put | else_put
        deleted += then_deleted + else_deleted
    for body in _of_kind(operations, "request_put"):
        key = octets(body, "key")
        _check_apart({key}, put, deleted)
        put.add(key)
    return put, deleted


def _check_apart(keys: set[bytes], put: set[bytes], deleted: _Spans) -> None:
    for key in keys:
        if key in put or any(_covers(key, start, stop) for start, stop in deleted):
            raise _duplicate()


def _covers(key: bytes, start: bytes, stop: bytes) -> bool:
    # In this check the end "\0" is a plain key and does not mean "to the last key".
    return key == start if not stop else start <= key < stop


def _of_kind(operations: list[Json], name: str) -> Iterator[Json]:
    return (operation[name] for operation in operations if name in operation)


def _puts(body: Json) -> bool:
    """Return whether a transaction contains a put on any path."""
    return any(
        "request_put" in operation
        or ("request_txn" in operation and _puts(operation["request_txn"]))
        for branch in ("success", "failure")
        for operation in body.get(branch, ())
    )


def only_reads(body: Json) -> bool:
    """Return whether a transaction changes nothing on any path."""
    return all(
        "request_range" in operation
        or ("request_txn" in operation and only_reads(operation["request_txn"]))
        for branch in ("success", "failure")
        for operation in body.get(branch, ())
    )


def is_serializable(body: Json) -> bool:
    """Return whether one member may answer a read-only transaction from its own state."""
    return all(
        bool(operation.get("request_range", {}).get("serializable"))
        for branch in ("success", "failure")
        for operation in body.get(branch, ())
    )


def _requests(path: _Path) -> Iterator[tuple[str, Json]]:
    """Yield every operation on the path taken, in order."""
    nested = iter(path.nested)
    for operation in path.operations:
        ((name, body),) = operation.items()
        if name == "request_txn":
            yield from _requests(next(nested))
        else:
            yield name, body
