"""A client of a server passes the contract of every store, by command and through the API."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from lockfast.conformance.contract import ApiContract, WireContract
from lockfast.conformance.harness import Harness
from lockfast.ports import WAKE_MISSED
from lockfast.stores import memory
from lockfast.stores.lockserver.store import ServerStore
from tests.conformance.stores import LOG_KEPT, MovedClock, shorten_logs
from tests.servers.lockserver import ServerProcess, ServerThread

_numbers = itertools.count()
FACES = ("threads", "asyncio", "uvloop")

SHORT_LOG = f"""
import sys
from lockfast.core import memory_rows
memory_rows.LOG_KEPT = {LOG_KEPT}
from lockfast.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""The program, with a log that is full after a few hundred entries."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread("memory://served") as started:
        yield started


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("server")
    program = ("-c", SHORT_LOG)
    with ServerProcess("memory://", directory, "--insecure-dev", program=program) as started:
        yield started


class TestWire(WireContract):
    """The server is in this process and no client has its own clock: the store's can be moved."""

    @pytest.fixture(params=FACES)
    def harness(
        self, request: pytest.FixtureRequest, server: ServerThread, monkeypatch: pytest.MonkeyPatch
    ) -> Harness:
        shorten_logs(monkeypatch)
        url = server.url(namespace=f"n{next(_numbers)}")
        made = Harness(
            url, request.param, ServerStore.capabilities, log_kept=LOG_KEPT, first_wake=WAKE_MISSED
        )
        made.keeps_process = False
        clock = MovedClock()
        monkeypatch.setattr(memory, "now_ms", clock.now_ms)
        monkeypatch.setattr(made, "pass_ms", clock.pass_ms)
        return made


class TestApi(ApiContract):
    @pytest.fixture(params=FACES)
    def harness(self, request: pytest.FixtureRequest, process: ServerProcess) -> Harness:
        url = f"{process.url}?namespace=n{next(_numbers)}"
        return Harness(url, request.param, ServerStore.capabilities, log_kept=LOG_KEPT)
