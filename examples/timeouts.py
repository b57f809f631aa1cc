"""Timeouts where people look for them, and a lease with a fixed end."""

from __future__ import annotations

import asyncio

import lockfast
import lockfast.aio


def blocking() -> None:
    with lockfast.connect("memory://timeouts") as client:
        orders = client.lock("orders/42", timeout=0.1)  # for acquire, with and the decorator
        with orders:
            print("locked by somebody:", client.lock("orders/42").locked())
            other = client.lock("orders/42", timeout=0.1)
            try:
                with other:
                    raise AssertionError("the body never runs without the lock")
            except lockfast.AcquireTimeoutError as error:
                print("not acquired:", error.timeout, "s")
        with client.lock("report", ttl=60, renew=False) as lease:
            lease.extend(30)  # ends after 90 s, whatever its holder does
            print("fixed end moved, still", lease.state)


async def awaited() -> None:
    client = lockfast.aio.connect("memory://timeouts")
    async with client, client.lock("orders/42").acquire(timeout=5) as lease:
        print("held:", lease.state)


if __name__ == "__main__":
    blocking()
    asyncio.run(awaited())
