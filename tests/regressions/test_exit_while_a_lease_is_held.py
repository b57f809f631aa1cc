"""Ending a program that holds a lease, or waits for one, leaves no trace.

Closing the clients at exit imported the module of events, even if nobody observes. That delays the
exit, and if Ctrl-C caused it, makes Python forget that: the exit code was 1 instead of a death by
SIGINT, by which a shell knows that it should end its loop, too. A thread whose wait
a close had ended logged that its claim enters the queue again.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import lockfast
from lockfast.errors import StoreUnavailableError
from tests.api.worlds import fresh_url

PATIENCE_S = 60.0

HOLDS = """
import os, signal, sys, time, lockfast
signal.signal(signal.SIGINT, signal.default_int_handler)
client = lockfast.connect("memory://")
lease = client.lock("orders/42").acquire()
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)
"""


def ended(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_ctrl_c_ends_a_holder_by_its_signal() -> None:
    done = ended(HOLDS)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


def test_a_wait_that_a_close_ends_is_not_logged_as_continued(
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = fresh_url()
    with lockfast.connect(url) as other, other.lock("orders/42"), ThreadPoolExecutor(1) as threads:
        client = lockfast.connect(url)
        waiting = threads.submit(client.lock("orders/42").acquire)
        pause = threading.Event()
        while not other.inspect("orders/42").waiting_count:
            pause.wait(0.01)
        client.close()
        assert isinstance(waiting.exception(PATIENCE_S), StoreUnavailableError)
    assert not [record for record in caplog.records if "re-entering" in record.getMessage()]
