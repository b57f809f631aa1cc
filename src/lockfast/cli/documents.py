"""JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lockfast.flow.admin import LockInfo


def write_json(value: object) -> None:
    """One document on one line, in ASCII, out at once."""
    print(json.dumps(value, separators=(",", ":")), flush=True)


def lock_as_json(lock: LockInfo) -> Mapping[str, Any]:
    return {
        **lock._asdict(),
        "holders": [claim._asdict() for claim in lock.holders],
        "waiting": [claim._asdict() for claim in lock.waiting],
    }
