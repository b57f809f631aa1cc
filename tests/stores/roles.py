"""The roles of helper processes of these tests; see tests/processes/crew.py."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import sqlite3  # noqa: F401 — with few rights it may not be found later

import lockfast.stores.sqlite.store  # noqa: F401
from lockfast.core.commands import Enter
from lockfast.core.table import Table
from tests.processes.crew import Link

NOBODY = 65534


def use_as_nobody(link: Link) -> None:
    """Try to acquire a lock as a user with few rights, on each command."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    link.say("ready")
    while link.hear() == "try":
        try:
            with link.connect(connect_timeout=0.5) as client, client.lock("a") as lease:
                link.say("held", lease.token)
        except Exception as error:
            link.say(type(error).__name__, error)


def fill_disk(link: Link) -> None:
    """Acquire locks until files cannot grow; then let them grow, and report what is left."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with link.connect(ttl=30, connect_timeout=0.2) as client:
        leases = [client.lock("first").acquire()]
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
        error: Exception | None = None
        while error is None and len(leases) < 5000:
            try:
                leases.append(client.lock(f"lock number {len(leases)}").acquire())
            except Exception as caught:
                error = caught
        link.say(type(error).__name__, error)
        link.hear()
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        with client.lock("one more").acquire(timeout=30):
            pass
        for lease in leases:
            lease.check()
        held = {info.name for info in client.list()}
        assert held == {lease.name for lease in leases}, held
        for lease in leases:
            lease.release()
        link.say("fine", len(leases))


def stop_inside(link: Link) -> None:
    """Be stopped inside the gate, in the transaction of an enter."""
    carry_out = Table.apply

    def apply(self, command, now_ms, wall_us):  # type: ignore[no-untyped-def]
        done = carry_out(self, command, now_ms, wall_us)
        if isinstance(command, Enter):
            os.kill(os.getpid(), signal.SIGSTOP)
        return done

    with link.connect() as client:
        with client.lock("before"):
            pass
        Table.apply = apply  # type: ignore[method-assign]
        lease = client.lock("inside").acquire()
        link.say("held", lease.token)
        link.hear()


def try_gate(link: Link) -> None:
    """Report whether the gate is locked for others, on each request."""
    gate = os.open(link.url.removeprefix("sqlite://") + "-gate", os.O_RDWR)
    link.say("ready")
    while link.hear() == "try":
        try:
            fcntl.lockf(gate, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except BlockingIOError:
            link.say("shut")
        else:
            fcntl.lockf(gate, fcntl.LOCK_UN, 1)
            link.say("open")


def hold(link: Link) -> None:
    """Hold a lock until told to release it."""
    with link.connect(ttl=20) as client, client.lock("a") as lease:
        link.say("held", lease.token)
        link.hear()
    link.say("released")


def wait_for(link: Link) -> None:
    """Wait for a lock that another process has."""
    with link.connect() as client:
        link.say("ready")
        with client.lock("a") as lease:
            link.say("held", lease.token)
