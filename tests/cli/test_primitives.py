"""ls --tree and deadlocks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest

import lockfast
from tests.cli.processes import Cli, until


@pytest.fixture
def client(cli: Cli) -> Iterator[lockfast.Client]:
    with lockfast.connect(cli.url, owner="alice", deadlock_after=3600) as client:
        yield client


def test_ls_tree_shows_each_node_below_the_one_it_is_in(cli: Cli, client: lockfast.Client) -> None:
    with (
        client.tree("shop/eu/bin-7").write(),
        client.tree("shop/us").read(),
        client.tree("shop-2").read(),
        client.lock("shop"),
    ):
        lines = cli.run("ls", "--tree").stdout.splitlines()
        below = cli.run("ls", "--tree", "shop/eu").stdout.splitlines()
        listed = json.loads(cli.run("ls", "--tree", "--json").stdout)
    assert [line.split("  alice")[0].rstrip() for line in lines[1:]] == [
        "shop       intent_exclusive, intent_shared",
        "  eu       intent_exclusive",
        "    bin-7  exclusive",
        "  us       shared",
        "shop-2     shared",
    ]
    assert below[1].startswith("shop/eu ")
    assert {each["kind"] for each in listed} == {"tree"}


def test_deadlocks_are_shown_and_the_exit_code_says_so(cli: Cli, client: lockfast.Client) -> None:
    done = cli.run("deadlocks")
    assert (done.returncode, done.stdout) == (0, "there are no deadlocks\n")
    assert cli.run("deadlocks", "--json").stdout == "[]\n"
    both_hold = threading.Barrier(2)

    def cross(first: str, second: str) -> None:
        with pytest.raises(lockfast.LockfastError):  # the client is closed at the end
            with client.lock(first):
                both_hold.wait(30)
                client.lock(second).acquire()

    threads = [threading.Thread(target=cross, args=names) for names in ("ab", "ba")]
    for thread in threads:
        thread.start()
    until(lambda: all(client.inspect(name).waiting_count for name in "ab"), "both wait")
    done = cli.run("deadlocks")
    assert done.returncode == 1
    for word in ("deadlock 1, 2 actors", "lock 'a'", "lock 'b'", "alice", "the victim will be"):
        assert word in done.stdout
    (found,) = json.loads(cli.run("deadlocks", "--json").stdout)
    assert len(found["actors"]) == 2
    client.close()
    for thread in threads:
        thread.join(30)
