"""The gateway's JSON: protocol buffers with int64 as text, bytes in base64, defaults left out."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from binascii import b2a_base64
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

from lockfast.sim.etcd.mvcc import Event, Kv

Json: TypeAlias = dict[str, Any]

_INT64_MAX: Final = (1 << 63) - 1


class EtcdError(Exception):
    """An error reply: a gRPC code and the server's text."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(message)

    @property
    def status(self) -> int:
        return STATUS_OF[self.code]

    def body(self) -> Json:
        return {"error": self.message, "code": self.code, "message": self.message}

    def line(self) -> Json:
        """Return the error as the last line of a stream."""
        return {
            "error": {
                "grpc_code": self.code,
                "http_code": self.status,
                "message": self.message,
                "http_status": REASON_OF[self.status],
            }
        }


INVALID, NOT_FOUND, EXHAUSTED, PRECONDITION = 3, 5, 8, 9
OUT_OF_RANGE, UNAVAILABLE, UNAUTHENTICATED = 11, 14, 16

STATUS_OF: Final = {3: 400, 5: 404, 8: 429, 9: 400, 11: 400, 12: 501, 14: 503, 16: 401}
REASON_OF: Final = {
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    429: "Too Many Requests",
    501: "Not Implemented",
    503: "Service Unavailable",
}


def number(body: Json, name: str) -> int:
    """Return an int64 given as text or as a number; 0 if it is missing."""
    found = body.get(name)
    if found is None:
        return 0
    try:
        value = int(found)
    except (TypeError, ValueError):
        raise EtcdError(INVALID, f"{name} is not a number: {found!r}") from None
    if not -_INT64_MAX <= value <= _INT64_MAX:
        raise EtcdError(INVALID, f"{name} is out of range: {found!r}")
    return value


def octets(body: Json, name: str) -> bytes:
    """Return bytes given in base64; b"" if they are missing."""
    found = body.get(name)
    if not found:
        return b""
    try:
        return _decoded(found)
    except (TypeError, Base64Error):
        raise EtcdError(INVALID, f"{name} is not base64: {found!r}") from None


def choice(body: Json, name: str, names: Mapping[str, int]) -> int:
    """Return a value of an enumeration, given by name or number; 0 if it is missing."""
    found = body.get(name)
    if found is None:
        return 0
    value = names.get(found, -1) if isinstance(found, str) else int(found)
    if value not in names.values():
        raise EtcdError(INVALID, f"unknown value {found!r} for {name}")
    return value


def known(body: Json, allowed: frozenset[str], what: str) -> None:
    """Refuse fields that the message does not have.

    The real gateway ignores them; the model must not hide a misspelled field.
    """
    if not body.keys() <= allowed:
        field = next(iter(body.keys() - allowed))
        raise EtcdError(INVALID, f'unknown field "{field}" in etcdserverpb.{what}')


@lru_cache(4096)
def _decoded(coded: str) -> bytes:
    return b64decode(coded, validate=True)


@lru_cache(4096)
def coded(plain: bytes) -> str:
    return b2a_base64(plain, newline=False).decode()


def kv_json(kv: Kv, *, keys_only: bool = False) -> Json:
    if not kv.version:
        return {"key": coded(kv.key), "mod_revision": str(kv.mod)}
    made = {
        "key": coded(kv.key),
        "create_revision": str(kv.create),
        "mod_revision": str(kv.mod),
        "version": str(kv.version),
    }
    if kv.value and not keys_only:
        made["value"] = coded(kv.value)
    if kv.lease:
        made["lease"] = str(kv.lease)
    return made


def event_json(event: Event, *, prev_kv: bool = False) -> Json:
    made: Json = {"type": "DELETE"} if event.deleted else {}
    made["kv"] = kv_json(event.kv)
    if prev_kv and event.former is not None:
        made["prev_kv"] = kv_json(event.former)
    return made
