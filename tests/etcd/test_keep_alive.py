"""A keep-alive that succeeds proves every lease, and that its key exists."""

from __future__ import annotations

from base64 import b64encode

from lockfast.core import commands as c
from lockfast.core.checksum import checksum_of
from tests.etcd.harness import address_of
from tests.etcd.lines import Client
from tests.etcd.model import ModelServer


def renew(client: Client, *claims: tuple[int, int]) -> bool:
    command = c.Renew(client.session, len(claims), checksum_of(list(claims)), 1, ())
    reply = client.send(command)
    assert isinstance(reply, c.Renewed)
    return reply.matches


def test_a_key_that_somebody_deleted_is_missed() -> None:
    server = ModelServer()
    client = Client(server, "a")
    granted = client.enter(1)
    assert isinstance(granted, c.Granted)
    assert renew(client, (1, granted.token))
    root = address_of("etcd://model").root
    bounds = [b64encode(f"{root}{part}".encode()).decode() for part in ("n\x1f", "n ")]
    deleted = server.call("/v3/kv/deleterange", {"key": bounds[0], "range_end": bounds[1]})
    assert deleted["deleted"] == "1"
    assert not renew(client, (1, granted.token)), "the client lists its claims, and finds it lost"
    assert renew(client)
