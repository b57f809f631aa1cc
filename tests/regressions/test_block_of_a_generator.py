"""A lock acquired inside a generator stayed locked when the generator was closed elsewhere.

`with lock:` finds its lease by thread or task. An abandoned generator is closed by whoever collects
it, an asyncio one in a separate task. There the lease was not found.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

import lockfast
import lockfast.aio


def test_ended_in_another_thread() -> None:
    with lockfast.connect("memory://generator") as client:
        lock = client.lock("a")

        def numbers() -> Iterator[int]:
            with lock:
                yield 1

        generator = numbers()
        next(generator)
        ending = threading.Thread(target=generator.close)  # type: ignore[attr-defined]
        ending.start()
        ending.join()

        assert client.inspect("a").holder_count == 0


def test_ended_in_another_task() -> None:
    async def story() -> None:
        async with lockfast.aio.connect("memory://async-generator") as client:
            lock = client.lock("a")

            async def numbers() -> AsyncIterator[int]:
                async with lock:
                    yield 1

            generator = numbers()
            await anext(generator)
            await asyncio.create_task(generator.aclose())  # type: ignore[attr-defined]

            assert (await client.inspect("a")).holder_count == 0

    asyncio.run(story())


def test_nobody_elses_block_is_left() -> None:
    with lockfast.connect("memory://generators") as client:
        readers = client.rwlock("a").read()

        def numbers() -> Iterator[int]:
            with readers:
                yield 1

        def read() -> None:
            with readers:
                reading.set()
                done.wait(60)

        reading, done = threading.Event(), threading.Event()
        generator = numbers()
        next(generator)
        reader = threading.Thread(target=read)
        reader.start()
        reading.wait(60)
        told: list[BaseException] = []

        def end() -> None:
            with pytest.raises(RuntimeError, match=r"with lock\.acquire") as caught:
                generator.close()  # type: ignore[attr-defined]
            told.append(caught.value)

        ending = threading.Thread(target=end)
        ending.start()
        ending.join()
        done.set()
        reader.join()
        assert told
