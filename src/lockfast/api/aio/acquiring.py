"""What `acquire` returns in the asyncio API: to be awaited, or entered with `async with`."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, TypeVar

from lockfast.api.aio.lease import Lease

L_co = TypeVar("L_co", bound=Lease, covariant=True)


class Acquiring(Coroutine[Any, Any, L_co], Generic[L_co]):
    """A lease to come: `lease = await lock.acquire()` or `async with lock.acquire() as lease:`.

    It is a coroutine, so `asyncio.create_task` and `asyncio.wait_for` accept it.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, L_co]) -> None:
        self._coroutine = coroutine
        self._lease: L_co | None = None

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, L_co]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> L_co:
        self._lease = lease = await self._coroutine
        await lease.__aenter__()
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._lease is not None
        await self._lease.__aexit__(kind, error, trace)
