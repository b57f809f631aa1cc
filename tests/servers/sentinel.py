"""A primary with two replicas and three sentinels, all from the Redis wheel."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from lockfast.stores.redis.address import Address
from lockfast.stores.redis.connection import Connection
from lockfast.stores.redis.resp import pack
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer, binaries

SERVICE: Final = "locks"
PATIENCE_S: Final = 60.0


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < give_up_s, f"{what} did not happen within {PATIENCE_S} s"
        time.sleep(0.02)


class Replicated:
    """A primary and its replicas, in sync when the block is entered."""

    def __init__(self, replicas: int = 2, password: str = "") -> None:
        self._stack = contextlib.ExitStack()
        secrets = ["--requirepass", password, "--masterauth", password] if password else []
        self._password = password
        self.primary = RedisServer(None, *secrets, port=free_port())
        self.replicas = [
            RedisServer(
                None, "--replicaof", "127.0.0.1", str(self.primary.port), *secrets,
                port=free_port(),
            )
            for _ in range(replicas)
        ]  # fmt: skip

    def __enter__(self) -> Self:
        self._stack.enter_context(self.primary)
        for replica in self.replicas:
            self._stack.enter_context(replica)
        count = f"connected_slaves:{len(self.replicas)}"
        wait_until(lambda: count in self.info(self.primary), "replication")
        for replica in self.replicas:
            wait_until(lambda r=replica: "master_link_status:up" in self.info(r), "a first copy")  # type: ignore[misc]
        return self

    def info(self, server: RedisServer) -> str:
        return str(server.run("INFO", "replication", password=self._password))

    def __exit__(self, *error: object) -> None:
        self._stack.close()


class Sentinel:
    """One sentinel process."""

    def __init__(self, primary: int, quorum: int, password: str = "", auth: str = "") -> None:
        self.port = free_port()
        self._password = password
        self._directory = tempfile.TemporaryDirectory(prefix="lf-sentinel-")
        config = Path(self._directory.name) / "sentinel.conf"
        lines = [
            f"port {self.port}",
            f"dir {self._directory.name}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary} {quorum}",
            f"sentinel down-after-milliseconds {SERVICE} 1000",
            f"sentinel failover-timeout {SERVICE} 6000",
        ]
        if password:
            lines.append(f"requirepass {password}")
        if auth:
            lines.append(f"sentinel auth-pass {SERVICE} {auth}")
        config.write_text("\n".join(lines) + "\n")
        self._process = subprocess.Popen(
            [str(binaries()["wheel"]), str(config), "--sentinel"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )

    def fields(self) -> dict[str, str]:
        """Return what it knows of the primary; {} if it does not answer."""
        until_s = time.monotonic() + 2
        try:
            address = Address("sentinel", "127.0.0.1", self.port, password=self._password)
            connection = Connection(address, until_s, checked=False)
            try:
                found: Any = connection.exchange(pack("SENTINEL", "MASTER", SERVICE), until_s)
            finally:
                connection.close()
            return dict(zip(found[::2], found[1::2], strict=True))
        except Exception:
            return {}

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._directory.cleanup()


class Watched(Replicated):
    """The same, monitored by sentinels that know each other and all replicas."""

    def __init__(self, sentinels: int = 3, password: str = "", sentinel_password: str = "") -> None:
        super().__init__(password=password)
        self._count = sentinels
        self._sentinel_password = sentinel_password
        self.sentinels: list[Sentinel] = []

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            for _ in range(self._count):
                sentinel = Sentinel(
                    self.primary.port, self._count // 2 + 1, self._sentinel_password,
                    self._password,
                )  # fmt: skip
                self.sentinels.append(sentinel)
                self._stack.callback(sentinel.kill)
            for sentinel in self.sentinels:
                wait_until(lambda s=sentinel: self._knows_all(s), "that sentinels meet")  # type: ignore[misc]
        except BaseException:
            self._stack.close()
            raise
        return self

    def _knows_all(self, sentinel: Sentinel) -> bool:
        found = sentinel.fields()
        return (
            found.get("num-other-sentinels") == str(self._count - 1)
            and found.get("num-slaves") == str(len(self.replicas))
            and found.get("flags") == "master"
        )

    def url(self, namespace: str, credentials: str = "", **options: str | int) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        query = "&".join(
            f"{name}={value}" for name, value in {"namespace": namespace, **options}.items()
        )
        return f"redis+sentinel://{credentials}{hosts}/{SERVICE}?{query}"

    # ── what operators and accidents do ──────────────────────────────────────────────

    @property
    def nodes(self) -> list[RedisServer]:
        return [self.primary, *self.replicas]

    def current(self) -> RedisServer:
        """Return the primary that the sentinels name."""
        wait_until(lambda: len(self._named()) == 1, "that sentinels agree on a primary")
        (port,) = self._named()
        return next(node for node in self.nodes if str(node.port) == port)

    def fail_over(self) -> RedisServer:
        """Kill the primary, wait until a replica has been promoted, and return it."""
        self.primary.kill()
        self.wait_for_failover(self.primary)
        return self.current()

    def wait_for_failover(self, lost: RedisServer) -> None:
        """Wait until every sentinel names another primary than `lost`, which is one."""
        wait_until(lambda: self._named().isdisjoint(("", str(lost.port))), "a failover")
        promoted = self.current()
        wait_until(lambda: "role:master" in self.info(promoted), "a promotion")

    def is_ok(self) -> bool:
        """Return whether all nodes run, one is the primary, and the others are in sync with it."""
        named = self._named()
        if len(named) != 1 or not all(node.is_running() for node in self.nodes):
            return False
        (port,) = named
        states = {str(node.port): self.info(node) for node in self.nodes}
        return "role:master" in states.pop(port) and all(
            f"master_port:{port}\r" in state and "master_link_status:up" in state
            for state in states.values()
        )

    def _named(self) -> set[str]:
        """Return the ports that the sentinels name; "" for one that does not answer."""
        return {sentinel.fields().get("port", "") for sentinel in self.sentinels}
