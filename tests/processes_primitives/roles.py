"""The roles of the processes of these tests."""

from __future__ import annotations

import time

import lockfast
from lockfast.core.commands import WAKE_WANTED
from lockfast.stores.sqlite import wake_listener
from tests.processes.crew import Link, now_ms


def hold_then(link: Link, first: str, second: str, deadlock_after: float) -> None:
    """Acquire one lock, report it, and on command acquire the other too. `kind:name` names them."""
    with link.connect(deadlock_after=deadlock_after) as client:
        with recipe(client, first):
            link.say("holds", first)
            link.hear()
            began = time.monotonic()
            try:
                with recipe(client, second):
                    link.say("done", time.monotonic() - began)
            except lockfast.DeadlockError as error:
                link.say("victim", time.monotonic() - began, len(error.cycle))
        link.hear()


def recipe(client: lockfast.Client, text: str) -> lockfast.Lock | lockfast.Semaphore:
    kind, _, name = text.partition(":")
    if kind == "read":
        return client.rwlock(name).read()
    if kind == "write":
        return client.rwlock(name).write()
    if kind == "semaphore":
        return client.semaphore(name, 1)
    return client.lock(name)


def cross(link: Link, names: list[str], rounds: int, priority: int) -> None:
    """Acquire all of these at once, repeatedly."""
    with link.connect(deadlock_after=0.2) as client:
        link.say("ready")
        link.hear()
        failed = 0
        for _ in range(rounds):
            try:
                with client.all(*names, priority=priority):
                    pass
            except lockfast.DeadlockError:
                failed += 1
        link.say("done", rounds, failed)
        link.hear()


def campaign(link: Link, name: str, value: str) -> None:
    with link.connect(ttl=30.0) as client:
        link.say("standing")
        with client.election(name).campaign(value) as term:
            link.say("leads", term.epoch)
            link.hear()


def join(link: Link, name: str, value: str, ttl: float) -> None:
    with link.connect(ttl=ttl) as client, client.party(name).join(value):
        link.say("joined")
        link.hear()


def hold_permits(link: Link, name: str, limit: int, permits: int) -> None:
    with link.connect(ttl=30.0) as client:
        with client.semaphore(name, limit).acquire(permits=permits):
            link.say("held")
            link.hear()


def keep(link: Link, name: str, mode: str = "lock", ttl: float = 30.0, deaf: bool = False) -> None:
    """Retain a lock; use it again on command."""
    if deaf:
        wake_listener._KNOWN -= {WAKE_WANTED}
    with link.connect(ttl=ttl) as client:
        lock = (
            client.lock(name, retain=True)
            if mode == "lock"
            else client.rwlock(name, retain=True).read()
        )
        while True:
            with lock as lease:
                link.say("used", lease.token)
                if link.hear() == "end":
                    break
            link.say("released", now_ms())
            if link.hear() == "end":
                break


def take(link: Link, name: str, mode: str = "lock") -> None:
    """Acquire a lock on each command."""
    with link.connect(ttl=30.0) as client:
        lock = client.lock(name) if mode == "lock" else client.rwlock(name).write()
        link.say("ready")
        while link.hear() != "end":
            with lock as lease:
                link.say("got", lease.token, now_ms())


def run_once(link: Link, name: str, at_least: float, path: str) -> None:
    """Try to run a job continuously. A run records itself, then asks what to do."""
    with link.connect(ttl=30.0) as client:
        # No claim queues for a run, so a killed one ends when its TTL expires.
        @client.once(name, at_least=at_least, at_most=60, ttl=1.0)
        def job() -> bool:
            with open(path, "a") as book:
                book.write("ran\n")
            link.say("running")
            link.hear()  # "go on", or killed here
            return True

        while True:
            job()
            time.sleep(0.002)
