"""`lockfast doctor` on a majority: each node is checked, and whether enough are usable."""

from __future__ import annotations

from time import monotonic

import pytest

import lockfast
from lockfast.cli import main
from lockfast.errors import StoreMisconfiguredError
from tests.quorum.nodes import FiveNodes
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer

PATIENCE_S = 60.0


def test_two_dead_nodes_are_named_and_three_are_enough(
    fragile: FiveNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    url = fragile.url()
    assert main(["doctor", url]) == 0
    assert "5 of 5 nodes are fit" in capsys.readouterr().out
    for server in fragile.servers[:2]:
        server.kill()
    assert main(["doctor", url]) == 0
    said = capsys.readouterr().out
    assert said.count("cannot be reached") == 2
    assert "3 of 5 nodes are fit, 3 are needed" in said
    fragile.servers[2].kill()
    assert main(["doctor", url]) == 2
    assert "2 of 5 nodes are fit, 3 are needed" in capsys.readouterr().out


def test_nodes_do_not_wait_for_replicas() -> None:
    with pytest.raises(StoreMisconfiguredError, match="wait="):
        lockfast.connect("quorum+redis://a,b,c?wait=1")


def test_two_names_of_one_server_are_refused() -> None:
    """Its two votes would fake a majority; three databases of one server are no such thing."""
    with RedisServer(port=free_port()) as server:
        places = [f"{host}:{server.port}" for host in ("127.0.0.1", "127.1")]
        url = f"quorum+redis://{','.join(places)},127.0.0.1:1"
        give_up_s = monotonic() + PATIENCE_S
        with (
            lockfast.connect(url) as client,
            pytest.raises(StoreMisconfiguredError, match="another name in the URL"),
        ):
            # The first may be answered under both names before the second is known.
            while monotonic() < give_up_s:
                client.inspect("a")
