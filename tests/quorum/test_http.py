"""Lockfast servers as nodes: faults of real servers, and clients that are configured wrongly."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import trustme

import lockfast
from lockfast import aio
from lockfast.cli import exit_codes, main
from lockfast.errors import (
    AccessDeniedError,
    AcquireTimeoutError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from lockfast.server.config import Config, Policy, Tls
from lockfast.server.listening import tls_context
from lockfast.server.rights import ACQUIRE, READ, Grant, RightsTable
from lockfast.server.tokens import TokenFile
from lockfast.stores.quorum.sqlite import SqliteNode
from tests.quorum.nodes import SKEW_S
from tests.quorum.servers import LONG_S, SKEW_US, ThreeServers, node_options, three_servers
from tests.servers.lockserver import ServerProcess, ServerThread

PATIENCE_S = 60.0
SILENCE_S = 3.0


class NodeProcesses:
    """Three processes, each a node with its own directory, which has existed for long."""

    def __init__(self, directory: Path, silence_s: float) -> None:
        self._silence_s = silence_s
        self.directories = [directory / f"node-{name}" for name in "abc"]
        for place in self.directories:
            path = place / "nodes" / "default.db"
            node = SqliteNode(path, str(path), SKEW_US, 0, idle_ms=3_600_000)
            node.identity()
            node.close()
        options = ("--insecure-dev", "--skew", f"{SKEW_S}", "--silence", f"{silence_s}")
        self.servers = [
            ServerProcess("memory://", directory / name, *options, "--node", str(data))
            for name, data in zip("abc", self.directories, strict=True)
        ]

    def url(self) -> str:
        places = ",".join(server.url.partition("://")[2] for server in self.servers)
        return f"quorum+http://{places}?skew={SKEW_S}&silence={self._silence_s}"

    @contextlib.contextmanager
    def running(self) -> Iterator[NodeProcesses]:
        with contextlib.ExitStack() as stack:
            for server in self.servers:
                stack.enter_context(server)
            yield self

    def kill_all(self) -> None:
        for server in self.servers:
            server.kill()


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    """Processes that every test leaves running."""
    directory = tmp_path_factory.mktemp("processes")
    with NodeProcesses(directory, 60.0).running() as started:
        yield started


@contextlib.contextmanager
def stopped(server: ServerProcess) -> Iterator[None]:
    """Stop the process: its machine accepts connections, and nobody answers."""
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeServers]:
    with three_servers(tmp_path_factory.mktemp("nodes")) as started:
        yield started


# ── faults ───────────────────────────────────────────────────────────────────────────


def test_killed_nodes_come_back_with_their_data(processes: NodeProcesses) -> None:
    url = processes.url()
    with lockfast.connect(url, ttl=60, connect_timeout=PATIENCE_S) as client:
        lease = client.lock("a").acquire()
        processes.kill_all()
        for server in processes.servers:
            server.start()
        with lockfast.connect(url, ttl=60, connect_timeout=PATIENCE_S) as other:
            # They grant other locks at once, and remember this one.
            with other.lock("b").acquire() as later:
                assert later.token > lease.token
            (holder,) = other.inspect("a").holders
            assert holder.token == lease.token
            assert other.lock("a").try_acquire() is None
        lease.release()


def test_nodes_that_lost_their_data_are_silent_first(tmp_path: Path) -> None:
    """The lock is free again, but only once its holder has stopped."""
    with NodeProcesses(tmp_path, SILENCE_S).running() as processes:
        url = processes.url()
        with (
            lockfast.connect(url, ttl=SILENCE_S, connect_timeout=PATIENCE_S) as client,
            lockfast.connect(url, ttl=SILENCE_S, connect_timeout=PATIENCE_S) as other,
        ):
            lease = client.lock("a").acquire(timeout=PATIENCE_S)
            processes.kill_all()
            stops_at = lease.deadline
            for server, directory in zip(processes.servers, processes.directories, strict=True):
                shutil.rmtree(directory)
                server.start()
            later = other.lock("a").acquire(timeout=PATIENCE_S)
            assert monotonic() >= stops_at
            assert later.token > lease.token
            assert lease.lost.wait(PATIENCE_S)
            later.release()


def test_a_node_that_does_not_answer_is_not_waited_for(processes: NodeProcesses) -> None:
    """Neither by a client that is connected to it, nor by one that never was."""
    url = processes.url()

    async def work() -> int:
        async with aio.connect(url, connect_timeout=PATIENCE_S) as tasks, tasks.lock("c") as lease:
            return lease.token

    with lockfast.connect(url, connect_timeout=PATIENCE_S) as client:
        client.lock("a").acquire().release()
        with stopped(processes.servers[0]):
            tokens = []
            for _ in range(5):
                with client.lock("a") as lease:
                    tokens.append(lease.token)
            with lockfast.connect(url, connect_timeout=PATIENCE_S) as late:
                late.lock("b").acquire().release()
            tokens.append(asyncio.run(work()))
    assert tokens == sorted(set(tokens))


def test_one_server_per_directory(processes: NodeProcesses, tmp_path: Path) -> None:
    data = str(processes.directories[0])
    second = ServerProcess("memory://", tmp_path / "second", "--insecure-dev", "--node", data)
    with pytest.raises(AssertionError, match="is served by another process"):
        second.start()


def test_the_options_of_a_node_need_a_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--skew", "1"]) == exit_codes.USAGE
    assert "need --node" in capsys.readouterr().err
    assert main(["serve", "--node", "x", "--silence", "2d"]) == exit_codes.USAGE
    assert "--silence is from 0.001 to 86400 s" in capsys.readouterr().err


# ── configuration ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("option", ["skew", "silence"])
def test_a_client_that_disagrees_about_time_is_refused(three: ThreeServers, option: str) -> None:
    options: dict[str, Any] = {option: 30}
    url = three.url(**options)
    with (
        lockfast.connect(url, ttl=1) as client,
        pytest.raises(StoreMisconfiguredError, match=rf"skew=0\.25 .*{option}=30"),
    ):
        client.lock("a").acquire()


def test_two_names_of_one_node_are_refused(three: ThreeServers) -> None:
    """Its two votes would fake a majority."""
    url = three.url()
    first, second = (f"127.0.0.1:{server.port}" for server in three.servers[:2])
    with pytest.raises(StoreMisconfiguredError, match="names a node twice"):
        lockfast.connect(url.replace(second, first))
    twins = url.replace(second, first.replace("127.0.0.1", "localhost"))
    with lockfast.connect(twins) as client:
        refused = "is also reached by another name in the URL"
        # The first may be answered by two different nodes before the second name is known.
        _until(lambda: _raises(client, refused))
        with pytest.raises(StoreMisconfiguredError, match=refused):
            client.lock("a").acquire()


def _raises(client: lockfast.Client, text: str) -> bool:
    try:
        client.inspect("a")
    except StoreMisconfiguredError as error:
        return text in str(error)
    return False


def test_a_server_that_is_no_node_is_named(three: ThreeServers) -> None:
    with ServerThread("memory://no-node") as other:
        places = [f"127.0.0.1:{other.port}", f"localhost:{other.port}"]
        url = re.sub(r"//[^,]*,[^,]*,", f"//{','.join(places)},", three.url())
        with (
            lockfast.connect(url) as client,
            pytest.raises(StoreMisconfiguredError, match="serve --node"),
        ):
            client.lock("a").acquire()


def test_the_token_and_the_right_are_checked(tmp_path: Path) -> None:
    tokens = TokenFile(str(tmp_path / "tokens.json"))
    token = tokens.create("alice")
    policy = Policy(RightsTable([Grant("alice", "*", "orders", frozenset({READ, ACQUIRE}))]))
    with three_servers(tmp_path, Config(policy), tokens) as three:
        file = tmp_path / "token"
        file.write_text(token)
        with lockfast.connect(three.url(token_file=file)) as client:
            with client.lock("orders/1"):
                assert client.inspect("orders/1").holders[0].owner.endswith("[alice]")
            with pytest.raises(AccessDeniedError, match="no right to acquire 'billing'"):
                client.lock("billing").acquire()
        each = re.sub(r"(127\.0\.0\.1)", rf":{token}@\1", three.url())
        with lockfast.connect(each) as client, client.lock("orders/1"):
            pass
        file.write_text("lf_wrong")
        with (
            lockfast.connect(three.url(token_file=file)) as client,
            pytest.raises(AccessDeniedError, match="credentials"),
        ):
            client.lock("orders/1").acquire()


def test_nodes_are_reached_by_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    cert, key, ca = (str(tmp_path / f"{name}.pem") for name in ("cert", "key", "ca"))
    issued.private_key_pem.write_to_path(key)
    issued.cert_chain_pems[0].write_to_path(cert)
    authority.cert_pem.write_to_path(ca)
    context: ssl.SSLContext = tls_context(Tls(cert, key))
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(
                ServerThread(
                    f"memory://tls-{name}", ssl=context, node=node_options(tmp_path / name)
                )
            )
            for name in "abc"
        ]
        url = ThreeServers(servers).url().replace("+http:", "+https:")

        async def work() -> None:
            async with aio.connect(f"{url}&ca={ca}") as tasks, tasks.lock("a"):
                pass

        with lockfast.connect(f"{url}&ca={ca}") as client, client.lock("a"):
            pass
        asyncio.run(work())
        with (
            lockfast.connect(url) as client,
            pytest.raises(StoreMisconfiguredError, match="certificate"),
        ):
            client.lock("a").acquire()


def test_the_doctor_examines_each_server(
    three: ThreeServers, capsys: pytest.CaptureFixture[str]
) -> None:
    url = three.url()
    assert main(["doctor", url]) == 0
    said = capsys.readouterr().out
    assert said.count(f"Lockfast {lockfast.__version__}, clock 0 ms off") == 3
    assert "3 of 3 nodes are fit, 2 are needed" in said
    assert main(["doctor", three.url(skew=1)]) == 2
    assert "runs with skew=0.25" in capsys.readouterr().out
    first, second = (server.port for server in three.servers[:2])
    host = f"127.0.0.1:{first}"
    dead = url.replace(host, "127.0.0.1:1")
    assert main(["doctor", dead]) == 0
    assert "cannot be reached" in capsys.readouterr().out
    twins = url.replace(f"127.0.0.1:{second}", f"localhost:{first}")
    assert main(["doctor", twins]) == 2
    assert "another name" in capsys.readouterr().out


def test_the_doctor_says_how_long_a_new_node_is_silent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with three_servers(tmp_path) as three:
        nodes = three.servers[0].server.nodes
        assert nodes is not None
        nodes.began_s += LONG_S
        url = three.url()
        assert main(["doctor", url]) == 0
        assert re.search(r"silent for \d\d s", capsys.readouterr().out)
        with lockfast.connect(url) as client, client.lock("a"):
            pass  # two nodes are enough


def test_new_nodes_grant_nothing(tmp_path: Path) -> None:
    with three_servers(tmp_path) as three:
        for server in three.servers:
            assert server.server.nodes is not None
            server.server.nodes.began_s += LONG_S
        with lockfast.connect(three.url()) as client, pytest.raises(AcquireTimeoutError):
            client.lock("a").acquire(timeout=0.2)


def test_without_a_majority_nothing_is_granted(three: ThreeServers) -> None:
    dead = re.sub(r"//[^,]*,[^,]*,", "//127.0.0.1:1,127.0.0.1:2,", three.url())
    with lockfast.connect(dead, connect_timeout=0.2) as client:
        with pytest.raises(StoreUnavailableError, match=r"[01] of 3 nodes answered, 2 are needed"):
            client.lock("a").acquire()


def _until(condition: Callable[[], bool]) -> None:
    """Poll for a condition, for a bounded time."""
    give_up_s = monotonic() + PATIENCE_S
    ticker = threading.Event()
    while not condition():
        assert monotonic() < give_up_s, "it never happened"
        ticker.wait(0.02)
