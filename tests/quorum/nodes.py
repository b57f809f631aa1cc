"""Five real Redis nodes, and new namespaces on them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from contextlib import ExitStack

from lockfast.stores.quorum.codec import keys_of
from tests.servers.redis import RedisServer

SKEW_S = 0.25
GRACE_MS = round(2 * SKEW_S * 1000)
_numbers = itertools.count(1)


class FiveNodes:
    """Five servers that tests may break."""

    def __init__(self, servers: list[RedisServer]) -> None:
        self.servers = servers

    def url(self, namespace: str = "", *, silence: float = 60.0) -> str:
        """Return a URL whose namespace these servers know, as if they had been up for long."""
        namespace = namespace or f"quorum-{next(_numbers)}"
        for server in self.servers:
            self.make_known(server, namespace)
        paths = ",".join(str(server.socket) for server in self.servers)
        return f"quorum+unix://{paths}?namespace={namespace}&skew={SKEW_S}&silence={silence}"

    @staticmethod
    def make_known(server: RedisServer, namespace: str) -> None:
        run = dict(
            line.split(":", 1) for line in server.run("INFO", "server").splitlines() if ":" in line
        )["run_id"].strip()
        server.run("HSET", keys_of(namespace)[0], "run", run, "floor", 0, "silent", 0)


@contextlib.contextmanager
def five_nodes() -> Iterator[FiveNodes]:
    with ExitStack() as stack:
        yield FiveNodes([stack.enter_context(RedisServer()) for _ in range(5)])
