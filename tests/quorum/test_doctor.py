"""`lockfast doctor` on a majority: each node is checked, and whether enough are usable."""

from __future__ import annotations

import pytest

import lockfast
from lockfast.cli import main
from lockfast.errors import StoreMisconfiguredError
from tests.quorum.nodes import FiveNodes


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
