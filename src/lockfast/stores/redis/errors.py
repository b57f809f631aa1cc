"""Translate the server's error replies into exceptions."""

from __future__ import annotations

import re
from typing import Final

from lockfast.errors import (
    AccessDeniedError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)

_RIGHTS: Final = 'grant the rights listed in docs/stores/redis.md, "Permissions"'
_NO_RIGHT: Final = ("does not allow this user a command that is needed", _RIGHTS)
_NO_COMMAND: Final = ("lacks a command that is needed", _RIGHTS)
_CLUSTER: Final = (
    "is part of a cluster and does not serve this namespace",
    "write redis+cluster://host1,host2,host3",
)
_DAMAGED: Final = "run `lockfast doctor --repair` on this URL"

_UNAVAILABLE: Final = {
    "LOADING": ("is still loading its data", "retry"),
    "READONLY": ("is a replica and takes no writes", "connect to the primary"),
    "MASTERDOWN": ("is a replica without its primary", "connect to the primary"),
    "NOREPLICAS": ("has too few replicas to take writes", "check min-replicas-to-write"),
    "MISCONF": ("cannot save to its disk and takes no writes", "check its log"),
    "OOM": ("is out of memory and takes no new claims", "raise maxmemory or free some"),
    "BUSY": ("is busy with another script", "retry"),
    "UNKILLABLE": ("is busy with another script", "retry"),
    "CLUSTERDOWN": ("belongs to a cluster that is down", "retry"),
    "TRYAGAIN": ("is moving a slot", "retry"),
    "max number of clients reached": ("takes no more connections", "raise maxclients"),
}
"""Nothing was executed, and a retry may succeed."""

_DENIED: Final = {
    "NOAUTH": ("requires a password", "write redis://user:password@host"),
    "WRONGPASS": ("refused the user or password", "correct them in the URL"),
    "invalid password": ("refused the password", "correct it in the URL"),
    "without any password configured": (
        "has no password for this user",
        "remove the password from the URL",
    ),
    "NOPERM": _NO_RIGHT,
    "The user executing the script": _NO_RIGHT,  # Redis 6
    "ACL failure in script": _NO_RIGHT,  # Redis 7, Valkey
}
"""Nothing was executed, and a retry helps only with other credentials or rights."""

_MISCONFIGURED: Final = {
    "DB index": ("has no such database", "correct the number at the end of the URL"),
    "MOVED": _CLUSTER,
    "ASK": _CLUSTER,
    "CROSSSLOT": _CLUSTER,
    "SELECT is not allowed in cluster mode": _CLUSTER,
    "WRONGTYPE": ("has other data under our keys", "use another namespace"),
    "cluster support disabled": (
        "is not part of a cluster",
        "write redis://host, or redis+sentinel:// if sentinels watch it",
    ),
    "unknown command": _NO_COMMAND,
    "Unknown Redis command called from": _NO_COMMAND,
    "LOCKFAST is damaged": ("holds a damaged namespace", _DAMAGED),
    "LOCKFAST has schema": (
        "holds a namespace of another version of Lockfast",
        "use one version of Lockfast in a namespace, or another namespace",
    ),
    "LOCKFAST has shards": (
        "holds a namespace that is spread over shards in another way",
        "write shards= and shard_by= as the namespace has them, or use another namespace",
    ),
}
"""Nothing was executed, and a retry will not help."""

# A script's error arrives with the code in the middle (Redis 6) or in front (Redis 7).
_CODES: Final = re.compile(
    "|".join(
        rf"(?<![A-Za-z]){re.escape(code)}\b" for code in (*_DENIED, *_MISCONFIGURED, *_UNAVAILABLE)
    )
)


def translate(message: str, label: str) -> StoreError:
    """Return the error for an error reply; the server's message follows in parentheses."""
    said = " ".join(message.split())[:300]
    found = _CODES.search(message)
    code = found[0] if found is not None else ""
    if code in _UNAVAILABLE:
        what, advice = _UNAVAILABLE[code]
        return StoreUnavailableError(label, f"{what} ({said})", advice)
    if code in _DENIED:
        what, advice = _DENIED[code]
        return AccessDeniedError(label, f"{what} ({said})", advice)
    if code in _MISCONFIGURED:
        what, advice = _MISCONFIGURED[code]
        return StoreMisconfiguredError(label, f"{what} ({said})", advice)
    if "user_script" in message:
        # One of our scripts found rows that it could not read. Scripts write only at their end.
        return StoreMisconfiguredError(label, f"holds a damaged namespace ({said})", _DAMAGED)
    return StoreError(label, f"answered {said!r}", "please report this")


def is_script_missing(message: str) -> bool:
    return message.startswith("NOSCRIPT")


def is_demoted(message: str) -> bool:
    """Return whether a former primary says that it has been demoted."""
    return re.search(r"(?<![A-Za-z])(READONLY|MASTERDOWN)\b", message) is not None
