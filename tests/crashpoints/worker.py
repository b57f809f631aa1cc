"""A process that runs the second client of the story, to be killed in the middle of it."""

from __future__ import annotations

import sys

import lockfast
from tests.crashpoints.story import TTL_KILLED_S, wait_renew_release

if __name__ == "__main__":
    with lockfast.connect(sys.argv[1], ttl=TTL_KILLED_S) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        wait_renew_release(client)
