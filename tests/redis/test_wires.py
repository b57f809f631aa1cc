"""The wires alone: what they send."""

from __future__ import annotations

from time import monotonic

import pytest

from lockfast.errors import StoreUnavailableError
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.connection import Connection
from lockfast.stores.redis.resp import pack, pack_four
from tests.servers.redis import RedisServer

PATIENCE_S = 30.0


@pytest.mark.parametrize("name", ["orders/42", "", "größer als ß", "鍵", "a\r\n$1\r\nb"])
def test_four_arguments_are_packed_as_any_number_is(name: str) -> None:
    arguments = ("s\x1fsession", "17", f"r\x1flock\x1f{name}", "c\x1fsession\x1f17")
    assert b"*4\r\n" + pack_four(*arguments) == pack(*arguments)


def test_a_request_without_time_is_not_sent_and_says_so(server: RedisServer) -> None:
    path = str(server.socket)
    connection = Connection(Address(path, path=path), monotonic() + PATIENCE_S)
    with pytest.raises(StoreUnavailableError, match="could not be sent in time"):
        connection.exchange(pack("SET", "unsent", "1"), monotonic() - 1)
    assert connection.exchange(pack("EXISTS", "unsent"), monotonic() + PATIENCE_S) == 0
    connection.close()
