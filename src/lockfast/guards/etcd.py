"""A guard for data kept in etcd: the check is a comparison in the transaction that writes.

Floors are keys whose values are tokens of sixteen digits, so that etcd compares them as the
numbers they are. No client is needed: transactions are those of etcd's JSON gateway, as
dictionaries, and `send` is whatever posts them.
"""

from __future__ import annotations

import http.client
import json
import ssl
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

from lockfast.errors import (
    OutcomeUnknownError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    UnsupportedError,
)
from lockfast.guards.admission import (
    ATTEMPTS,
    Admission,
    Mark,
    admitted,
    checked_result,
    compared_marks,
    judge,
    plan_admission,
)

Json: TypeAlias = dict[str, Any]
Send: TypeAlias = Callable[[Json], Json]
"""Posts a transaction to `/v3/kv/txn` and returns the answer."""

DIGITS: Final = 16
TIMEOUT_S: Final = 5.0


class EtcdGuard:
    """Floors in etcd, next to the data they guard."""

    def __init__(self, send: Send, *, prefix: str = "lockfast-floors/", tree: bool = False) -> None:
        if not prefix:
            raise UnsupportedError("prefix=''", "the floors are kept under a prefix", "name one")
        self._send = send
        self._prefix = prefix
        self.tree = tree

    def comparisons(
        self, resource: str, token: int, *, shared: bool = False, once: bool = False
    ) -> list[Json]:
        """Return comparisons for the caller's own transaction: true while the token is admissible.

        Add `floors`, made for the same token, to its `success`. Missing floors are created first,
        because etcd cannot compare the value of a key that does not exist; if they are deleted
        before the transaction arrives, it fails.

        Not for a guard with `tree`: that may have to leave higher floors alone, which it must read
        first; use `transact` there.
        """
        if self.tree:
            raise UnsupportedError(
                "comparisons() of a tree guard", "it must read its floors first", "use transact()"
            )
        admission = self._admission(resource, token, shared=shared, once=once)
        self._floors(admission)
        return self._passing(admission)

    def floors(self, resource: str, token: int, *, shared: bool = False) -> list[Json]:
        """Return the writes that raise the floors, for the caller's `success`."""
        if self.tree:
            raise UnsupportedError(
                "floors() of a tree guard", "it must read its floors first", "use transact()"
            )
        return self._raising(
            self._admission(resource, token, shared=shared, once=False).raised, token
        )

    def transact(
        self,
        resource: str,
        token: int,
        transaction: Mapping[str, Any],
        *,
        shared: bool = False,
        once: bool = False,
    ) -> Json:
        """Execute a transaction if the token is admissible; otherwise raise StaleTokenError.

        The caller's own comparisons may still fail: the answer says whether it `succeeded`, and
        only a transaction that succeeded has raised the floor.
        """
        admission = self._admission(resource, token, shared=shared, once=once)
        operations = list(transaction.get("success", ()))
        for _ in range(ATTEMPTS):
            floors = self._floors(admission)
            judge(admission, max(floors[mark] for mark in admission.compared))
            # Never lower a floor: those above the token are compared and left alone.
            rising = [mark for mark in admission.raised if floors[mark] < token]
            reads = self._reads(admission)
            answer = self._send(
                {
                    "compare": [
                        *self._passing(admission),
                        *(self._below(mark, token) for mark in rising),
                        *transaction.get("compare", ()),
                    ],
                    "success": [*operations, *self._raising(rising, token)],
                    "failure": [*reads, *transaction.get("failure", ())],
                }
            )
            responses = answer.get("responses", [])
            if answer.get("succeeded"):
                admitted(admission)
                return {**answer, "responses": responses[: len(operations)]}
            found = self._found(admission, responses[: len(reads)])
            judge(admission, max(found.get(mark, 0) for mark in admission.compared))
            if found == floors:
                # The caller's own comparisons failed, not the floors.
                return {**answer, "responses": responses[len(reads) :]}
        raise admission.gave_up()

    def put(self, resource: str, token: int, key: str, value: str, **how: bool) -> None:
        """Write one key if the token is admissible; otherwise raise StaleTokenError."""
        self.transact(resource, token, {"success": [put(key, value)]}, **how)

    def execute(
        self,
        resource: str,
        token: int,
        operation: Callable[[Json], object],
        *,
        shared: bool = False,
        once: bool = False,
    ) -> Json:
        """Let `operation` fill in a transaction, and execute it if the token is admissible.

        `operation` receives the lists `compare`, `success` and `failure`, for example for
        `transaction["success"].append(put("data/42", "paid"))`. Returns etcd's answer.
        """
        transaction: Json = {"compare": [], "success": [], "failure": []}
        checked_result(operation(transaction))
        return self.transact(resource, token, transaction, shared=shared, once=once)

    def admit(self, resource: str, token: int, *, shared: bool = False, once: bool = False) -> None:
        """Admit the holder of `token` to `resource`, or raise StaleTokenError."""
        self.transact(resource, token, {}, shared=shared, once=once)

    def floor(self, resource: str) -> int:
        """Return the lowest token that would be admitted now; 0 if any token would."""
        marks = compared_marks(resource, tree=self.tree)
        reads = [{"request_range": {"key": self._key(mark)}} for mark in marks]
        found = [_found(response) for response in self._send({"success": reads})["responses"]]
        return max(floor or 0 for floor in found)

    # ── keys and values ──────────────────────────────────────────────────────────────

    def _admission(self, resource: str, token: int, *, shared: bool, once: bool) -> Admission:
        return plan_admission(
            resource, token, shared=shared, once=once, tree=self.tree, guard="etcd"
        )

    def _passing(self, admission: Admission) -> list[Json]:
        """Return comparisons that hold if the token reaches all its floors."""
        least = admission.token if admission.once else admission.token + 1
        return [self._below(mark, least) for mark in admission.compared]

    def _below(self, mark: Mark, token: int) -> Json:
        return {"key": self._key(mark), "target": "VALUE", "result": "LESS", "value": _value(token)}

    def _raising(self, marks: Iterable[Mark], token: int) -> list[Json]:
        return [{"request_put": {"key": self._key(mark), "value": _value(token)}} for mark in marks]

    def _reads(self, admission: Admission) -> list[Json]:
        return [{"request_range": {"key": self._key(mark)}} for mark in admission.marks]

    def _found(self, admission: Admission, responses: list[Json]) -> dict[Mark, int]:
        """Return the floors that exist."""
        floors = zip(admission.marks, map(_found, responses), strict=True)
        return {mark: floor for mark, floor in floors if floor is not None}

    def _floors(self, admission: Admission) -> dict[Mark, int]:
        """Read every floor that the token concerns; create the missing ones."""
        while True:
            answer = self._send({"success": self._reads(admission)})
            found = self._found(admission, answer["responses"])
            absent = [mark for mark in admission.marks if mark not in found]
            if not absent:
                return found
            for mark in absent:
                key = self._key(mark)
                is_absent = {"key": key, "target": "CREATE", "create_revision": "0"}
                first = {"request_put": {"key": key, "value": _value(0)}}
                self._send({"compare": [is_absent], "success": [first]})

    def _key(self, mark: Mark) -> str:
        return _coded(self._prefix + mark.key)


def put(key: str, value: str) -> Json:
    """Return one write, for the `success` of a transaction."""
    return {"request_put": {"key": _coded(key), "value": _coded(value)}}


def _coded(text: str) -> str:
    return b64encode(text.encode()).decode()


def _value(token: int) -> str:
    return _coded(f"{token:0{DIGITS}}")


def _found(response: Json) -> int | None:
    """Parse a floor; None if it does not exist."""
    kvs = response["response_range"].get("kvs", ())
    return int(b64decode(kvs[0]["value"])) if kvs else None


def gateway(
    url: str, *, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None
) -> Send:
    """Return a `send` for one member, by the standard library: `gateway("http://10.0.0.1:2379")`.

    It raises StoreUnavailableError if the transaction was surely not executed, and
    OutcomeUnknownError if one that writes was sent and its reply is missing.
    """
    parts = _checked_url(url)

    def send(transaction: Json) -> Json:
        if parts.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.netloc, timeout=TIMEOUT_S, context=tls
            )
        else:
            connection = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT_S)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise StoreUnavailableError(url, f"cannot be reached ({error})") from error
        try:
            body = json.dumps(transaction)
            connection.request("POST", "/v3/kv/txn", body, dict(headers or {}))
            response = connection.getresponse()
            said = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise _no_reply(url, transaction, error) from error
        finally:
            connection.close()
        if response.status != 200:
            raise StoreError(url, f"answered {said[:200].decode(errors='replace')!r}")
        answer: Json = json.loads(said)
        return answer

    return send


def _checked_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        is_good = False
    # Not shown in the error: it may contain a password.
    if not is_good or parts.username is not None:
        raise StoreMisconfiguredError(
            "the URL of the etcd gateway",
            "is not http:// or https:// with a host, a port and nothing else",
            "write for example http://10.0.0.1:2379, and pass credentials in headers=",
        )
    return parts


def _no_reply(url: str, transaction: Json, error: Exception) -> StoreError:
    operations = [*transaction.get("success", ()), *transaction.get("failure", ())]
    if all("request_range" in operation for operation in operations):
        return StoreUnavailableError(url, f"did not answer ({error})")
    return OutcomeUnknownError(
        url,
        f"the transaction may have been executed ({error})",
        "read the data to find out; the token may be used again",
    )
