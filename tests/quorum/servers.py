"""Three Lockfast servers as nodes, in threads of this process."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from lockfast.server.config import Config
from lockfast.server.node_service import NodeOptions
from lockfast.server.tokens import TokenFile
from tests.quorum.nodes import SKEW_S
from tests.servers.lockserver import ServerThread

SKEW_US = round(SKEW_S * 1_000_000)
SILENCE_S = 60.0
LONG_S = 3600.0
_numbers = itertools.count(1)


class ThreeServers:
    """Nodes that have been up for longer than the silence."""

    def __init__(self, servers: Sequence[ServerThread]) -> None:
        self.servers = servers
        for server in servers:
            nodes = server.server.nodes
            assert nodes is not None
            nodes.began_s -= LONG_S

    def url(self, namespace: str = "", **options: object) -> str:
        namespace = namespace or f"http-{next(_numbers)}"
        places = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        found = {"namespace": namespace, "skew": SKEW_S, "silence": SILENCE_S, **options}
        query = "&".join(f"{name}={value}" for name, value in found.items())
        return f"quorum+http://{places}?{query}"


def node_options(directory: Path, skew_us: int = SKEW_US) -> NodeOptions:
    return NodeOptions(str(directory), skew_us, round(SILENCE_S * 1000))


@contextlib.contextmanager
def three_servers(
    directory: Path,
    config: Config | None = None,
    tokens: TokenFile | None = None,
    *,
    skew_us: int = SKEW_US,
    count: int = 3,
) -> Iterator[ThreeServers]:
    with ExitStack() as stack:
        servers = [
            ServerThread(
                f"memory://{directory}/{name}",
                config,
                tokens,
                node=node_options(directory / name, skew_us),
            )
            for name in "abc"[:count]
        ]
        yield ThreeServers([stack.enter_context(server) for server in servers])
