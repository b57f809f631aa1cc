"""What concerns all holders of a lock concerns those behind the first hundred, too.

A reply to `Inspect` shows a hundred holders, and the server's `/v1/revocations` read sixteen.
`revoke()` left the others their lease, and `locked()` did not see them. `members()` asked for all
at once, which a lock server refuses, so parties could not be read through one at all.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockfast
from tests.servers.lockserver import ServerThread

MANY = 130


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(f"memory://{tmp_path}") as started:
        yield started


def test_a_lock_is_revoked_from_all_its_holders() -> None:
    with lockfast.connect("memory://many-permits") as client:
        semaphore = client.semaphore("api", limit=MANY)
        permits = [semaphore.acquire() for _ in range(MANY)]
        assert client.revoke("api", kind="semaphore", reason="deploy") == MANY
        assert client.inspect("api", kind="semaphore").holder_count == 0
        assert all(permit.lost.wait(30) for permit in permits)


def test_every_holder_counts_as_one_in_the_way() -> None:
    with lockfast.connect("memory://many-readers") as client:
        leases = [client.tree(f"warehouse/{at}").read().acquire() for at in range(MANY)]
        assert not client.tree("warehouse").read().locked()
        with client.tree("warehouse/last").write():
            assert client.tree("warehouse").read().locked()
        for lease in leases:
            lease.release()


def test_a_party_is_read_through_a_lock_server(server: ServerThread) -> None:
    with lockfast.connect(server.url()) as client:
        party = client.party("fleet")
        values = [f"node-{at}" for at in range(MANY)]
        memberships = [party.join(value) for value in values]
        assert [member.value for member in party.members()] == values
        for membership in memberships:
            membership.leave()


def test_the_server_revokes_a_lock_from_all_its_holders(server: ServerThread) -> None:
    with lockfast.connect(server.url()) as client:
        permits = [client.semaphore("api", limit=MANY).acquire() for _ in range(MANY)]
        body = {"name": "api", "kind": "semaphore", "reason": "deploy"}
        request = urllib.request.Request(
            f"{server.url()}/v1/revocations",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer) == {"revoked": MANY}
        assert all(permit.lost.wait(30) for permit in permits)
