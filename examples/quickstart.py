"""The parts of Lockfast that most programs need, in the order you will need them.

    python examples/quickstart.py

It uses a lock file in a private temporary directory. Without a URL, `lockfast.connect()`
uses a lock file that all processes of this user share.
"""

import asyncio
import sqlite3
import tempfile

import lockfast
import lockfast.aio
from lockfast.guards import SqliteGuard


def hold_a_lock(client: lockfast.Client) -> None:
    with client.lock("nightly-report") as lease:
        print(f"we hold {lease.name!r} with token {lease.token}")
        lease.check()  # raises LeaseLostError if the lock is no longer ours

    lease_or_none = client.lock("nightly-report").try_acquire()
    if lease_or_none is not None:  # None: another holder has it
        with lease_or_none:
            print("it was free")


def give_up_after_a_while(client: lockfast.Client) -> None:
    with client.lock("orders/42"):
        try:
            client.lock("orders/42").acquire(timeout=0.05)
        except lockfast.AcquireTimeoutError as error:
            print(error)


def name_by_argument(client: lockfast.Client) -> None:
    @client.lock("report:{day}")
    def build(day: str) -> None:
        print(f"building the report of {day}; reports of other days do not wait")

    build("2031-05-01")


def stop_when_lost(client: lockfast.Client) -> None:
    """The lock is revoked while we work; the error says by whom and why."""
    try:
        with client.lock("long-job") as lease:
            client.revoke("long-job", reason="the disk must be free by noon")
            while not lease.lost.is_set():
                lease.lost.wait(timeout=0.1)  # one piece of the long job
        # Not reached: leaving the block of a lost lease raises.
    except lockfast.LeaseLostError as error:
        print(error)


def guard_the_resource(client: lockfast.Client) -> None:
    """A guard at the resource refuses a token once a newer one was admitted."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE payments (amount INTEGER)")
    with client.lock("payments") as lease:
        late_token = lease.token  # imagine that its holder is suspended here
    with client.lock("payments") as lease, database:
        SqliteGuard(database).admit("payments", lease.token)
        database.execute("INSERT INTO payments VALUES (10)")
    try:
        with database:
            SqliteGuard(database).admit("payments", late_token)
            database.execute("INSERT INTO payments VALUES (10)")
    except lockfast.StaleTokenError as error:
        print(error)
    print("payments:", database.execute("SELECT count(*) FROM payments").fetchone()[0])
    database.close()


def inspect_locks(client: lockfast.Client) -> None:
    with client.lock("orders/42"):
        for lock in client.list("orders/"):
            for holder in lock.holders:
                print(f"{lock.name} is held by {holder.owner} for {holder.seconds:.3f} s")


async def same_with_asyncio(url: str) -> None:
    async with lockfast.aio.connect(url) as client, client.lock("nightly-report") as lease:
        print(f"the same lock from asyncio, token {lease.token}")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite://{directory}/locks.db"
        with lockfast.connect(url, ttl=15, owner="quickstart") as client:
            hold_a_lock(client)
            give_up_after_a_while(client)
            name_by_argument(client)
            stop_when_lost(client)
            guard_the_resource(client)
            inspect_locks(client)
        asyncio.run(same_with_asyncio(url))


if __name__ == "__main__":
    main()
