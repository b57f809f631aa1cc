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
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from lockfast.errors import StoreError, StoreUnavailableError, UnsupportedError
from lockfast.guards.admission import Admission, Mark, compared_marks, judge, plan_admission

Json: TypeAlias = dict[str, Any]
Send: TypeAlias = Callable[[Json], Json]
"""Posts a transaction to `/v3/kv/txn` and returns the answer."""

DIGITS: Final = 16
TIMEOUT_S: Final = 5.0


class EtcdGuard:
    """Floors in etcd, beside the data they guard."""

    def __init__(self, send: Send, *, prefix: str = "lockfast-floors/", tree: bool = False) -> None:
        if not prefix:
            raise UnsupportedError("prefix=''", "the floors are kept under a prefix", "name one")
        self._send = send
        self._prefix = prefix
        self._tree = tree
        self._there: set[Mark] = set()

    def comparisons(
        self, resource: str, token: int, *, shared: bool = False, once: bool = False
    ) -> list[Json]:
        """For the `compare` of the caller's own transaction: true while the token may pass.

        Put `floors` into its `success`. Floors that are not there yet are made first, since
        etcd compares no value with a key that does not exist.
        """
        admission = self._admission(resource, token, shared=shared, once=once)
        self._make(admission.compared)
        least = token if once else token + 1
        return [
            {"key": self._key(mark), "target": "VALUE", "result": "LESS", "value": _value(least)}
            for mark in admission.compared
        ]

    def floors(self, resource: str, token: int, *, shared: bool = False) -> list[Json]:
        """For the `success` of the caller's own transaction: then older ones are refused."""
        return self._raising(self._admission(resource, token, shared=shared, once=False))

    def transact(
        self,
        resource: str,
        token: int,
        transaction: Mapping[str, Any],
        *,
        shared: bool = False,
        once: bool = False,
    ) -> Json:
        """Carry out a transaction if the token may pass; raises StaleTokenError if not.

        What the caller compares itself may still fail: the answer says `succeeded` or not, and
        only a transaction that succeeded has raised the floor.
        """
        admission = self._admission(resource, token, shared=shared, once=once)
        reads = [{"request_range": {"key": self._key(mark)}} for mark in admission.compared]
        operations = list(transaction.get("success", ()))
        mine = self.comparisons(resource, token, shared=shared, once=once)
        answer = self._send(
            {
                "compare": [*mine, *transaction.get("compare", ())],
                "success": [*operations, *self._raising(admission)],
                "failure": [*reads, *transaction.get("failure", ())],
            }
        )
        responses = answer.get("responses", [])
        if answer.get("succeeded"):
            return {**answer, "responses": responses[: len(operations)]}
        judge(admission, max(map(_found, responses[: len(reads)])))
        return {**answer, "responses": responses[len(reads) :]}

    def put(self, resource: str, token: int, key: str, value: str, **how: bool) -> None:
        """Write one key if the token may pass; raises StaleTokenError if not."""
        write = {"request_put": {"key": _coded(key), "value": _coded(value)}}
        self.transact(resource, token, {"success": [write]}, **how)

    def admit(self, resource: str, token: int, *, shared: bool = False, once: bool = False) -> None:
        """Let the holder of `token` through to `resource`, or raise StaleTokenError."""
        self.transact(resource, token, {}, shared=shared, once=once)

    def floor(self, resource: str) -> int:
        """The oldest token that would pass now, 0 when every token would."""
        marks = compared_marks(resource, tree=self._tree)
        reads = [{"request_range": {"key": self._key(mark)}} for mark in marks]
        return max(map(_found, self._send({"success": reads})["responses"]))

    # ── keys and values ──────────────────────────────────────────────────────────────

    def _admission(self, resource: str, token: int, *, shared: bool, once: bool) -> Admission:
        return plan_admission(resource, token, shared=shared, once=once, tree=self._tree)

    def _raising(self, admission: Admission) -> list[Json]:
        value = _value(admission.token)
        return [
            {"request_put": {"key": self._key(mark), "value": value}} for mark in admission.raised
        ]

    def _make(self, marks: tuple[Mark, ...]) -> None:
        for mark in marks:
            if mark not in self._there:
                key = self._key(mark)
                absent = {"key": key, "target": "CREATE", "create_revision": "0"}
                first = {"request_put": {"key": key, "value": _value(0)}}
                self._send({"compare": [absent], "success": [first]})
                self._there.add(mark)

    def _key(self, mark: Mark) -> str:
        return _coded(f"{self._prefix}{mark.scope}:{mark.resource}")


def _coded(text: str) -> str:
    return b64encode(text.encode()).decode()


def _value(token: int) -> str:
    return _coded(f"{token:0{DIGITS}}")


def _found(response: Json) -> int:
    kvs = response["response_range"].get("kvs", ())
    return int(b64decode(kvs[0]["value"])) if kvs else 0


def gateway(
    url: str, *, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None
) -> Send:
    """A `send` for one member, by the standard library: `gateway("http://10.0.0.1:2379")`."""
    parts = urlsplit(url)

    def send(transaction: Json) -> Json:
        if parts.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.netloc, timeout=TIMEOUT_S, context=tls
            )
        else:
            connection = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT_S)
        try:
            body = json.dumps(transaction)
            connection.request("POST", "/v3/kv/txn", body, dict(headers or {}))
            response = connection.getresponse()
            said = response.read()
        except OSError as error:
            raise StoreUnavailableError(url, f"cannot be reached ({error})") from error
        finally:
            connection.close()
        if response.status != 200:
            raise StoreError(url, f"answered {said[:200].decode(errors='replace')!r}")
        answer: Json = json.loads(said)
        return answer

    return send
