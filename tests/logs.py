"""The log of a store, for tests that read of what happened before they looked."""

from __future__ import annotations

import lockfast
from lockfast.core.commands import Events, EventsReply
from lockfast.runtimes.threads import run


def begin_log(client: lockfast.Client) -> int:
    """Have the log written from here on; return the position to read it from."""
    return run(client._core.ask(Events(None), EventsReply)).end
