"""Real servers: killed under clients, two over one store, systemd, reload, shutdown."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

import lockfast
from tests.servers.lockserver import ServerProcess
from tests.servers.redis import RedisServer, binaries

CLIENTS = 50
TTL_S = 60.0
WAIT_S = 60.0
SERVE = (sys.executable, "-m", "lockfast", "serve")


def until(condition: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < give_up, f"{what} has not happened after {WAIT_S} s"
        time.sleep(0.02)


def killed_under_clients(store_url: str, directory: Path) -> None:
    """Half of the clients hold a lock each; the others take turns at one."""
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


def test_two_servers_over_one_store(tmp_path: Path) -> None:
    """Clients of one server wait for locks held through the other, and are woken."""
    with RedisServer(binaries()["wheel"]) as redis:
        url = redis.url()
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
            # One server goes; its clients go on at the other.
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
    """Readiness goes first, streams are told to reconnect, and sessions stay alive."""
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
