"""The roles of the processes of these tests."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import lockfast
import lockfast.aio
from lockfast.core.commands import Claims, ClaimsReply, Place
from lockfast.flow import acquire as flow
from lockfast.flow.holding import Ask
from lockfast.guards import SqliteGuard
from lockfast.runtimes.threads import run
from tests.processes.crew import Link, now_ms, until

# ── holding ──────────────────────────────────────────────────────────────────────────


def hold(link: Link, name: str, ttl: float = 30.0, priority: int = 0) -> None:
    """Acquire the lock, report when, and release it on command."""
    with link.connect(ttl=ttl) as client:
        with client.lock(name, priority=priority) as lease:
            link.say("held", lease.token, now_ms())
            link.hear()
        link.say("released")
        link.hear()


def hold_and_fork(link: Link, name: str, how: str) -> None:
    """Acquire the lock, then start a child that outlives this process."""
    with link.connect(ttl=30.0) as client, client.lock(name) as lease:
        if how == "os.fork":
            if os.fork() == 0:
                signal.pause()
        elif how == "multiprocessing":
            multiprocessing.get_context("fork").Process(target=signal.pause).start()
        else:
            subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        link.say("held", lease.token, now_ms())
        link.hear()


def give_up(link: Link, name: str) -> None:
    """Wait in the queue for a second, and leave it."""
    with link.connect(ttl=30.0) as client:
        try:
            client.lock(name).acquire(timeout=1.0)
        except lockfast.AcquireTimeoutError:
            link.say("gave-up")
        link.hear()


def read(link: Link, name: str, sessions: int = 1) -> None:
    """Hold a lock together with others, in several sessions if needed."""
    clients = [link.connect(ttl=30.0) for _ in range(sessions)]
    for client in clients:
        core = client._core
        holding = core.holding(Ask((Place("lock", name, "shared"),), core.ttl_ms))
        run(flow.acquire(core, holding, None))
    link.say("reading")
    link.hear()


# ── waking up too late ───────────────────────────────────────────────────────────────


@contextmanager
def transaction(path: str) -> Iterator[sqlite3.Connection]:
    """Run a transaction of a database that has a guard."""
    with closing(sqlite3.connect(path, timeout=30.0, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        database.execute("CREATE TABLE IF NOT EXISTS writes (token INTEGER)")
        yield database
        database.execute("COMMIT")


def write(path: str, name: str, token: int) -> str:
    """Write under a token, if the guard admits it."""
    with transaction(path) as database:
        try:
            SqliteGuard(database).admit(name, token)
        except lockfast.StaleTokenError:
            return "refused"
        database.execute("INSERT INTO writes VALUES (?)", (token,))
    return "wrote"


def spin(link: Link, name: str, ttl: float, path: str) -> None:
    """Hold the lock and check the lease continuously; report the first check after a pause."""
    client = link.connect(ttl=ttl)
    lease = client.lock(name).acquire()
    link.say("held", lease.token, now_ms())
    before_ms = now_ms()
    while True:
        at_ms = now_ms()
        lost = lease.lost.is_set()
        if at_ms - before_ms > ttl * 1000:
            break
        before_ms = at_ms
    link.say("woke", "lost" if lost else "unaware", lease.deadline * 1000)
    try:
        lease.check()
        link.say("check passed")
    except lockfast.LeaseLostError:
        link.say("check raised")
    link.say(write(path, name, lease.token))
    try:
        lease.release()
        link.say("release passed")
    except lockfast.LeaseLostError:
        link.say("release raised")
    client.close()


def write_under_lock(link: Link, name: str, path: str) -> None:
    with link.connect(ttl=30.0) as client, client.lock(name) as lease:
        link.say("held", lease.token, now_ms())
        link.say(write(path, name, lease.token))
        link.hear()


def sleep_in_task(link: Link, name: str, ttl: float) -> None:
    """Hold the lock in a task that only sleeps."""

    async def body() -> None:
        async with lockfast.aio.connect(link.url, ttl=ttl) as client:
            try:
                async with client.lock(name) as lease:
                    link.say("held", lease.token, now_ms())
                    try:
                        await asyncio.sleep(3600)
                    except asyncio.CancelledError:
                        link.say("cancelled", lease.state)
                        raise
            except lockfast.LeaseLostError as error:
                task = asyncio.current_task()
                assert task is not None
                link.say("lost", error.token, "cancelling", task.cancelling())
            await asyncio.sleep(0)  # a leftover cancellation would be raised here
            link.say("went on")

    asyncio.run(body())


# ── many at once ─────────────────────────────────────────────────────────────────────


def count_up(link: Link, name: str, times: int, directory: str) -> None:
    """Increment a number in a file, and append the token to a list, repeatedly."""
    counter, entries = f"{directory}/counter", f"{directory}/entries"
    with link.connect(ttl=30.0) as client:
        link.say("ready")
        link.hear()
        for _ in range(times):
            with client.lock(name) as lease:
                with open(counter) as file:
                    value = int(file.read())
                with open(entries, "a") as file:
                    file.write(f"{lease.token}\n")
                with open(counter, "w") as file:
                    file.write(str(value + 1))
        link.say("done")


# ── forking ──────────────────────────────────────────────────────────────────────────


def void(lease: lockfast.Lease) -> str:
    """Return the state of a lease that a forked child inherited."""
    answers = [str(lease.state), str(lease.lost.is_set()), str(lease.lost.wait(0))]
    for use in (lease.check, lease.release, lease.__enter__):
        try:
            use()
            answers.append("passed")
        except lockfast.LeaseLostError as error:
            answers.append("forked" if "forked" in str(error) else str(error))
    return " ".join(answers)


def fork_while_holding(link: Link, name: str, how: str) -> None:
    """Fork with a lock held; the child tries everything, then ends as told."""
    with link.connect(ttl=3.0) as client:
        with client.lock(name) as lease:
            child = os.fork()
            if child == 0:
                link.say("child", void(lease))
                with client.lock("of the child") as other:
                    link.say("child-held", other.token)
                if how == "os._exit":
                    os._exit(0)
                elif how == "sys.exit":
                    sys.exit(0)
                elif how == "exception":
                    raise RuntimeError("as any program may")
                elif how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                elif how == "close":
                    client.close()
                    os._exit(0)
                else:
                    assert how == "leave the block"
            else:
                _, status = os.waitpid(child, 0)
                link.say("child-ended", os.waitstatus_to_exitcode(status))
                link.say("mine", lease.state, client.inspect(name).holders[0].token == lease.token)
                # A keep-alive after the fork proves that the parent's side still works.
                renewals = client.sessions()[0].renewals
                while not any(s.renewals > renewals for s in client.sessions()):
                    assert not lease.lost.wait(0.01)
                lease.check()
                link.say("renewed", lease.state)
                link.hear()
        link.say("released")


def fork_among_threads(link: Link, times: int) -> None:
    """Fork repeatedly while other threads are in the middle of transactions."""
    client = link.connect(ttl=30.0)
    enough = threading.Event()
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            while not enough.is_set():
                with client.lock(f"thread/{number}"):
                    pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    with client.lock("of the parent") as lease:
        for number in range(times):
            child = os.fork()
            if child == 0:
                try:
                    client.lock(f"child/{number}").acquire(timeout=20).release()
                    os._exit(0)
                finally:
                    os._exit(1)
            link.say("child", os.waitpid(child, 0)[1])
        lease.check()
    enough.set()
    for thread in threads:
        thread.join()
    link.say("done", *map(repr, errors))
    client.close()


_pool_client: lockfast.Client | None = None


def _pool_task(number: int) -> int:
    assert _pool_client is not None
    with _pool_client.lock("of the pool") as lease:
        return lease.token


def fork_a_pool(link: Link) -> None:
    """A pool of forked workers that use the client they inherited."""
    global _pool_client
    with link.connect(ttl=30.0) as client, client.lock("of the parent") as lease:
        _pool_client = client
        with multiprocessing.get_context("fork").Pool(3) as pool:
            tokens = pool.map(_pool_task, range(60), chunksize=5)
        lease.check()
        link.say("tokens", len(tokens), len(set(tokens)))


def run_a_program(link: Link) -> None:
    """A program started while a lock is held."""
    with link.connect(ttl=30.0) as client, client.lock("of the parent") as lease:
        for _ in range(5):
            subprocess.run([sys.executable, "-c", "import os; os.closerange(3, 99)"], check=True)
        lease.check()
        with client.lock("another"):
            link.say("held", lease.state)


# ── ending ───────────────────────────────────────────────────────────────────────────


def end(link: Link, how: str) -> None:
    """Hold `kept` and end in one of many ways."""
    client = link.connect(ttl=30.0)
    lease = client.lock("kept").acquire()

    def wait() -> None:
        client.lock("another's").acquire()

    if how == "waiting in a daemon thread":
        threading.Thread(target=wait, daemon=True).start()
        while not client.inspect("another's").waiting_count:
            assert not lease.lost.wait(0.001)
    elif how == "watching in a daemon thread":
        watching = client.watch()
        threading.Thread(target=lambda: list(watching), daemon=True).start()
    elif how == "client forgotten":
        del client
    elif how == "lease forgotten":
        del lease
    link.say("ready")
    link.hear()
    if how == "sys.exit in a block":
        with client.lock("inner"):
            sys.exit(3)
    elif how == "exception in a block":
        with client.lock("inner"):
            raise RuntimeError("as any program may")
    elif how == "os._exit":
        os._exit(4)


def end_under_asyncio(link: Link, how: str) -> None:
    """The same under asyncio: `asyncio.run` ends with a lock held, or with tasks waiting."""

    async def body() -> None:
        client = lockfast.aio.connect(link.url, ttl=30.0)
        lease = await client.lock("kept").acquire()
        waiting = asyncio.create_task(client.lock("another's").acquire())
        while not (await client.inspect("another's")).waiting_count:
            assert not lease.lost.is_set()
        link.say("ready")
        link.hear()
        if how == "sys.exit":
            sys.exit(3)
        if how == "exception":
            raise RuntimeError("as any program may")
        if how == "client closed":
            waiting.cancel()
            await lease.release()
            await client.close()

    asyncio.run(body())


def shut_gate(link: Link) -> None:
    """Be stopped in the middle of a transaction, so that no other process can write."""
    gate = os.open(link.url.removeprefix("sqlite://") + "-gate", os.O_RDWR)
    fcntl.lockf(gate, fcntl.LOCK_EX, 1)
    os.kill(os.getpid(), signal.SIGSTOP)
    fcntl.lockf(gate, fcntl.LOCK_UN, 1)
    link.say("open")
    link.hear()


def hold_through_outage(link: Link, ttl: float) -> None:
    """Hold a lock while the store cannot be reached, and report the lease's state."""
    with link.connect(ttl=ttl, connect_timeout=3) as client:
        lease = client.lock("kept").acquire()
        told = threading.Event()
        lease.on_lost(lambda _: told.set())
        link.say("held", lease.token)
        link.hear()
        while lease.state is lockfast.LeaseState.HELD:
            lease.lost.wait(0.001)
        link.say(lease.state, now_ms() - lease.deadline * 1000)
        lease.lost.wait()
        link.say("lost", now_ms() - lease.deadline * 1000)
        link.say("called-back", told.wait(30))
        try:
            client.lock("other").acquire()
        except lockfast.StoreUnavailableError:
            link.say("unavailable")
        link.hear()
        with client.lock("kept") as again:
            link.say("again", again.token)


def close_during_outage(link: Link) -> None:
    """Release and close while the store cannot be reached."""
    client = link.connect(ttl=60.0)
    lease = client.lock("kept").acquire()
    link.say("held")
    link.hear()
    begun_ms = now_ms()
    try:
        lease.release()
    except lockfast.OutcomeUnknownError:
        link.say("unknown", now_ms() - begun_ms)
    begun_ms = now_ms()
    client.close()
    link.say("closed", now_ms() - begun_ms)
    link.hear()
    link.say("threads", *(thread.name for thread in threading.enumerate()[1:]))


# ── interruptions ────────────────────────────────────────────────────────────────────


def footprint() -> tuple[int, int]:
    """Return how many threads and descriptors this process has."""
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def claims_of(client: lockfast.Client) -> int:
    """Return how many claims the store has for this client."""
    found = 0
    for session in client._core.sessions():
        reply = run(client._core.request(Claims(session.id)))
        found += len(reply.claims) if isinstance(reply, ClaimsReply) else 0
    return found


def in_a_block(client: lockfast.Client, name: str) -> None:
    with client.lock(name):
        pass


def by_hand(client: lockfast.Client, name: str) -> None:
    lease = client.lock(name).acquire()
    lease.release()


def not_for_long(client: lockfast.Client, name: str) -> None:
    try:
        client.lock(name).acquire(timeout=0.002).release()
    except (lockfast.AcquireTimeoutError, lockfast.StoreUnavailableError):
        pass


def if_free(client: lockfast.Client, name: str) -> None:
    lease = client.lock(name).try_acquire()
    if lease is not None:
        lease.release()


def be_interrupted(link: Link, name: str, rounds: int) -> None:
    """Acquire and release a lock until interrupted, in one way after another."""
    ways = (in_a_block, by_hand, not_for_long, if_free)
    armed = False
    swallowed = 0

    def interrupt(number: int, frame: object) -> None:
        """Act as Python's own handler, but once per round: a second signal would hit the test."""
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    def swallow(dropped: object) -> None:
        """Count an exception that Python dropped in a finalizer, and arm the handler again."""
        nonlocal armed, swallowed
        armed = True
        swallowed += 1

    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = swallow
    with link.connect(ttl=30.0) as client:
        for way in ways:
            way(client, name)
        before = footprint()
        for number in range(rounds):
            try:
                armed = True
                link.say("round")
                while True:
                    ways[number % len(ways)](client, name)
            except KeyboardInterrupt:
                pass
        link.say("done", swallowed)
        link.hear()
        # Less than a third of the TTL, when a keep-alive would find and repair it.
        until(lambda: claims_of(client) == 0, "all claims are given back", within=8.0)
        until(lambda: footprint() <= before, f"{footprint()} shrinks to {before}", within=8.0)
        thread = threading.Thread(target=by_hand, args=(client, name))
        thread.start()
        thread.join(20.0)
        link.say("clean", *client.list(), *(["stuck"] if thread.is_alive() else []))


def compete(link: Link, name: str) -> None:
    """Acquire and release a lock endlessly."""
    with link.connect(ttl=30.0) as client:
        link.say("ready")
        told = threading.Thread(target=link.hear)
        told.start()
        entries = 0
        while told.is_alive():
            with client.lock(name):
                entries += 1
        link.say("entered", entries)


def release_in_handler(link: Link, rounds: int) -> None:
    """Release a lock from a signal handler, whatever that interrupts."""
    with link.connect(ttl=30.0) as client:
        done = False

        def release(number: int, frame: object) -> None:
            nonlocal done
            done = True
            try:
                lease.release()
            except lockfast.OutcomeUnknownError:
                link.say("later")  # it interrupted a transaction, so the keeper does it
            else:
                link.say("released")

        signal.signal(signal.SIGTERM, release)
        for _ in range(rounds):
            done = False
            lease = client.lock("kept").acquire()
            link.say("held")
            while not done:
                by_hand(client, "other")
            link.hear()
