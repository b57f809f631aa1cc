"""The modelled cluster in virtual time: leases, leaders, lagging members, broken watches."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.sim.etcd.cluster import Cluster
from lockfast.sim.etcd.transport import SimEtcdNetwork, SimTransport
from lockfast.sim.network import Network
from lockfast.sim.runtime import MS, Host, Kernel
from tests.sim.etcd_requests import Json, text

TXN, GRANT = "/v3/kv/txn", "/v3/lease/grant"
KEY = text(b"k")


class Setting:
    """Three members and one client."""

    def __init__(self, seed: int = 1) -> None:
        self.kernel = Kernel(seed)
        self.network = Network(self.kernel)
        hosts = [Host(self.kernel, name) for name in ("m1", "m2", "m3")]
        self.cluster = Cluster(hosts, self.network)
        self.host = Host(self.kernel, "client")
        self.etcd = SimEtcdNetwork(self.host, self.cluster)
        self.transport: SimTransport = self.etcd.caller_transport()

    def run(self, story: Coroutine[Any, Any, Any]) -> Any:
        return self.kernel.run_until_done(self.host.start(story, "story"), 60_000 * MS)

    async def call(self, path: str, body: Json, timeout_ms: int, token: str = "") -> Json:
        return await self.transport.call(path, json.dumps(body), timeout_ms, token)

    async def put(self, lease: int = 0, key: bytes = b"k") -> Json:
        body = {"key": text(key), "lease": str(lease)}
        return await self.call("/v3/kv/put", body, 9_000)

    async def count(self, **how: Any) -> int:
        answer = await self.call("/v3/kv/range", {"key": KEY, **how}, 9_000)
        return int(answer.get("count", 0))

    async def until(self, done: Callable[[], Coroutine[Any, Any, bool]]) -> int:
        """Return when a condition became true, to ten milliseconds."""
        while not await done():
            await self.host.sleep(10)
        return self.host.now_ms()


def test_a_lease_ends_after_its_ttl_and_takes_its_keys_along() -> None:
    setting = Setting()

    async def gone() -> bool:
        return await setting.count() == 0

    async def story() -> None:
        granted = await setting.call(GRANT, {"ID": "7", "TTL": "2"}, 1000)
        assert granted["TTL"] == "2"
        await setting.put(7)
        assert await setting.count() == 1
        assert 2000 <= await setting.until(gone) <= 2700
        assert "error" in await setting.put(7)

    setting.run(story())


def test_a_keep_alive_lets_the_ttl_start_anew_and_waits_if_it_comes_too_late() -> None:
    setting = Setting()

    async def story() -> None:
        call, alive = setting.call, {"ID": "7"}
        await call(GRANT, {**alive, "TTL": "2"}, 1000)
        await setting.host.sleep(1500)
        assert (await call("/v3/lease/keepalive", alive, 1000))["result"]["TTL"] == "2"
        await setting.host.sleep(1900)
        assert 7 in setting.cluster.state.leases
        await setting.host.sleep(105)
        late = await call("/v3/lease/keepalive", alive, 9000)
        assert "TTL" not in late["result"]
        assert 7 not in setting.cluster.state.leases

    setting.run(story())


def test_a_new_leader_lets_every_ttl_start_anew() -> None:
    setting = Setting()

    async def gone() -> bool:
        return not setting.cluster.state.leases

    async def story() -> None:
        await setting.call(GRANT, {"ID": "7", "TTL": "2"}, 1000)
        await setting.host.sleep(1800)
        setting.cluster.depose()
        await setting.host.sleep(600)
        setting.cluster.elect()
        # Two seconds, the time of an election, and until the leader checks.
        assert 2400 + 3000 <= await setting.until(gone) <= 2400 + 3600

    setting.run(story())


def test_without_a_leader_nothing_is_written_and_its_outcome_may_stay_unknown() -> None:
    outcomes: set[str] = set()
    for seed in range(30):
        setting = Setting(seed)

        async def story(setting: Setting = setting) -> str:
            setting.cluster.depose()
            setting.kernel.after(500 * MS, setting.cluster.elect)
            try:
                answer = await setting.put()
            except OutcomeUnknownError:
                answer = {"error": "unknown"}
            done = await setting.count() == 1
            return f"{'failed' if 'error' in answer else 'answered'}, {'done' if done else 'not'}"

        outcomes.add(setting.run(story()))
    assert outcomes == {"answered, done", "failed, done", "failed, not"}


def test_a_member_that_lags_reads_the_past_only_if_it_may() -> None:
    setting = Setting()
    cluster = setting.cluster
    cluster.lag(dict.fromkeys(cluster.members, 200 * MS))

    async def story() -> None:
        while setting.etcd._members.current is cluster.leader:
            setting.transport.avoid_member()
        writer = SimEtcdNetwork(setting.host, cluster)
        while writer._members.current is not cluster.leader:
            writer.caller_transport().avoid_member()
        await writer.caller_transport().call("/v3/kv/put", json.dumps({"key": KEY}), 1000)
        assert await setting.count(serializable=True) == 0
        assert await setting.count() == 1
        await setting.host.sleep(300)
        assert await setting.count(serializable=True) == 1

    setting.run(story())


def test_a_watch_tells_the_past_and_what_follows_in_order() -> None:
    setting = Setting()

    async def story() -> None:
        for _ in range(3):
            await setting.put()
        watcher = setting.etcd.watcher()
        await watcher.open([{"key": KEY, "start_revision": "3"}], 1000)
        await setting.put()
        revisions: list[int] = []
        while len(revisions) < 3:
            for message in await watcher.next(1000):
                events = message["result"].get("events", [])
                revisions += [int(event["kv"]["mod_revision"]) for event in events]
        assert revisions == [3, 4, 5]

    setting.run(story())


def test_a_watch_ends_when_its_member_loses_the_leader() -> None:
    setting = Setting()

    async def story() -> None:
        watcher = setting.etcd.watcher()
        await watcher.open([{"key": KEY}], 1000)
        await watcher.next(1000)
        setting.cluster.depose()
        messages = await watcher.next(9000)
        assert messages[0]["error"]["message"] == "etcdserver: no leader"
        with pytest.raises(StoreUnavailableError):
            await watcher.next(1000)
        assert not watcher.is_open()

    setting.run(story())


def test_a_watch_on_a_member_that_dies_breaks_or_falls_silent() -> None:
    silent = 0
    for seed in range(20):
        setting = Setting(seed)

        async def story(setting: Setting = setting) -> bool:
            watcher = setting.etcd.watcher()
            await watcher.open([{"key": KEY}], 1000)
            await watcher.next(1000)
            setting.etcd._members.current.crash()
            try:
                return not await watcher.next(1000) and watcher.is_open()
            except StoreUnavailableError:
                return False

        silent += setting.run(story())
    assert 0 < silent < 20


def test_without_space_keys_can_only_be_deleted() -> None:
    setting = Setting()

    async def story() -> None:
        await setting.put()
        setting.cluster.state.no_space = True
        for path, body in (
            ("/v3/kv/put", {"key": KEY}),
            (GRANT, {"TTL": "5"}),
            (TXN, {"failure": [{"request_put": {"key": KEY}}]}),
        ):
            answer = await setting.call(path, body, 1000)
            assert "space exceeded" in answer["error"]
        await setting.call("/v3/kv/deleterange", {"key": KEY}, 1000)
        assert await setting.count() == 0

    setting.run(story())


def test_a_forgotten_token_has_to_be_asked_for_again() -> None:
    setting = Setting()
    setting.cluster.password = "secret"

    async def story() -> None:
        call = setting.call
        user = {"name": "root", "password": "secret"}
        assert "invalid auth token" in (await call("/v3/kv/put", {"key": KEY}, 1000))["error"]
        token = (await call("/v3/auth/authenticate", user, 1000))["token"]
        assert "error" not in await call("/v3/kv/put", {"key": KEY}, 1000, token)
        setting.cluster.forget_tokens()
        assert "error" in await call("/v3/kv/put", {"key": KEY}, 1000, token)
        wrong = await call("/v3/auth/authenticate", {**user, "password": "x"}, 1000)
        assert "authentication failed" in wrong["error"]

    setting.run(story())


@pytest.mark.parametrize("down", [1, 2])
def test_a_call_goes_to_a_member_that_is_there(down: int) -> None:
    setting = Setting()
    for member in setting.cluster.members[1 : 1 + down]:
        member.crash()

    async def story() -> None:
        assert "error" not in await setting.put()

    setting.run(story())
