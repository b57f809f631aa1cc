"""Where a server on this machine keeps its files; shared by server and clients."""

from __future__ import annotations

import os


def server_directory() -> str:
    """Return the default directory of `lockfast serve` for tokens and its socket."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "lockfast", "server")


def default_token_file() -> str:
    """Return the path of the token that this user's first `lockfast serve` has written."""
    return os.path.join(server_directory(), "token")
