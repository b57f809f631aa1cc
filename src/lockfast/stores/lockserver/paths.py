"""Where a server on this machine keeps its files, as its clients know it too."""

from __future__ import annotations

import os


def server_directory() -> str:
    """Where `lockfast serve` keeps tokens and its socket, unless it is told otherwise."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "lockfast", "server")


def default_token_file() -> str:
    """The token that the first `lockfast serve` of this user has written."""
    return os.path.join(server_directory(), "token")
