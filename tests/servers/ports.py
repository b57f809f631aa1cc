"""Ports for servers that cannot choose their own.

A port that was free when it was looked for may be taken before its server listens. So these ports
are below the range that the kernel uses for outgoing connections, each test worker has ports of
its own, and none is returned again soon.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections import deque
from typing import Final

FIRST, LAST = 10_000, 22_000
WORKERS: Final = 8
REMEMBERED: Final = 400

_given: Final[deque[int]] = deque(maxlen=REMEMBERED)


def free_port(beside: int = 0) -> int:
    """Return a free port; if `beside` is given, the port at this distance is free too."""
    # `beside` is a multiple of WORKERS, so both ports belong to the same worker.
    assert beside % WORKERS == 0
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw7").removeprefix("gw")
    while True:
        port = random.randrange(FIRST + int(worker) % WORKERS, LAST, WORKERS)
        wanted = {port, port + beside}
        if not wanted.isdisjoint(_given):
            continue
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for each in wanted:
                stack.enter_context(socket.create_server(("127.0.0.1", each)))
            _given.extend(wanted)
            return port
