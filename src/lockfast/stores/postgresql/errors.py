"""Translate the server's error codes (SQLSTATE) into exceptions."""

from __future__ import annotations

from typing import Final

from lockfast.errors import (
    CHECK_ADDRESS,
    AccessDeniedError,
    OutcomeUnknownError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)

_RIGHTS: Final = "grant the rights listed in docs/stores/postgresql.md"
_SCHEMA: Final = "run the output of `lockfast schema postgresql` as the owner of the database"

_UNAVAILABLE: Final = {
    "25006": ("does not take writes: it is a standby", "connect to the primary"),
    "25P03": ("ended a transaction that was idle for too long", "try again"),
    "40001": ("could not serialize a transaction", "try again"),
    "40P01": ("broke a deadlock between transactions", "try again"),
    "53100": ("has no disk space left", "free some"),
    "53200": ("is out of memory or lock slots", "raise max_locks_per_transaction"),
    "53300": ("has no connection left for this role", "raise max_connections or use a pooler"),
    "53400": ("reached a configured limit", "look at its log"),
    "55000": ("does not take writes: it is a standby", "connect to the primary"),
    "55P03": ("kept a lock from us for too long", "look for a stuck transaction of Lockfast"),
    "57014": ("cancelled the statement", "look at statement_timeout"),
    "57P01": ("is shutting down, or ended our connection", "try again"),
    "57P02": ("crashed and is restarting", "try again"),
    "57P03": ("is starting up or shutting down", "try again"),
    "57P05": ("ended an idle connection", "try again"),
    "58030": ("cannot read or write its files", "look at its log"),
}
"""Nothing was executed, and a retry may succeed."""

_DENIED: Final = {
    "28000": ("does not accept this user", "look at the URL and at pg_hba.conf"),
    "28P01": ("refused the user or password", "look at the URL"),
    "42501": ("does not let this role do what is needed", _RIGHTS),
}
"""A retry helps only with other credentials or rights."""

_MISCONFIGURED: Final = {
    "3D000": ("has no such database", "look at the name behind the last slash"),
    "3F000": ("does not have our schema", _SCHEMA),
    "42P01": ("does not have our tables", _SCHEMA),
    "42883": ("does not have our functions", _SCHEMA),
    "42704": ("does not have our tables", _SCHEMA),
    "22021": ("does not store UTF-8 text", "use a database with the encoding UTF8"),
    "22P05": ("does not store UTF-8 text", "use a database with the encoding UTF8"),
}
"""A retry will not help."""

UNKNOWN: Final = frozenset({"08007", "40003"})
"""The server itself does not know whether it committed."""


def translate(code: str, message: str, label: str) -> StoreError:
    """Return the error for an error response; the server's message is in parentheses."""
    said = " ".join(message.split())[:300]
    if code in UNKNOWN:
        return OutcomeUnknownError(label, f"does not know whether it committed ({said})")
    if code in _UNAVAILABLE:
        what, advice = _UNAVAILABLE[code]
        return StoreUnavailableError(label, f"{what} ({said})", advice)
    if code in _DENIED:
        what, advice = _DENIED[code]
        return AccessDeniedError(label, f"{what} ({said})", advice)
    if code in _MISCONFIGURED:
        what, advice = _MISCONFIGURED[code]
        return StoreMisconfiguredError(label, f"{what} ({said})", advice)
    if code == "XX000" and said.startswith(("could not extend file", "could not write")):
        # A limit on file sizes: unlike a full disk, it has no separate code.
        return StoreUnavailableError(label, f"cannot write its files ({said})", "free some space")
    if code[:2] in ("08", "53", "57", "58"):
        return StoreUnavailableError(label, f"failed ({code}: {said})", "look at its log")
    return StoreError(label, f"answered {code}: {said}", "please report this")


def refused_connection(message: str, label: str) -> StoreError:
    """Return the error for a connection that was not established; libpq gives text only."""
    said = " ".join(message.split())[:300]
    for sign, code in (
        ("too many connections", "53300"),
        ("too many clients", "53300"),
        ("remaining connection slots", "53300"),
        ("password authentication failed", "28P01"),
        ("no password supplied", "28P01"),
        ("no pg_hba.conf entry", "28000"),
        ('role "', "28000"),
        ('database "', "3D000"),
        ("certificate verify failed", ""),
    ):
        if sign in message:
            if not code:
                return StoreMisconfiguredError(
                    label, f"its certificate is not accepted ({said})", "write ?sslrootcert=file"
                )
            return translate(code, message, label)
    return StoreUnavailableError(label, f"cannot be reached ({said})", CHECK_ADDRESS)
