"""`lockfast doctor URL` reports whether a server is safe for locks."""

from __future__ import annotations

import json

import pytest

import lockfast
from lockfast.cli import main
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer


def test_a_fit_server(server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    url = server.url("examined")
    with lockfast.connect(url) as client, client.lock("a"):
        with lockfast.connect(url) as ended, ended.lock("b"):
            pass
        assert main(["doctor", url]) == 0
    said = capsys.readouterr().out
    for looked_at in ("round trip", "clock", "persistence", "maxmemory-policy", "replicas"):
        assert looked_at in said
    assert "default has all that are needed" in said
    assert "examined: schema 1, in use, 1 session\n" in said
    assert "BAD" not in said


def test_looking_changes_nothing(server: RedisServer) -> None:
    before = server.resources()
    assert main(["doctor", server.url("untouched")]) == 0
    assert server.resources() == before


def test_an_evicting_policy_is_refused_unless_allowed(
    server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with RedisServer(server.binary, "--maxmemory-policy", "allkeys-lfu") as own:
        assert main(["doctor", own.url()]) == 2
        assert "set noeviction" in capsys.readouterr().err
        assert main(["doctor", own.url(eviction="allow")]) == 0


def test_a_replica_and_missing_rights_are_seen(
    server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    with RedisServer(server.binary, port=port) as primary, RedisServer(server.binary) as replica:
        replica.run("REPLICAOF", "127.0.0.1", port)
        assert main(["doctor", replica.url()]) == 2
        assert "replica" in capsys.readouterr().out
        primary.run("ACL", "SETUSER", "poor", "on", ">pw", "~*", "&*", "+@all", "-publish")
        assert main(["doctor", f"unix://poor:pw@{primary.socket}"]) == 2
        assert "poor may not use EVAL" in capsys.readouterr().out


def test_for_programs(server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", server.url(), "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert {"what", "found", "verdict", "advice"} == set(findings[0])


def test_nobody_there() -> None:
    assert main(["doctor", f"redis://127.0.0.1:{free_port()}"]) == 69
