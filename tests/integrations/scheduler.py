"""One of several hosts: an APScheduler whose job is due every second.

Arguments: journal, firings. Writes `fired` for each of its own firings, and `ran SECOND TOKEN` for
each firing that it ran.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from apscheduler.schedulers.background import BackgroundScheduler  # type: ignore[import-untyped]

import lockfast

journal, firings = Path(sys.argv[1]), int(sys.argv[2])
client = lockfast.connect(ttl=5)
enough = threading.Event()
fired = 0


@client.once("every-second", at_least=0.7, at_most=60)
def job() -> None:
    note("ran")


def fire() -> None:
    global fired
    note("fired")
    job()
    fired += 1
    if fired == firings:
        enough.set()


def note(word: str) -> None:
    with journal.open("a") as file:
        file.write(f"{word} {time.time()}\n")


scheduler = BackgroundScheduler(timezone="UTC")
scheduler.add_job(fire, "cron", second="*")
scheduler.start()
assert enough.wait(60)
scheduler.shutdown()
client.close()
