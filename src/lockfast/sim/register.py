"""The resource that a lock protects: registers behind a guard, on a separate host.

Holders read a value and write it back incremented. If two of them do so at the same time, one
update is lost, and the values show it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lockfast.errors import OutcomeUnknownError, StaleTokenError
from lockfast.guards.admission import InvalidTokenError
from lockfast.guards.memory import MemoryGuard
from lockfast.sim.history import History
from lockfast.sim.network import Network
from lockfast.sim.runtime import Host

T = TypeVar("T")


class Register:
    """Values by name. If fenced, it refuses stale tokens."""

    def __init__(self, host: Host, network: Network, history: History, *, fenced: bool) -> None:
        self.host = host
        self.fenced = fenced
        self.values: dict[str, int] = {}
        self.refused = 0
        self._guard = MemoryGuard()
        self._network = network
        self._history = history

    async def read(self, client: Host, name: str, token: int, timeout_ms: int) -> int:
        """Read a value on behalf of a lease; the guard records the reader's token.

        Otherwise a delayed write of a former holder could be admitted between this read and the
        write that follows it, and would be overwritten.
        """

        def serve() -> int:
            self._admit("read", name, token, client, self.values.get(name, 0))
            return self.values.get(name, 0)

        return await self._ask(client, serve, timeout_ms)

    async def write(self, client: Host, name: str, token: int, value: int, timeout_ms: int) -> None:
        """Write a value. The message may arrive late or twice; the guard handles both."""

        def serve() -> None:
            self._admit("write", name, token, client, value)
            self.values[name] = value

        await self._ask(client, serve, timeout_ms)

    def _admit(self, what: str, name: str, token: int, by: Host, value: int) -> None:
        admitted = True
        try:
            if self.fenced:
                self._guard.admit(name, token)
        except (StaleTokenError, InvalidTokenError):
            admitted = False
            self.refused += 1
            raise
        finally:
            at = self._network.kernel.now
            self._history.note(
                at, **{what: name}, token=token, by=by.name, value=value, admitted=admitted
            )

    async def _ask(self, client: Host, serve: Callable[[], T], timeout_ms: int) -> T:
        answered = client.signal()
        results: list[T] = []
        errors: list[StaleTokenError | InvalidTokenError] = []

        def arrive() -> None:
            try:
                result = serve()
            except (StaleTokenError, InvalidTokenError) as error:
                refused = error
                self._network.carry(self.host, client, lambda: end(errors, refused))
            else:
                self._network.carry(self.host, client, lambda: end(results, result))

        def end(into: list[Any], what: object) -> None:
            into.append(what)
            answered.set()

        self._network.carry(client, self.host, arrive, arrive)
        await answered.wait(timeout_ms)
        if errors and not results:
            raise errors[0]
        if not results:
            raise OutcomeUnknownError("the resource", f"no answer within {timeout_ms} ms")
        return results[0]
