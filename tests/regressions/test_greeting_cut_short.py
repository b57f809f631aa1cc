"""A connection that broke during the greeting left futures whose errors nobody retrieved: asyncio
logged each with a traceback when it was collected."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from typing import Any

import pytest

import lockfast.aio
from lockfast.errors import StoreUnavailableError


def hang_up(listener: socket.socket) -> None:
    while True:
        try:
            accepted, _ = listener.accept()
        except OSError:
            return
        accepted.recv(10)
        accepted.close()


def test_nobody_complains_of_answers_that_nobody_fetched() -> None:
    complaints: list[dict[str, Any]] = []

    async def story(url: str) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: complaints.append(context))
        async with lockfast.aio.connect(url, connect_timeout=0.2) as client:
            with pytest.raises(StoreUnavailableError):
                await client.lock("orders/42").try_acquire()
        gc.collect()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        hanging_up = threading.Thread(target=hang_up, args=(listener,))
        hanging_up.start()
        try:
            asyncio.run(story(f"redis://127.0.0.1:{listener.getsockname()[1]}"))
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            hanging_up.join()
    assert complaints == []
