"""A command that needs what the store lacks is refused before it is sent."""

from __future__ import annotations

import pytest

from lockfast.core import commands as c
from lockfast.errors import UnsupportedError
from lockfast.flow.capabilities import checked_wire, require_supported
from lockfast.ports import Capabilities
from lockfast.runtimes.threads import run
from tests.flow.worlds import Clock, ScriptedWire

PLAIN = c.Enter("s", 1, (c.Place("lock", "a", "exclusive"),), "x", False)
EVERYTHING = Capabilities(contend=True)
SHARED = (c.Place("lock", "a", "shared"),)
PARTY = (c.Place("party", "a", "exclusive"),)


@pytest.mark.parametrize(
    ("lacking", "command"),
    [
        ({"queue": False}, PLAIN._replace(queue=True)),
        ({"priority": False}, PLAIN._replace(priority=5)),
        ({"several": 1}, PLAIN._replace(places=PLAIN.places * 2)),
        ({"retain": False}, PLAIN._replace(block=2)),
        ({"modes": False}, PLAIN._replace(places=SHARED)),
        ({"modes": False}, PLAIN._replace(places=PARTY)),
        ({"modes": False}, c.Convert("s", 1, 1, "shared")),
        ({"watch": False}, c.Watch("s", True)),
        ({"watch": False}, c.Events(None)),
        ({"revoke": False}, c.RevokeSession("s", "why", "me")),
        ({"contend": False}, c.Contend(PLAIN, 0)),
        ({"priority": False}, c.Contend(PLAIN._replace(priority=5), 0)),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else type(value).__name__,
)
def test_what_a_store_lacks_is_refused(lacking: dict[str, bool], command: c.Command) -> None:
    with pytest.raises(UnsupportedError):
        require_supported(EVERYTHING._replace(**lacking), command)
    require_supported(EVERYTHING, command)


@pytest.mark.parametrize("kind", ["lock", "election", "once"])
def test_a_store_with_the_least_grants_an_exclusive_claim(kind: str) -> None:
    least = Capabilities(
        queue=False, priority=False, several=1, retain=False, modes=False, watch=False, revoke=False
    )
    require_supported(least, PLAIN._replace(places=(c.Place(kind, "a", "exclusive"),)))
    require_supported(least, c.Renew("s"))


def test_nothing_is_sent_to_a_store_that_lacks_it() -> None:
    wire = ScriptedWire(Clock())
    checked = checked_wire(wire, EVERYTHING._replace(watch=False))
    with pytest.raises(UnsupportedError):
        run(checked.send(c.Events(None), 100))
    assert wire.sent == []
    assert run(checked.send(c.Renew("s"), 100)) == c.Renewed(True)
    checked.close()
    assert wire.closed


def test_a_store_that_lacks_nothing_is_not_checked() -> None:
    wire = ScriptedWire(Clock())
    assert checked_wire(wire, Capabilities(death_watch=True, contend=True)) is wire
