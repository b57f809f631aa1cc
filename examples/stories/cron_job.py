"""A nightly job whose cron entry is on every host: one host runs it.

Run it twice: LOCKFAST_URL=redis://localhost python examples/stories/cron_job.py
"""

import os

import lockfast

client = lockfast.connect(ttl=10)


@client.once("nightly-report", at_least=300, at_most=3600)
def nightly() -> str:
    return f"built by {os.getpid()}"


with client:
    print(nightly() or "skipped: another host ran it")
