"""Under gevent every keeper of the SQLite store failed, and each attempt leaked descriptors.

gevent removes `epoll` from `select`, and the listener looked it up there on every call.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import gevent.monkey
gevent.monkey.patch_all()
import os, sys
import gevent
import lockfast

def descriptors():
    return len(os.listdir("/proc/self/fd"))

one = lockfast.connect(f"sqlite://{sys.argv[1]}/locks.db", ttl=1)
other = lockfast.connect(f"sqlite://{sys.argv[1]}/locks.db", ttl=1)
for client in (one, other):
    client.lock("warm up").acquire().release()
open_before = descriptors()
served = []

def work(client):
    for _ in range(5):
        with client.lock("a") as lease:
            gevent.sleep(0)
            served.append(lease.token)

gevent.joinall([gevent.spawn(work, client) for client in (one, other) * 5], raise_error=True)
assert len(served) == 50
assert served == sorted(served)
with one.lock("kept") as kept:
    renewed = kept.deadline
    while kept.deadline == renewed:
        gevent.sleep(0.01)
assert descriptors() <= open_before, (descriptors(), open_before)
one.close()
other.close()
print("fine")
"""


def test_locks_are_taken_renewed_and_nothing_stays_open(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")
