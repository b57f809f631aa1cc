"""Reports built by Celery workers: one at a time per day, also if a worker process is killed.

Start a worker:   LOCKFAST_URL=redis://localhost celery -A examples.stories.celery_reports worker
Order a report:   LOCKFAST_URL=redis://localhost python -m examples.stories.celery_reports monday
"""

import os
import sys
import time
from typing import Any

from celery import Celery

from lockfast.integrations.celery import LockedTask

url = os.environ.get("LOCKFAST_URL", "redis://localhost")
app = Celery("reports", broker=url, backend=url)
app.conf.update(
    lockfast_url=url,
    lockfast_ttl=3,
    # A task whose process was killed is delivered again, and waits until its old lock has expired.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
)


@app.task(name="build", bind=True, base=LockedTask, lock="report:{day}", busy_countdown=0.5)
def build(self: Any, day: str) -> int:
    lease = self.request.lease
    print(f"{day}: process {os.getpid()} builds with token {lease.token}", flush=True)
    for _ in range(10):  # ten steps; a worker that was suspended stops before the next
        lease.check()
        time.sleep(0.1)
    print(f"{day}: built with token {lease.token}", flush=True)
    token: int = lease.token
    return token


if __name__ == "__main__":
    print("token", build.delay(sys.argv[1]).get(timeout=60))
