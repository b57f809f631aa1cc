"""A guard for data kept in ZooKeeper: the check is part of the `multi` that writes.

Each floor is a node, `<path>/<scope>:<name>`, whose data are the token in decimal digits. An
admission reads the floors it concerns, decides, and sends one `multi`: the floors that rise are
set and the others checked, all at the version that was read, together with the caller's own
operations. If another admission came in between, a version differs, nothing is written, and the
guard reads again.

A read may be served by a follower that lags behind. Floors only rise, so a lagging one can
wrongly admit but never wrongly refuse, and what it wrongly admits fails at the version.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from lockfast.errors import (
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
    UnsupportedError,
)
from lockfast.guards.admission import (
    ATTEMPTS,
    Admission,
    FenceDamagedError,
    Mark,
    admitted,
    checked_result,
    compared_marks,
    judge,
    plan_admission,
)

TIMEOUT_S: Final = 10.0
"""For one request. kazoo itself would wait for ever while it is disconnected."""

# Errors of kazoo by name, so that it need not be imported.
_CHANGED: Final = frozenset({"BadVersionError", "NoNodeError"})
"""An operation on a floor that is no longer as it was read."""
_IN_ITS_WAKE: Final = frozenset({"RolledBackError", "RuntimeInconsistency"})
"""The results of those operations of a failed transaction that are not its cause."""
_LOST: Final = frozenset({"ConnectionLoss", "OperationTimeoutError", "SessionExpiredError"})


class _Floor(NamedTuple):
    mark: Mark
    token: int
    version: int


class ZooKeeperGuard:
    """Floors in ZooKeeper, next to the data they guard.

    `client` is a connected `KazooClient`; any thread may use it. The nodes of floors get its
    default access control list. Its errors about operations of the caller are raised unchanged;
    a lost connection is StoreUnavailableError or, if a write may have been executed,
    OutcomeUnknownError.
    """

    def __init__(
        self,
        client: Any,
        *,
        path: str = "/lockfast-floors",
        tree: bool = False,
        timeout: float = TIMEOUT_S,
    ) -> None:
        if not re.fullmatch(r"(/[^/\x00-\x1f\x7f-\x9f]+)+", path):
            raise UnsupportedError(f"path={path!r}", "floors are nodes below a path", "name one")
        self._client = client
        self._path = path
        self._timeout_s = timeout
        self.tree = tree

    def execute(
        self,
        resource: str,
        token: int,
        operation: Callable[[Any], object],
        *,
        shared: bool = False,
        once: bool = False,
    ) -> list[Any]:
        """Let `operation` fill in a transaction, and commit it if the token is admissible.

        `operation` is called once, with a `TransactionRequest` of kazoo that it must not commit,
        for example for `transaction.set_data("/orders/42", b"paid")`. Returns the results of its
        operations. Raises StaleTokenError if the token is refused, and kazoo's own error if one of
        the operations fails; nothing is written then.
        """
        admission = self._admission(resource, token, shared=shared, once=once)
        filled = self._client.transaction()
        checked_result(operation(filled))
        if filled.committed:
            raise UnsupportedError(
                "an operation that commits its transaction",
                "it was committed without a check of the token",
                "leave the commit to the guard",
            )
        return self._commit(admission, filled.operations)

    def set(self, resource: str, token: int, path: str, value: bytes, **how: bool) -> None:
        """Write the data of one node if the token is admissible; else raise StaleTokenError."""
        self.execute(resource, token, lambda it: it.set_data(path, value), **how)

    def admit(self, resource: str, token: int, *, shared: bool = False, once: bool = False) -> None:
        """Admit the holder of `token` to `resource`, or raise StaleTokenError."""
        self._commit(self._admission(resource, token, shared=shared, once=once), ())

    def add_check(
        self,
        transaction: Any,
        resource: str,
        token: int,
        *,
        shared: bool = False,
        once: bool = False,
    ) -> None:
        """Add the check, and the writes that raise the floors, to a transaction of your own.

        Raises StaleTokenError if the token is refused already. Otherwise commit the transaction
        yourself and look at its results: if one of the operations added here has failed with
        `BadVersionError` or `NoNodeError`, floors have changed; begin again.
        """
        admission = self._admission(resource, token, shared=shared, once=once)
        self._check(transaction, admission)

    def floor(self, resource: str) -> int:
        """Return the lowest token that would be admitted now; 0 if any token would."""
        marks = compared_marks(resource, tree=self.tree)
        # A follower may lag behind; after this, it has seen every write acknowledged so far.
        self._get(self._client.sync_async(self._path))
        found = [self._read(mark) for mark in marks]
        return max(floor.token if floor is not None else 0 for floor in found)

    # ── one admission ────────────────────────────────────────────────────────────────

    def _admission(self, resource: str, token: int, *, shared: bool, once: bool) -> Admission:
        return plan_admission(
            resource, token, shared=shared, once=once, tree=self.tree, guard="zookeeper"
        )

    def _commit(self, admission: Admission, operations: Sequence[Any]) -> list[Any]:
        for _ in range(ATTEMPTS):
            transaction = self._client.transaction()
            # First in the transaction: ZooKeeper reports the first operation that fails, and a
            # stale token should be reported before whatever fails in its wake.
            self._check(transaction, admission)
            floor_count = len(transaction.operations)
            transaction.operations.extend(operations)
            results = self._get(transaction.commit_async(), writes=True)
            failed = next((one for one in results if _is_cause(one)), None)
            if failed is None:
                admitted(admission)
                return list(results[floor_count:])
            if type(failed).__name__ not in _CHANGED or failed not in results[:floor_count]:
                raise failed
        raise admission.gave_up()

    def _check(self, transaction: Any, admission: Admission) -> None:
        """Judge the token; add to `transaction` what fails if a floor has changed since."""
        floors = [self._existing(mark) for mark in admission.marks]
        judge(admission, max(one.token for one in floors if one.mark in admission.compared))
        for mark, token, version in floors:
            # Never lower a floor: those above the token are left alone.
            if mark in admission.raised and token < admission.token:
                value = str(admission.token).encode()
                transaction.set_data(self._node(mark), value, version)
            elif mark in admission.compared:
                transaction.check(self._node(mark), version)

    # ── floors ───────────────────────────────────────────────────────────────────────

    def _node(self, mark: Mark) -> str:
        return f"{self._path}/{mark.scope}:{quote(mark.resource, safe='')}"

    def _existing(self, mark: Mark) -> _Floor:
        """Read a floor; create it if it is missing, so that it has a version to check."""
        for _ in range(ATTEMPTS):
            found = self._read(mark)
            if found is not None:
                return found
            try:
                self._get(self._client.create_async(self._node(mark), b"0", makepath=True))
            except Exception as error:
                if type(error).__name__ != "NodeExistsError":
                    raise
                # Another admission was quicker.
        raise StoreError(
            "zookeeper", f"{self._node(mark)} was deleted {ATTEMPTS} times while it was read"
        )

    def _read(self, mark: Mark) -> _Floor | None:
        node = self._node(mark)
        try:
            data, stat = self._get(self._client.get_async(node))
        except Exception as error:
            if type(error).__name__ != "NoNodeError":
                raise
            return None
        if not re.fullmatch(rb"[0-9]{1,16}", data):
            raise FenceDamagedError(
                f"node {node}", data, "a token", "restore it, or set it to the newest token"
            )
        return _Floor(mark, int(data), stat.version)

    def _get(self, pending: Any, *, writes: bool = False) -> Any:
        """Wait for a reply of kazoo, for a bounded time."""
        try:
            return pending.get(timeout=self._timeout_s)
        except Exception as error:
            what = type(error).__name__
            if what == "ConnectionClosedError":
                raise StoreUnavailableError("zookeeper", "the client is closed") from error
            if what not in _LOST and not isinstance(error, self._client.handler.timeout_exception):
                raise
            if writes:
                raise OutcomeUnknownError(
                    "zookeeper",
                    f"the transaction may have been committed ({what})",
                    "read the data to find out; the token may be used again",
                ) from error
            raise StoreUnavailableError("zookeeper", f"cannot be reached ({what})") from error


def _is_cause(result: object) -> bool:
    """Whether this operation made its transaction fail: the others of it fail as well."""
    return isinstance(result, Exception) and type(result).__name__ not in _IN_ITS_WAKE
