"""The stores under test: each with its servers, the proxies in front of them, and its promises.

A new store is one class: start the servers in `start`, return the URL for its clients, and say
which checks do not apply. Faults use what they find: proxies, nodes, shims.
"""

from __future__ import annotations

import contextlib
import random
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Generic, Protocol, Self, TypeVar

from chaos import shim
from lockfast.core.placement import Placement
from lockfast.stores.redis.cluster.slots import shard_namespaces, slot_of, tag_of
from tests.quorum.nodes import FiveNodes
from tests.servers.etcd import EtcdCluster
from tests.servers.lockserver import ServerProcess
from tests.servers.postgresql import PostgresServer
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.servers.redis_cluster import RedisCluster
from tests.servers.sentinel import Watched
from tests.servers.zookeeper import ZooKeeperEnsemble

NAMES: Final = ["orders/1", "orders/2"]
"""The locks that workers acquire."""
NOTHING: Final[frozenset[str]] = frozenset()
FORGETS: Final = frozenset(["exclusion", "order"])
"""After a loss of state, or of time, a store promises only tokens and the fenced register."""


class Node(Protocol):
    """One server process."""

    def has_exited(self) -> bool: ...
    def kill(self) -> None: ...
    def start(self) -> None: ...
    def stopped(self) -> AbstractContextManager[None]: ...


class Target:
    """A store with its servers, which are removed at the end of the block."""

    name = ""
    ttl = 2.0
    workers = 4
    lanes = 1
    """Threads or tasks of each worker."""
    shares = True
    """It has shared locks and semaphores, and can list locks."""
    outlives_workers = True
    """It still exists when all workers have ended."""
    per_name = False
    """Tokens of different locks are not comparable."""
    has_servers = True
    has_proxies = True
    """Clients reach its servers through proxies."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.proxies: list[Proxy] = []
        self.nodes: Sequence[Node] = []
        self.shims: list[shim.Shim] = []
        """One for each node, or one for all workers."""
        self.workers_have_shim = False

    def __enter__(self) -> Self:
        try:
            # Not below a user's directory: PostgreSQL may run as another user.
            made = tempfile.TemporaryDirectory(prefix="lf-chaos-", ignore_cleanup_errors=True)
            self.directory = Path(self.stack.enter_context(made))
            self.directory.chmod(0o755)
            self.start()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stack.close()

    # ── what a store says of itself ──────────────────────────────────────────────────

    def start(self) -> None:
        """Start the servers, and the proxies in front of them."""

    def url(self, namespace: str) -> str:
        """Return the URL for workers, through the proxies."""
        raise NotImplementedError

    def direct_url(self, namespace: str) -> str:
        """Return a URL that bypasses the proxies."""
        return self.url(namespace)

    def prepare(self, namespace: str) -> None:
        """Prepare the store before the first worker of a case."""

    def unpromised(self, fault: str) -> frozenset[str]:
        """Return the checks that do not apply after this fault."""
        return NOTHING

    def lacks(self, fault: str) -> str:
        """Return why a fault that its parts would allow makes no sense here; "" if it does."""
        return ""

    def wipe(self, node: int) -> None:
        """Delete the data of a node that is down."""
        raise NotImplementedError

    def revive(self) -> None:
        """Restart servers that crashed because of a known bug, as an init system would."""

    def rows(self) -> int | None:
        """Return the number of rows, keys or pages; None if they cannot be counted."""
        return None

    # ── what faults ask ──────────────────────────────────────────────────────────────

    def struck(self, rng: random.Random) -> list[int]:
        """Return the nodes that a fault hits: no more than the store is said to survive."""
        return [rng.randrange(len(self.nodes))]

    def worker_environment(self) -> dict[str, str]:
        return self.shims[0].environment() if self.workers_have_shim else {}

    def add_shim(self, disk: Path) -> shim.Shim | None:
        if shim.missing():
            return None
        place = self.directory / f"shim-{len(self.shims)}"
        place.mkdir(mode=0o755)
        place.chmod(0o755)
        self.shims.append(shim.Shim(place, disk))
        return self.shims[-1]

    def restart_with_shim(self, server: RedisServer | PostgresServer) -> None:
        made = self.add_shim(server.directory)
        if made is not None:
            server.kill()
            server.environment = made.environment()
            server.start()


class Memory(Target):
    """`memory://` exists in one process: four threads or tasks of one worker."""

    name = "memory"
    workers, lanes = 1, 4
    outlives_workers = False
    has_servers = has_proxies = False

    def start(self) -> None:
        self.workers_have_shim = self.add_shim(self.directory) is not None

    def url(self, namespace: str) -> str:
        return f"memory://{namespace}"

    def lacks(self, fault: str) -> str:
        return "it has no disk" if fault == "disk" else ""


class Sqlite(Target):
    """A file that all workers open."""

    name = "sqlite"
    has_servers = has_proxies = False

    def start(self) -> None:
        self._files = self.directory / "files"
        self._files.mkdir(mode=0o700)
        self.workers_have_shim = self.add_shim(self._files) is not None

    def url(self, namespace: str) -> str:
        return f"sqlite://{self._files}/{namespace}.db"

    def rows(self) -> int | None:
        """Return the pages on disk: only the store's own library may open the file."""
        return sum(path.stat().st_size for path in self._files.iterdir()) // 4096


class Redis(Target):
    """One server that syncs its append-only file before it answers."""

    name = "redis"

    def start(self) -> None:
        keeps = ("--appendonly", "yes", "--appendfsync", "always")
        # With the default of 64 MB, a restart late in a soak replays very many pairs.
        compacts = ("--auto-aof-rewrite-min-size", "4mb")
        self._server = self.stack.enter_context(RedisServer(None, *keeps, *compacts))
        self.restart_with_shim(self._server)
        self.nodes = [self._server]
        self.proxies = [self.stack.enter_context(Proxy(self._server.socket))]

    def url(self, namespace: str) -> str:
        return f"redis://{self.proxies[0].address}?namespace={namespace}"

    def direct_url(self, namespace: str) -> str:
        return self._server.url(namespace)

    def unpromised(self, fault: str) -> frozenset[str]:
        return FORGETS if fault in ("wipe", "clock") else NOTHING

    def wipe(self, node: int) -> None:
        (self._server.directory / "appendonly.aof").unlink(missing_ok=True)

    def rows(self) -> int | None:
        return int(self._server.run("DBSIZE"))


class Postgresql(Target):
    """One server with synchronous commits."""

    name = "postgresql"

    def start(self) -> None:
        self._server = self.stack.enter_context(PostgresServer())
        self.restart_with_shim(self._server)
        self.nodes = [self._server]
        self.proxies = [self.stack.enter_context(Proxy(("127.0.0.1", self._server.port)))]

    def url(self, namespace: str) -> str:
        return f"postgresql://postgres@{self.proxies[0].address}/postgres?namespace={namespace}"

    def direct_url(self, namespace: str) -> str:
        return self._server.url(namespace)

    def unpromised(self, fault: str) -> frozenset[str]:
        return FORGETS if fault == "clock" else NOTHING

    def lacks(self, fault: str) -> str:
        return "a database without its files is another database" if fault == "wipe" else ""

    def rows(self) -> int | None:
        found = self._server.run(
            "SELECT coalesce(sum(n_live_tup), 0) FROM pg_stat_user_tables WHERE schemaname LIKE %s",
            "lockfast%",
        )
        return int(found[0][0])


ClusterT = TypeVar("ClusterT", EtcdCluster, ZooKeeperEnsemble)


class Replicated(Target, Generic[ClusterT]):
    """Three members, each behind a proxy; the clients' wall clocks are the ones that matter."""

    ttl = 3.0
    cluster: ClusterT

    def start(self) -> None:
        self.cluster = self.stack.enter_context(self.make_cluster())
        self.nodes = self.cluster.members
        self.proxies = [
            self.stack.enter_context(Proxy(("127.0.0.1", member.port)))
            for member in self.cluster.members
        ]
        self.workers_have_shim = self.add_shim(self.directory / "nothing") is not None

    def make_cluster(self) -> ClusterT:
        raise NotImplementedError

    def url(self, namespace: str) -> str:
        places = ",".join(proxy.address for proxy in self.proxies)
        return f"{self.name}://{places}?namespace={namespace}"

    def direct_url(self, namespace: str) -> str:
        return self.cluster.url(namespace)

    def unpromised(self, fault: str) -> frozenset[str]:
        if fault == "wipe":
            return FORGETS
        # Positions in the queue follow the clients' wall clocks.
        return frozenset(["order"]) if fault == "clock" else NOTHING

    def wipe(self, node: int) -> None:
        self.cluster.members[node].wipe()


class Etcd(Replicated[EtcdCluster]):
    name = "etcd"

    def make_cluster(self) -> EtcdCluster:
        return EtcdCluster(3)

    def revive(self) -> None:
        self.cluster.revive()

    def rows(self) -> int | None:
        everything = {"key": "AA==", "range_end": "AA==", "count_only": True}
        return int(self.cluster.leader().call("/v3/kv/range", everything).get("count", 0))


class ZooKeeper(Replicated[ZooKeeperEnsemble]):
    name = "zookeeper"

    def make_cluster(self) -> ZooKeeperEnsemble:
        return ZooKeeperEnsemble(3)

    def lacks(self, fault: str) -> str:
        return "its servers keep their files in memory here" if fault == "disk" else ""

    def rows(self) -> int | None:
        return self.cluster.leader().counters().get("zk_znode_count")


class Quorum(Target):
    """Five Redis servers without persistence; faults hit one or two of them at a time."""

    name = "quorum"
    shares = False
    per_name = True
    silence_s = 2.5

    def start(self) -> None:
        self._servers = [self.stack.enter_context(RedisServer()) for _ in range(5)]
        for server in self._servers:
            self.restart_with_shim(server)
        self.nodes = self._servers
        self.proxies = [self.stack.enter_context(Proxy(server.socket)) for server in self._servers]

    def url(self, namespace: str) -> str:
        return self._url("quorum+redis", [proxy.address for proxy in self.proxies], namespace)

    def direct_url(self, namespace: str) -> str:
        return self._url("quorum+unix", [str(server.socket) for server in self._servers], namespace)

    def _url(self, scheme: str, places: list[str], namespace: str) -> str:
        options = f"namespace={namespace}&skew=0.25&silence={self.silence_s}"
        return f"{scheme}://{','.join(places)}?{options}"

    def prepare(self, namespace: str) -> None:
        """Make the servers look long-running: no silence before the first grant."""
        for server in self._servers:
            FiveNodes.make_known(server, namespace)

    def unpromised(self, fault: str) -> frozenset[str]:
        return frozenset(["order"])  # there is no queue

    def lacks(self, fault: str) -> str:
        if fault == "restart":
            return "its nodes keep nothing on disk: see `wipe`"
        return "its nodes keep nothing on disk" if fault == "disk" else ""

    def wipe(self, node: int) -> None:
        pass  # nothing was saved

    def struck(self, rng: random.Random) -> list[int]:
        return rng.sample(range(5), rng.choice((1, 2)))

    def rows(self) -> int | None:
        return sum(int(server.run("DBSIZE")) for server in self._servers)


class Promoting(Target):
    """Redis with replicas that take over; clients connect to the addresses that it announces.

    Its nodes have no persistence.
    """

    has_proxies = False

    def primary(self, rng: random.Random) -> RedisServer:
        """Return a primary that serves a lock of the workers."""
        raise NotImplementedError

    def wait_for_failover(self, lost: RedisServer) -> None:
        """Wait until a replica has taken over from `lost`."""
        raise NotImplementedError

    def is_ok(self) -> bool:
        """Return whether all nodes run and every replica is in sync."""
        raise NotImplementedError

    def unpromised(self, fault: str) -> frozenset[str]:
        # Replication is asynchronous, so a failover may lose the last grants.
        return FORGETS if fault in ("freeze", "wipe", "promote") else NOTHING

    def lacks(self, fault: str) -> str:
        if fault in ("restart", "disk"):
            return "its nodes keep nothing on disk: see `wipe` and `redis`"
        return "see `redis`" if fault == "clock" else ""

    def wipe(self, node: int) -> None:
        pass  # nothing was saved


class Sentinel(Promoting):
    """A primary with two replicas, watched by three sentinels."""

    name = "redis-sentinel"

    def start(self) -> None:
        self._watched = self.stack.enter_context(Watched())
        self.nodes = self._watched.nodes

    def url(self, namespace: str) -> str:
        return self._watched.url(namespace)

    def primary(self, rng: random.Random) -> RedisServer:
        return self._watched.current()

    def wait_for_failover(self, lost: RedisServer) -> None:
        self._watched.wait_for_failover(lost)

    def is_ok(self) -> bool:
        return self._watched.is_ok()

    def rows(self) -> int | None:
        return int(self._watched.current().run("DBSIZE"))


class Cluster(Promoting):
    """A Redis Cluster of three primaries with a replica each."""

    name = "redis-cluster"
    workers = 8
    per_name = True
    shards = 8

    def start(self) -> None:
        self.cluster = self.stack.enter_context(RedisCluster())
        self.nodes = self.cluster.nodes
        self._namespace = ""

    def url(self, namespace: str) -> str:
        self._namespace = namespace
        return self.cluster.url(namespace, shards=self.shards)

    def slot_of(self, name: str) -> int:
        """Return the slot of a lock."""
        shard = Placement(self.shards).shard_of_name("lock", name)
        return slot_of(tag_of(shard_namespaces(self._namespace, self.shards)[shard]))

    def primary(self, rng: random.Random) -> RedisServer:
        return self.cluster.owner(self.slot_of(rng.choice(NAMES)))

    def wait_for_failover(self, lost: RedisServer) -> None:
        self.cluster.wait_for_failover(lost)

    def is_ok(self) -> bool:
        return self.cluster.is_ok()

    def rows(self) -> int | None:
        return sum(int(node.call("DBSIZE")) for node in self.cluster.masters())


class Served(ServerProcess):
    """A lock server as a node."""

    def has_exited(self) -> bool:
        return self.process.poll() is not None

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


class Server(Target):
    """Two lock servers over one Redis."""

    name = "server"

    def start(self) -> None:
        redis = self.stack.enter_context(RedisServer())
        self._servers: list[Served] = []
        for number in range(2):
            place = self.directory / f"server-{number}"
            place.mkdir()
            self._servers.append(Served(f"unix://{redis.socket}", place, "--insecure-dev"))
            self.stack.enter_context(self._servers[-1])
        self.nodes = self._servers
        ports = [int(server.url.rpartition(":")[2]) for server in self._servers]
        self.proxies = [self.stack.enter_context(Proxy(("127.0.0.1", port))) for port in ports]

    def url(self, namespace: str) -> str:
        places = ",".join(proxy.address for proxy in self.proxies)
        return f"http://{places}?namespace={namespace}"

    def direct_url(self, namespace: str) -> str:
        return f"{self._servers[0].url}?namespace={namespace}"

    def lacks(self, fault: str) -> str:
        if fault in ("disk", "clock"):
            return "see the store that it serves"
        return "its servers keep nothing: see the store that they serve" if fault == "wipe" else ""


TARGETS: Final[dict[str, Callable[[], Target]]] = {
    kind.name: kind
    for kind in (
        *(Memory, Sqlite, Redis, Sentinel, Cluster, Postgresql),
        *(Etcd, ZooKeeper, Quorum, Server),
    )
}
