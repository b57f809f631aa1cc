"""`@client.all("accounts/{payer}", …)` locked names with literal braces, the same for all calls.

The names of several locks were joined before their fields were filled in.
"""

from __future__ import annotations

import asyncio

import lockfast
import lockfast.aio


def test_each_name_has_its_own_fields() -> None:
    with lockfast.connect("memory://fields-of-several") as client:

        @client.all("accounts/{payer}", client.rwlock("rates, {payee}").read(), "audit")
        def transfer(payer: str, payee: str) -> list[str]:
            return [info.name for info in client.list()]

        assert transfer("a/1", payee="b") == ["accounts/a%2F1", "audit", "rates, b"]
        assert client.list() == []


def test_each_name_has_its_own_fields_in_asyncio() -> None:
    async def story() -> None:
        async with lockfast.aio.connect("memory://fields-of-several") as client:

            @client.all("accounts/{payer}", "audit")
            async def pay(payer: str) -> list[str]:
                return [info.name for info in await client.list()]

            assert await pay("x") == ["accounts/x", "audit"]

    asyncio.run(story())
