"""Who contends for a lock: callers that wait, at stores without a queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lockfast.flow.contention import contends
from lockfast.ports import Capabilities


@pytest.mark.parametrize(
    ("contend", "queue", "timeout_ms", "expected"),
    [
        (True, False, None, True),
        (True, False, 1, True),
        (True, False, 0, False),
        (True, True, None, False),
        (False, False, None, False),
    ],
)
def test_only_a_waiting_caller_contends(
    contend: bool, queue: bool, timeout_ms: int | None, expected: bool
) -> None:
    capabilities = Capabilities(contend=contend, queue=queue)
    core: Any = SimpleNamespace(store=SimpleNamespace(capabilities=capabilities))
    assert contends(core, timeout_ms) is expected
