"""Celery tasks that hold a lock while they run."""

from __future__ import annotations

import random
import threading
import weakref
from typing import Any, Literal

from celery import Celery, Task  # type: ignore[import-untyped]
from celery.exceptions import Retry  # type: ignore[import-untyped]

import lockfast
from lockfast.api.template import namer
from lockfast.errors import AcquireTimeoutError

_clients: weakref.WeakKeyDictionary[Celery, lockfast.Client] = weakref.WeakKeyDictionary()
_mutex = threading.Lock()


def client_of(app: Celery) -> lockfast.Client:
    """Return the client of an application, from `app.conf.lockfast_url` and `lockfast_ttl`.

    Without them it uses LOCKFAST_URL and LOCKFAST_TTL. Each prefork worker has its own
    sessions, so a killed worker loses only its own locks.
    """
    with _mutex:
        client = _clients.get(app)
        if client is None:
            conf = app.conf
            client = lockfast.connect(conf.get("lockfast_url"), ttl=conf.get("lockfast_ttl"))
            _clients[app] = client
        return client


class LockedTask(Task):  # type: ignore[misc]
    """The base of tasks that never run twice at a time.

    `@app.task(base=LockedTask, lock="report:{day}")`: fields in braces are arguments of the
    task. A task declared with `bind=True` finds its lease in `self.request.lease`.

    If another run holds the lock, the task waits up to `lock_timeout` seconds, which occupies
    a worker, and then does what `busy` says: "retry" sends it again after about
    `busy_countdown` seconds, as often as needed; "skip" succeeds with None; "fail" raises
    AcquireTimeoutError. A task called directly, without a worker, never retries: it raises.
    """

    abstract = True
    lock: str = ""
    lock_timeout: float = 0
    busy: Literal["retry", "skip", "fail"] = "retry"
    busy_countdown: float = 5.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.lock:
            raise TypeError(f"task {self.name} has no lock: declare it with lock='…'")
        if self.busy not in ("retry", "skip", "fail"):
            raise ValueError(f"busy={self.busy!r}: use 'retry', 'skip' or 'fail'")
        name = namer(self.lock, self.run)(*args, **kwargs)
        try:
            lease = client_of(self.app).lock(name).acquire(timeout=self.lock_timeout)
        except AcquireTimeoutError as error:
            if self.busy == "skip":
                return None
            if self.busy == "fail" or self.request.called_directly:
                raise
            raise self._sent_again(args, kwargs, error) from None
        with lease:
            self.request.lease = lease
            # Not super().__call__: it would hide the request from a bound task.
            return self.run(*args, **kwargs)

    def _sent_again(self, args: Any, kwargs: Any, busy: AcquireTimeoutError) -> Retry:
        """Send this task again with a delay. It does not count as one of the task's retries."""
        # Randomize the delay, so that tasks refused together do not retry together.
        countdown = self.busy_countdown * random.uniform(0.5, 1.5)
        retries = self.request.retries
        self.signature_from_request(
            None, args, kwargs, countdown=countdown, retries=retries
        ).apply_async()
        return Retry(str(busy), None, countdown)
