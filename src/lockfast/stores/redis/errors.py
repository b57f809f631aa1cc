"""What the server's error replies mean to a caller."""

from __future__ import annotations

import re
from typing import Final

from lockfast.errors import StoreError, StoreMisconfiguredError, StoreUnavailableError

_NO_RIGHT: Final = ("does not let this user do what is needed", "see the ACL line in the docs")
_NO_COMMAND: Final = ("lacks a command that is needed", "see the ACL line in the docs")

_UNAVAILABLE: Final = {
    "LOADING": ("is still loading its data", "try again soon"),
    "READONLY": ("is a replica and takes no writes", "connect to the primary"),
    "MASTERDOWN": ("is a replica without its primary", "connect to the primary"),
    "NOREPLICAS": ("has too few replicas to take writes", "look at min-replicas-to-write"),
    "MISCONF": ("cannot save to its disk and takes no writes", "look at its log"),
    "OOM": ("is out of memory and takes no more claims", "raise maxmemory, or free some"),
    "BUSY": ("is busy with another script", "try again soon"),
    "UNKILLABLE": ("is busy with another script", "try again soon"),
    "CLUSTERDOWN": ("belongs to a cluster that is down", "try again soon"),
    "TRYAGAIN": ("is moving a slot", "try again soon"),
    "max number of clients reached": ("takes no more connections", "raise maxclients"),
}
"""Nothing was done, and it may work later."""

_MISCONFIGURED: Final = {
    "NOAUTH": ("wants a password", "write redis://user:password@host"),
    "WRONGPASS": ("refused the user or password", "look at the URL"),
    "invalid password": ("refused the password", "look at the URL"),
    "without any password configured": ("has no password for this user", "look at the URL"),
    "NOPERM": _NO_RIGHT,
    "The user executing the script": _NO_RIGHT,  # Redis 6
    "ACL failure in script": _NO_RIGHT,  # Redis 7, Valkey
    "DB index": ("has no such database", "look at the number behind the last slash"),
    "MOVED": ("is part of a cluster", "write redis+cluster://"),
    "ASK": ("is part of a cluster", "write redis+cluster://"),
    "CROSSSLOT": ("is part of a cluster", "write redis+cluster://"),
    "SELECT is not allowed in cluster mode": ("is part of a cluster", "use database 0"),
    "WRONGTYPE": ("has other data under our keys", "use another namespace"),
    "unknown command": _NO_COMMAND,
    "Unknown Redis command called from": _NO_COMMAND,
    "LOCKFAST": ("has data that we cannot use", "run `lockfast doctor` on it"),
}
"""Nothing will ever work like this."""

# A script's error reaches us with the code in the middle (Redis 6) or in front (Redis 7).
_CODES: Final = re.compile(
    "|".join(rf"(?<![A-Za-z]){re.escape(code)}\b" for code in (*_MISCONFIGURED, *_UNAVAILABLE))
)


def translate(message: str, label: str) -> StoreError:
    """The error of an error reply; the server's own words stand in parentheses."""
    said = " ".join(message.split())[:300]
    found = _CODES.search(message)
    code = found[0] if found is not None else ""
    if code in _UNAVAILABLE:
        what, advice = _UNAVAILABLE[code]
        return StoreUnavailableError(label, f"{what} ({said})", advice)
    if code in _MISCONFIGURED:
        what, advice = _MISCONFIGURED[code]
        return StoreMisconfiguredError(label, f"{what} ({said})", advice)
    return StoreError(label, f"answered {said!r}", "please report this")


def is_script_missing(message: str) -> bool:
    return message.startswith("NOSCRIPT")
