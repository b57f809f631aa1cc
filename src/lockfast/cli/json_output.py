"""JSON for programs: one document per line, in ASCII."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lockfast.cli.streams import write_out
from lockfast.flow.admin import LockInfo


def write_json(value: object) -> None:
    """Write one document on one line and flush it."""
    write_out(json.dumps(value, separators=(",", ":")) + "\n", flush=True)


def lock_as_json(lock: LockInfo) -> Mapping[str, Any]:
    return {
        **lock._asdict(),
        "holders": [claim._asdict() for claim in lock.holders],
        "waiting": [claim._asdict() for claim in lock.waiting],
    }
