"""`lockfast doctor etcd://…` reports whether a cluster is safe for locks."""

from __future__ import annotations

import json

import pytest

import lockfast
from lockfast.cli import main
from lockfast.core.commands import Enter, Open, Place
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.address import parse
from lockfast.stores.registry import parse_url
from tests.servers.etcd import EtcdCluster


def test_a_fit_cluster(trio: EtcdCluster, capsys: pytest.CaptureFixture[str]) -> None:
    url = trio.url("examined")
    with lockfast.connect(url) as client, client.lock("a"):
        with lockfast.connect(url) as ended, ended.lock("b"):
            pass
        assert main(["doctor", url]) == 0
    said = capsys.readouterr().out
    for looked_at in ("server", "leader", "revision", "database", "alarms", "round trip"):
        assert looked_at in said
    assert "3: m" in said, "all members are named"
    assert "examined/: schema 3, 1 session" in said
    assert "BAD" not in said


def test_one_node_is_noted(node: EtcdCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", node.url(), "--json"]) == 0
    findings = {one["what"]: one for one in json.loads(capsys.readouterr().out)}
    assert findings["members"]["verdict"] == "note"


def test_a_raised_epoch_raises_the_next_token(node: EtcdCluster) -> None:
    """As after a restore from a backup, when revisions start again."""
    url = node.url()
    with lockfast.connect(url, ttl=60) as client:
        before = client.lock("a").acquire()
        before.release()
        assert main(["doctor", url, "--raise-epoch"]) == 0
        after = client.lock("a").acquire()
        assert after.token > before.token + 1000, "by the time that has passed, and no less"
        after.release()


def test_only_etcd_has_an_epoch() -> None:
    assert main(["doctor", "memory://", "--raise-epoch"]) != 0


def test_a_full_database_is_refused_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The alarm NOSPACE: no lock can be acquired, and the error says what to do."""
    with EtcdCluster(1, "--quota-backend-bytes=100000") as full:
        url = full.url("full")
        store = EtcdStore(parse(parse_url(url)))
        wire = store.caller_wire()
        opening = Open("s", 60_000, "owner")
        with pytest.raises(lockfast.StoreUnavailableError, match="alarm disarm"):
            for n in range(1, 500):
                place = Place("lock", f"orders/{n}", "exclusive")
                run(wire.send(Enter("s", n, (place,), open=opening), 5000))
        store.close()
        with lockfast.connect(url) as client:
            # The last attempt may have had too little time for a reply.
            either = (lockfast.StoreUnavailableError, lockfast.OutcomeUnknownError)
            with pytest.raises(either, match=r"NOSPACE.*alarm disarm"):
                client.lock("orders/0").acquire(timeout=5)
        assert main(["doctor", url]) == 2
        assert "NOSPACE" in capsys.readouterr().out


def test_nobody_there() -> None:
    assert main(["doctor", "etcd://127.0.0.1:1"]) == 69
