"""`lockfast doctor zookeeper://…` reports whether an ensemble is safe for locks."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

import lockfast
from lockfast.cli import main
from lockfast.stores.http.members import Member
from lockfast.stores.zookeeper import checkup, probe
from tests.servers.zookeeper import ZooKeeperEnsemble


def findings(
    capsys: pytest.CaptureFixture[str], url: str, *arguments: str, code: int = 0
) -> dict[str, Any]:
    assert main(["doctor", url, "--json", *arguments]) == code
    return {one["what"]: one for one in json.loads(capsys.readouterr().out)}


def test_a_fit_ensemble(trio: ZooKeeperEnsemble, capsys: pytest.CaptureFixture[str]) -> None:
    url = trio.url("examined")
    with lockfast.connect(url) as client, client.lock("a"):
        with lockfast.connect(url) as ended, ended.lock("a-reader"):
            pass
        found = findings(capsys, url)
    assert {one["verdict"] for one in found.values()} == {"good"}
    assert found["server"]["found"].startswith("ZooKeeper 3.")
    assert found["endpoints"]["found"].count("follower") == 2
    assert found["members"]["found"] == "3 voting"
    assert found["session timeouts"]["found"] == "0.4 to 6000 s"
    assert "1 session, 1 resource of ours" in found["nodes"]["found"]
    assert found["namespace"]["found"].endswith("/lockfast/examined: schema 3")


def test_it_leaves_nothing_behind(
    node: ZooKeeperEnsemble, capsys: pytest.CaptureFixture[str]
) -> None:
    (member,) = node.members
    before = member.counters()
    findings(capsys, node.url("unused"))
    after = member.counters()
    for counted in ("zk_znode_count", "zk_global_sessions", "zk_num_alive_connections"):
        # What earlier tests left is still being removed.
        assert after[counted] <= before[counted], counted


def test_one_server_is_noted(node: ZooKeeperEnsemble, capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys, node.url())
    assert found["members"]["verdict"] == "note"
    assert found["namespace"]["found"].endswith("not used yet")


def test_a_ttl_that_the_ensemble_does_not_allow(
    node: ZooKeeperEnsemble, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = findings(capsys, node.url(), "--ttl", "6000", code=2)
    assert "at most 4500 s" in found["session timeouts"]["advice"]
    monkeypatch.setenv("LOCKFAST_TTL", "0.2")
    found = findings(capsys, node.url())
    assert found["session timeouts"]["verdict"] == "note"
    with pytest.raises(lockfast.StoreMisconfiguredError, match="maxSessionTimeout"):
        with lockfast.connect(node.url(), ttl=6000) as client:
            client.lock("a").acquire(timeout=5)


def test_a_silent_and_a_lonely_member(capsys: pytest.CaptureFixture[str]) -> None:
    with ZooKeeperEnsemble(3, jvm=["-Dreadonlymode.enabled=true"]) as trio:
        url = trio.url()
        first, second = trio.followers()
        first.kill()
        found = findings(capsys, url)
        assert "silent" in found["endpoints"]["found"]
        assert found["endpoints"]["verdict"] == "note"
        # A read-only member serves readers, but no locks.
        trio.leader().kill()
        give_up_s = time.monotonic() + 60
        while second.mode() != "read-only" and time.monotonic() < give_up_s:
            time.sleep(0.05)
        assert second.mode() == "read-only"
        assert main(["doctor", url]) == 69
        assert "most members must run" in capsys.readouterr().err


def test_a_small_buffer_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    with ZooKeeperEnsemble(1, jvm=["-Djute.maxbuffer=65536"]) as small:
        found = findings(capsys, small.url())
        assert found["jute.maxbuffer"]["verdict"] == "note"


def test_missing_rights(node: ZooKeeperEnsemble, capsys: pytest.CaptureFixture[str]) -> None:
    client = KazooClient(node.hosts())
    client.start(timeout=30)
    try:
        client.create("/closed", b"", [make_acl("world", "anyone", read=True)])
        url = node.url("x").replace("?", "/closed?")
        assert findings(capsys, url, code=2)["rights"]["verdict"] == "bad"
        client.ensure_path("/opened", OPEN_ACL_UNSAFE)
        url = node.url("x").replace("?", "/opened?")
        assert findings(capsys, url)["rights"]["found"] == "may create nodes in /opened"
    finally:
        client.stop()
        client.close()


def test_a_namespace_with_other_data(
    node: ZooKeeperEnsemble, capsys: pytest.CaptureFixture[str]
) -> None:
    client = KazooClient(node.hosts())
    client.start(timeout=30)
    try:
        for namespace, data in (("newer", b"[1,1,1,99]"), ("foreign", b"\xff")):
            client.create(f"/lockfast/{namespace}/e", data, makepath=True)
            found = findings(capsys, node.url(namespace), code=2)
            assert found["namespace"]["verdict"] == "bad"
    finally:
        client.stop()
        client.close()


def test_a_raised_epoch_raises_the_next_token(
    node: ZooKeeperEnsemble, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a restore from a backup, when zxids start again."""
    url = node.url()
    assert main(["doctor", url, "--raise-epoch"]) == 0
    assert "not used yet" in capsys.readouterr().out
    with lockfast.connect(url, ttl=30) as client:
        before = client.lock("a").acquire()
        before.release()
        assert main(["doctor", url, "--raise-epoch"]) == 0
        assert "raised by" in capsys.readouterr().out
        after = client.lock("a").acquire()
        assert after.token > before.token + 1000, "by the time that has passed, and no less"
        after.release()


def test_versions_and_members_that_say_little() -> None:
    one = Member("a", 1)
    assert checkup._version({one: probe.Status("3.4.14", "leader", 5)}).verdict == "bad"
    assert checkup._version({one: probe.Status("4.0.0", "leader", 5)}).verdict == "good"
    for state in (None, probe.Status(), probe.Status("main", "leader", 5)):
        assert checkup._version({one: state}).verdict == "note"
    assert checkup._endpoints({one: probe.Status()}) == (
        "endpoints",
        "a:1 mode unknown",
        "good",
        "",
    )


def test_nobody_there() -> None:
    assert main(["doctor", "zookeeper://127.0.0.1:1"]) == 69
