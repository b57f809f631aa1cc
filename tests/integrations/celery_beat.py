"""A beat that records each task it sends, under the name of its process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery  # type: ignore[import-untyped]
from celery.signals import before_task_publish  # type: ignore[import-untyped]

app = Celery("lockfast_beat", broker=os.environ["TEST_BROKER"])
app.conf.task_default_queue = "nobody-reads-this"
app.conf.beat_schedule = {"tick": {"task": "tick", "schedule": 0.1}}
app.conf.beat_max_loop_interval = 0.1


@before_task_publish.connect  # type: ignore[untyped-decorator]
def note(**_: Any) -> None:
    with Path(os.environ["TEST_JOURNAL"]).open("a") as journal:
        journal.write(os.environ["TEST_BEAT"] + "\n")
