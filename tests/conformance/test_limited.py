"""What a store does not declare is refused; everything else must still work.

The store belongs to another package and is found by its entry point, like any third party's.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from lockfast.conformance.contract import ApiContract, WireContract
from lockfast.conformance.harness import Harness
from lockfast.ports import Capabilities, Store
from lockfast.runtimes.platform import now_ms
from lockfast.runtimes.threads import ThreadsRuntime
from lockfast.stores.memory import MemoryStore, MemoryTable
from lockfast.stores.registry import Face, StoreUrl
from tests.conformance.stores import FACES, MovedClock

LEAST = Capabilities(modes=False, several=1, priority=False, watch=False, revoke=False)
CAN = {"limited": LEAST, "queueless": LEAST._replace(queue=False)}

_tables: dict[str, MemoryTable] = {}
_numbers = itertools.count()


class LimitedStore(MemoryStore):
    """A memory store that declares few capabilities and must behave accordingly."""

    def __init__(self, url: StoreUrl) -> None:
        table = _tables.setdefault(url.location, MemoryTable(now_ms))
        super().__init__(table, ThreadsRuntime(), url.label)
        self.capabilities = CAN[url.location.partition("-")[0]]


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    return LimitedStore(url)


@pytest.fixture
def announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store as an installed package would announce it."""
    about = tmp_path / "limited-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: limited\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[lockfast.stores]\nlimited = {__name__}:open_store\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestLimitedApi(ApiContract):
    @pytest.fixture
    def harness(self, face: str, announced: None) -> Harness:
        return Harness(f"limited://limited-{next(_numbers)}", face, CAN["limited"])


class TestLimitedWire(WireContract):
    @pytest.fixture(params=CAN)
    def harness(
        self, request: pytest.FixtureRequest, announced: None, monkeypatch: pytest.MonkeyPatch
    ) -> Harness:
        clock = MovedClock()
        monkeypatch.setattr(f"{__name__}.now_ms", clock.now_ms)
        url = f"limited://{request.param}-{next(_numbers)}"
        made = Harness(url, "threads", CAN[request.param])
        monkeypatch.setattr(made, "pass_ms", clock.pass_ms)
        return made
