"""The endpoints of the playground, and the command that serves it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

import lockfast
from lockfast.playground.panel import make_panel
from lockfast.playground.scene import Scene
from tests.playground.test_scene import until
from tests.servers.lockserver import ServerThread


@pytest.fixture
def http(scene: Scene) -> Iterator[httpx.Client]:
    server = ServerThread(scene.url, panels=[make_panel(scene)])
    with server, httpx.Client(base_url=server.base, timeout=30) as client:
        yield client


def test_commands_and_state(http: httpx.Client, scene: Scene) -> None:
    assert http.get("/dashboard/session").json()["panels"] == ["/playground"]
    assert http.post("/playground/commands", json={"command": "play"}).json() == {}
    until(scene, lambda: not scene.story.playing)
    state = http.get("/playground/state").json()
    assert [one["corrupted"] for one in state["resources"]] == [True, False]
    assert state["timeline"].startswith("<svg")
    # The lock is an ordinary lock of this server.
    scene.do("set", {"work": 20})
    scene.do("start", {"worker": "A"})
    until(scene, lambda: scene.record.holder() is not None)
    with lockfast.connect(str(http.base_url)) as client:
        assert [holder.owner for holder in client.inspect("balance").holders] == ["A"]


def test_the_stream_tells_what_changes(http: httpx.Client, scene: Scene) -> None:
    with http.stream("GET", "/playground/stream") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        states = (json.loads(line[6:]) for line in response.iter_lines() if line[:6] == "data: ")
        assert {worker["stage"] for worker in next(states)["workers"]} == {"stopped"}
        scene.do("start", {"worker": "B"})
        assert any(state["workers"][1]["stage"] != "stopped" for state in states)


@pytest.mark.parametrize(
    "body", [None, [], {}, {"command": 7}, {"command": "fly"}, {"command": "pause", "worker": "Z"}]
)
def test_wrong_requests_change_nothing(http: httpx.Client, scene: Scene, body: object) -> None:
    response = http.post("/playground/commands", json=body)
    assert response.status_code == 422
    assert scene.is_idle


def test_other_sites_cannot_command_it(http: httpx.Client, scene: Scene) -> None:
    body = {"command": "start_all"}
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert http.post("/playground/commands", json=body, headers=headers).status_code == 403
    rebound = http.post("/playground/commands", json=body, headers={"host": "evil.example"})
    assert rebound.status_code == 421
    assert scene.is_idle


def test_the_command_serves_a_page_and_ends_on_ctrl_c() -> None:
    command = [sys.executable, "-m", "lockfast", "playground", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        try:
            assert it.stdout is not None
            said = it.stdout.readline()
            found = re.fullmatch(r"the playground is at (http://127\.0\.0\.1:\d+)/ .*\n", said)
            assert found is not None, said
            with httpx.Client(base_url=found[1], timeout=30) as http:
                assert "panel.css" in http.get("/playground/panel.js").text
                http.post("/playground/commands", json={"command": "start_all"})
            it.send_signal(signal.SIGINT)
            assert it.wait(30) == 0
            assert it.stderr is not None
            assert it.stderr.read() == ""
        finally:
            it.kill()


def test_it_is_for_loopback_only() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lockfast", "playground", "--listen", "0.0.0.0:0"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "reachable from other machines" in done.stderr
