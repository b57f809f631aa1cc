"""`once(wait=True)` did not work through a lock server, and its marks were shown.

A successful run is marked by a resource whose name no user can give. The server refused such names,
the run's claim was not released, and the next call raised StoreError. The marks were also shown by
`watch`, by `/v1/locks` and on the dashboard.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import lockfast
from lockfast import aio
from lockfast.core import commands as c
from lockfast.errors import StoreUnavailableError
from tests.servers.lockserver import ServerThread

WAIT_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(f"memory://{tmp_path}") as started:
        yield started


def run_once(client: lockfast.Client) -> list[lockfast.Outcome]:
    nightly = client.once("nightly", at_least=60, at_most=60, wait=True)
    return [nightly.run(lambda: None)[0] for _ in range(2)]


def test_a_job_runs_once(server: ServerThread) -> None:
    with lockfast.connect(server.url()) as client:
        assert run_once(client) == [lockfast.Outcome.RAN, lockfast.Outcome.DONE]
        assert not client.list(kind="once")[0].holders, "its claim is released"


def test_a_job_runs_once_under_asyncio(server: ServerThread) -> None:
    async def scenario() -> None:
        async with aio.connect(server.url()) as client:
            nightly = client.once("nightly", at_least=60, at_most=60, wait=True)

            async def job() -> None:
                pass

            assert (await nightly.run(job))[0] is lockfast.Outcome.RAN
            assert (await nightly.run(job))[0] is lockfast.Outcome.DONE

    asyncio.run(scenario())


def test_a_failed_mark_does_not_keep_the_claim() -> None:
    class DeafToMarks:
        def __init__(self, wire: object) -> None:
            self._wire = wire

        async def send(self, command: c.Command, timeout_ms: int) -> c.Reply:
            if isinstance(command, c.Enter) and "//" in command.places[0].name:
                raise StoreUnavailableError("the store", "cannot be reached")
            return await self._wire.send(command, timeout_ms)  # type: ignore[attr-defined, no-any-return]

        def close(self) -> None:
            self._wire.close()  # type: ignore[attr-defined]

    with lockfast.connect("memory://deaf-to-marks", connect_timeout=0.1) as client:
        client._core.wire = DeafToMarks(client._core.wire)
        client.once("nightly", at_least=60, at_most=60, wait=True)(lambda: None)()
        assert not client.list(kind="once")[0].holders


def test_marks_are_shown_nowhere(server: ServerThread) -> None:
    with lockfast.connect(server.url()) as client:
        watch = client.watch(kind=None, after=0)
        headers = {"Accept": "text/event-stream"}
        with httpx.stream("GET", f"{server.base}/dashboard/stream", headers=headers) as page:
            lines = page.iter_lines()
            assert any('"last":true' in line for line in lines), "the first picture"
            run_once(client)
            with client.lock("later"):
                events: list[lockfast.WatchEvent] = []
                while not events or events[-1].name != "later":
                    events.append(next(watch))
                assert {event.name for event in events} == {"nightly", "later"}
                listed = httpx.get(f"{server.base}/v1/locks?kind=once").json()["ListingReply"]
                assert [view["name"] for view in listed["resources"]] == ["nightly"]
                seen = ""
                while '"later"' not in seen:
                    seen += next(lines)
        with httpx.stream("GET", f"{server.base}/dashboard/stream", headers=headers) as page:
            for line in page.iter_lines():
                seen += line
                if '"last":true' in line:
                    break
        reader = server.server.dashboard.reader("")
        reader.history.clear()
        asyncio.run_coroutine_threadsafe(reader._read_everything(), server.loop).result(WAIT_S)
        seen += json.dumps(list(reader.picture.locks))
    assert '"nightly"' in seen
    assert "nightly//" not in seen


@pytest.mark.parametrize("name", ["a//b//c", "//done", "a//", "a//../b", "a//done\n"])
def test_no_other_strange_name_is_accepted(server: ServerThread, name: str) -> None:
    body = {
        "places": [{"kind": "once", "name": name, "mode": "exclusive"}],
        "open": {"ttl_ms": 60_000, "owner": "x"},
    }
    response = httpx.put(f"{server.base}/v1/sessions/s/claims/1", json=body)
    assert response.status_code == 422


def test_other_kinds_have_no_internal_names(server: ServerThread) -> None:
    body = {"lock": "a//done", "open": {"ttl_ms": 60_000, "owner": "x"}}
    assert httpx.put(f"{server.base}/v1/sessions/s/claims/1", json=body).status_code == 422
