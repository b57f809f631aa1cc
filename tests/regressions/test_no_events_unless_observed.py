"""Without an observer, the module of events is not imported, whatever happens to a lease.

Its classes are made by evaluating text. If Ctrl-C came during that import, CPython remembered an
unhandled KeyboardInterrupt: a program that had handled it died by SIGINT at its regular end. The
first release, and the first failure of a request, imported it.
"""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, lockfast
from lockfast.errors import StoreUnavailableError
with lockfast.connect("memory://") as client:
    with client.lock("a"):
        pass
    lease = client.lock("b").acquire()
    lease.release()
    outage = client._core.emitter.outage
    outage.failed(StoreUnavailableError("memory://", "is away", "wait"), raised=True)
    outage.ended()
    client.lock("c").acquire()
print([name for name in ("lockfast.events", "lockfast.flow.observed") if name in sys.modules])
"""


def test_no_event_is_made_for_nobody() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n", done.stderr
