"""Real servers: killed under load, two over one store, systemd, reload, shutdown."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

import lockfast
from lockfast.server.tokens import TokenFile
from tests.server.waiting import WAIT_S, until
from tests.servers.etcd import EtcdCluster
from tests.servers.lockserver import ServerProcess
from tests.servers.redis import RedisServer, binaries

CLIENTS = 50
TTL_S = 60.0
SERVE = (sys.executable, "-m", "lockfast", "serve")


def killed_under_clients(store_url: str, directory: Path) -> None:
    """Half of the clients hold one lock each; the others contend for one."""
    with ServerProcess(store_url, directory) as server:
        clients = [
            # A server takes seconds to start on a busy machine.
            lockfast.connect(server.client_url(), ttl=TTL_S, connect_timeout=WAIT_S)
            for _ in range(CLIENTS)
        ]
        holders, takers = clients[: CLIENTS // 2], clients[CLIENTS // 2 :]
        leases = [client.lock(f"own/{at}").acquire() for at, client in enumerate(holders)]
        stop = threading.Event()
        tokens: list[int] = []
        rounds: list[int] = []
        inside = threading.Lock()
        trouble: list[str] = []

        def take_turns(client: lockfast.Client) -> None:
            while not stop.is_set():
                try:
                    with client.lock("shared").acquire(timeout=WAIT_S) as lease:
                        if not inside.acquire(blocking=False):
                            trouble.append("two holders at once")
                            return
                        tokens.append(lease.token)
                        inside.release()
                except lockfast.LockfastError as error:
                    trouble.append(repr(error))
                    return

        threads = [threading.Thread(target=take_turns, args=(client,)) for client in takers]
        for thread in threads:
            thread.start()
        until(lambda: len(tokens) > 20 or trouble, "a first round")
        for _ in range(2):
            server.kill()
            server.start()
            rounds.append(len(tokens) + 20)
            until(lambda: len(tokens) > rounds[-1] or trouble, "a round after the kill")
        stop.set()
        for thread in threads:
            thread.join(WAIT_S)
        assert trouble == []
        assert tokens == sorted(set(tokens)), "tokens rise"
        for lease in leases:
            lease.check()
            lease.release()
        for client in clients:
            client.close()
        server.stop()


def test_kill_and_restart_over_the_embedded_file(tmp_path: Path) -> None:
    killed_under_clients(f"sqlite://{tmp_path}/locks.db", tmp_path)


def test_kill_and_restart_over_redis(tmp_path: Path) -> None:
    with RedisServer(binaries()["wheel"]) as redis:
        killed_under_clients(redis.url(), tmp_path)


def test_kill_and_restart_over_etcd(tmp_path: Path) -> None:
    with EtcdCluster(1) as etcd:
        killed_under_clients(etcd.url(), tmp_path)


@pytest.mark.parametrize("store", ["redis", "etcd"])
def test_two_servers_over_one_store(tmp_path: Path, store: str) -> None:
    """Clients of one server wait for locks held through the other, and are woken."""
    with RedisServer(binaries()["wheel"]) if store == "redis" else EtcdCluster(1) as server:
        url = server.url()
        (tmp_path / "a").mkdir()
        with ServerProcess(url, tmp_path / "a") as one, ServerProcess(url, tmp_path / "a") as two:
            first = lockfast.connect(one.client_url(), ttl=60)
            second = lockfast.connect(two.client_url(), ttl=60)
            spans = []
            for _ in range(5):
                lease = first.lock("a").acquire()
                taken: list[float] = []

                def take(taken: list[float] = taken) -> None:
                    with second.lock("a").acquire(timeout=WAIT_S):
                        taken.append(time.monotonic())

                waiter = threading.Thread(target=take)
                waiter.start()
                until(lambda: first.inspect("a").waiting_count == 1, "the other waits")
                released = time.monotonic()
                lease.release()
                waiter.join(WAIT_S)
                spans.append(taken[0] - released)
            assert min(spans) < 10, "woken, and not found by a keep-alive after 20 s"
            # One server ends; its clients continue at the other.
            both = f"{one.url},{two.url.partition('://')[2]}?token_file={one.directory}/state/token"
            roaming = lockfast.connect(both, ttl=60)
            with roaming.lock("b") as held:
                one.kill()
                with roaming.lock("c"):
                    pass
                held.check()
            for client in (first, second, roaming):
                client.close()


def test_one_server_per_embedded_file(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    with ServerProcess(url, tmp_path), pytest.raises(AssertionError, match="another process"):
        ServerProcess(url, tmp_path).start()


def test_shutdown_is_graceful(tmp_path: Path) -> None:
    """Readiness ends first, streams are told to reconnect, and sessions stay alive."""
    url = f"sqlite://{tmp_path}/locks.db"
    with ServerProcess(url, tmp_path, "--drain", "3") as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=30) as http:
            opened = http.post("/v1/sessions", json={"ttl_ms": 60_000}).json()["session"]
            claim = f"/v1/sessions/{opened}/claims/1"
            assert http.put(claim, json={"lock": "a"}).status_code == 200
            accept = {"Accept": "application/x-ndjson"}
            path = f"/v1/sessions/{opened}/wakes"
            with http.stream("GET", path, headers=accept) as stream:
                lines = stream.iter_lines()
                assert json.loads(next(lines)) == {"what": "missed"}
                server.process.send_signal(signal.SIGTERM)
                assert json.loads(list(lines)[-1]) == {"what": "reconnect"}
            assert http.get("/readyz").status_code == 503
            assert http.get("/healthz").status_code == 200
        assert server.ended() == 0
        server.start()
        with httpx.Client(base_url=server.url, headers=headers) as http:
            assert http.get(claim).json()["Granted"]["token"] > 0
        server.stop()


def test_rights_are_read_again_on_sighup(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text('[[rights]]\nprincipal = "local"\nprefix = "a"\nallow = ["acquire"]\n')
    with ServerProcess("memory://", tmp_path, "--config", str(config)) as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        with httpx.Client(base_url=server.url, headers=headers) as http:
            assert http.put("/v1/limits/semaphore/a", json={"limit": 3}).status_code == 403
            config.write_text('[[rights]]\nprincipal = "local"\nallow = ["admin"]\n')
            server.process.send_signal(signal.SIGHUP)
            until(lambda: any("reloaded" in line for line in server.lines), "the reload")
            assert http.put("/v1/limits/semaphore/a", json={"limit": 3}).status_code != 403
            config.write_text("nonsense")
            server.process.send_signal(signal.SIGHUP)
            until(lambda: any("not reloaded" in line for line in server.lines), "the refusal")
            assert http.put("/v1/limits/semaphore/a", json={"limit": 3}).status_code != 403


def test_a_socket_is_for_its_user_only(tmp_path: Path) -> None:
    path = tmp_path / "lockfast.sock"
    with ServerProcess("memory://", tmp_path, listen=str(path)) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        url = f"http+unix://{path}?token_file={tmp_path}/state/token"
        with lockfast.connect(url) as client, client.lock("a") as lease:
            assert lease.token > 0
        server.stop()


@pytest.mark.parametrize(
    "options", [("--listen", "0.0.0.0:0"), ("--listen", "[::]:0"), ("--listen", ":0")]
)
@pytest.mark.parametrize("insecure", [(), ("--insecure-dev",)])
def test_a_public_address_needs_tls(
    tmp_path: Path, options: tuple[str, ...], insecure: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [*SERVE, "--store", "memory://", "--state-dir", str(tmp_path), *options, *insecure],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "reachable from other machines" in done.stderr


SYSTEMD = """
import os, sys
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, "-m", "lockfast", *sys.argv[1:]])
"""


def test_systemd_opens_the_socket_and_is_notified(tmp_path: Path) -> None:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notified.bind(str(tmp_path / "notify"))
    notified.settimeout(WAIT_S)

    def take_fd_three() -> None:
        os.dup2(listening.fileno(), 3)

    command = [sys.executable, "-c", SYSTEMD, "serve", "--store", "memory://"]
    process = subprocess.Popen(
        [*command, "--state-dir", str(tmp_path / "state"), "--drain", "0.1"],
        env={**os.environ, "LISTEN_FDS": "1", "NOTIFY_SOCKET": str(tmp_path / "notify")},
        preexec_fn=take_fd_three,
        close_fds=False,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert notified.recv(100) == b"READY=1"
        assert httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert notified.recv(100) == b"STOPPING=1"
        assert process.wait(30) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        listening.close()
        notified.close()


def test_the_first_token_is_printed_once(tmp_path: Path) -> None:
    """Loopback needs a token, too."""
    with ServerProcess("memory://", tmp_path) as server:
        until(lambda: any(server.token in line for line in server.lines), "the token is printed")
        path = tmp_path / "state" / "token"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert httpx.get(server.url + "/v1/locks").status_code == 401
        headers = {"Authorization": f"Bearer {server.token}"}
        assert httpx.get(server.url + "/v1/locks", headers=headers).status_code == 200
        server.stop()
        server.lines.clear()
        server.start()
        assert httpx.get(server.url + "/v1/locks", headers=headers).status_code == 200
        server.stop()
        assert not any("lf_" in line for line in server.lines)


def test_the_first_token_is_created_although_there_is_one_without_rights(tmp_path: Path) -> None:
    """After `lockfast token create alice`, a server without [[rights]] served nobody."""
    tokens = TokenFile(str(tmp_path / "state" / "tokens.json"))
    alice = tokens.create("alice")
    with ServerProcess("memory://", tmp_path) as server:
        for token, status in ((server.token, 200), (alice, 403)):
            headers = {"Authorization": f"Bearer {token}"}
            told = httpx.get(server.url + "/v1/sessions", headers=headers)
            assert told.status_code == status, told.text
        server.stop()
        server.start()
        assert [token.principal for token in tokens.all()] == ["alice", "local"]
        server.stop()


def test_a_password_is_not_accepted_on_the_command_line(tmp_path: Path) -> None:
    url = "redis://:secret@127.0.0.1:1"
    arguments = ["--state-dir", str(tmp_path / "state"), "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        [*SERVE, "--store", url, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "--store-file" in done.stderr
    assert "secret" not in done.stderr
    file = tmp_path / "url"
    file.write_text("memory://\n")
    with ServerProcess("", tmp_path, store=("--store-file", str(file))) as server:
        assert httpx.get(server.url + "/readyz").status_code == 200
        server.stop()


def test_changes_of_tokens_are_audited(tmp_path: Path) -> None:
    audit, state = tmp_path / "audit.jsonl", tmp_path / "state"
    command = [sys.executable, "-m", "lockfast", "token"]
    options = ["--state-dir", str(state), "--audit-log", str(audit)]
    made = subprocess.run(
        [*command, "create", "alice", *options], capture_output=True, text=True, timeout=60
    )
    listed = subprocess.run(
        [*command, "list", "--json", *options], capture_output=True, text=True, timeout=60
    )
    token_id = json.loads(listed.stdout)[0]["id"]
    subprocess.run([*command, "revoke", token_id, *options], check=True, timeout=60)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [line["what"] for line in lines] == ["token created", "token revoked"]
    assert made.stdout.strip() not in audit.read_text()


def test_a_store_that_hangs_is_not_ready(tmp_path: Path) -> None:
    """A probe gets a problem document in time, and not an internal error."""
    with RedisServer(binaries()["wheel"]) as redis:
        with ServerProcess(redis.url(), tmp_path) as server:
            assert httpx.get(server.url + "/readyz").status_code == 200
            with redis.stopped():
                response = httpx.get(server.url + "/readyz", timeout=WAIT_S)
            assert response.status_code == 503
            assert response.json()["type"] == "urn:lockfast:problem:store-unavailable"
            server.stop()


def test_more_connections_than_the_soft_limit(tmp_path: Path) -> None:
    """A waiting client is a connection; shells often start programs with few descriptors."""
    few = ["sh", "-c", 'ulimit -Sn 64; exec "$0" "$@"', sys.executable]
    with ServerProcess("memory://", tmp_path, launcher=few) as server:
        host, _, port = server.url.partition("://")[2].partition(":")
        with contextlib.ExitStack() as stack:
            peers = [
                stack.enter_context(socket.create_connection((host, int(port)), WAIT_S))
                for _ in range(150)
            ]
            for peer in peers:
                peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for peer in peers:
                assert peer.recv(100).startswith(b"HTTP/1.1 200 ")
        server.stop()


def test_a_store_that_does_not_answer_is_reported(tmp_path: Path) -> None:
    """The server starts before its store may; its operator must not have to guess."""
    with ServerProcess("redis://127.0.0.1:1", tmp_path) as server:
        until(lambda: any("cannot be used" in line for line in server.lines), "the warning")
        assert any("cannot be reached" in line for line in server.lines)
        assert httpx.get(server.url + "/readyz", timeout=WAIT_S).status_code == 503
        server.stop()


def test_what_is_not_http_is_not_logged(tmp_path: Path) -> None:
    """Noise on the port is not logged, and the error for a wrong scheme names the cause."""
    with ServerProcess("memory://", tmp_path) as server:
        url = server.url.replace("http://", "https://")
        command = [sys.executable, "-m", "lockfast", "ls", "--url", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == 2
        assert "does not use TLS at this address" in done.stderr
        server.stop()
        assert not any("Invalid" in line for line in server.lines)


@pytest.mark.parametrize("store", ["nothing://", "redis://127.0.0.1:port", "sqlite:///dev/null/x"])
def test_a_wrong_store_prevents_the_start(tmp_path: Path, store: str) -> None:
    arguments = ["--state-dir", str(tmp_path / "state"), "--listen", "127.0.0.1:0"]
    command = [*SERVE, "--store", store, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 2
    assert "serving" not in done.stderr
    assert "password" not in done.stderr


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (str(tmp_path / "file" / "state"), str(tmp_path / "file")):
        command = [*SERVE, "--store", "memory://", "--state-dir", place, "--listen", "127.0.0.1:0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == 2
        assert re.search(f"{place}: cannot be used \\([nN]ot a directory\\)", done.stderr)


def test_a_server_serves_the_address_at_which_it_listens(tmp_path: Path) -> None:
    with ServerProcess("memory://", tmp_path, listen="127.0.0.2:0") as server:
        assert server.url.startswith("http://127.0.0.2:")
        with lockfast.connect(server.client_url()) as client, client.lock("a"):
            pass
        other = httpx.get(server.url + "/healthz", headers={"Host": "127.0.0.3"})
        assert other.status_code == 421
        server.stop()


def test_a_server_whose_output_nobody_reads_can_be_stopped(tmp_path: Path) -> None:
    """The message about the shutdown failed, and with it the handler of the signal."""
    server = ServerProcess("memory://", tmp_path)
    reader, writer = os.pipe()
    command = [*server._command, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=writer) as process, os.fdopen(reader) as said:
        os.close(writer)
        assert any("serving" in line for line in iter(said.readline, ""))
        said.close()
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
