"""The log of a store, for tests that read past events."""

from __future__ import annotations

import lockfast
from lockfast.core.commands import Events, EventsReply
from lockfast.runtimes.threads import run


def begin_log(client: lockfast.Client) -> int:
    """Make the store write its log from now on; return the position to read from."""
    return run(client._core.ask(Events(None), EventsReply)).end
