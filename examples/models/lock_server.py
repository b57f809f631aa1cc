"""A lock server with leases, in fifty lines of asimpy: one holder, the rest queue.

A lease ends at release or when its TTL is over, whichever comes first. Run it:

    python examples/models/lock_server.py
"""

from __future__ import annotations

from typing import Any

from asimpy import Environment, Event, Process

TTL = 10


class LockServer:
    """Grants the lock for `TTL`; every grant has a token greater than all before it."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.token = 0
        self.holder = 0
        self.waiting: list[Any] = []

    def acquire(self) -> Any:
        """An event that succeeds with the token once it is our turn."""
        turn = Event(self.env)
        self.waiting.append(turn)
        self._settle()
        return turn

    def release(self, token: int) -> None:
        # Compare the token: a late release must not end another client's lease.
        if token == self.holder:
            self.holder = 0
            self._settle()

    def _settle(self) -> None:
        if self.holder == 0 and self.waiting:
            self.token += 1
            self.holder = self.token
            Expiry(self.env, self, self.token)
            self.waiting.pop(0).succeed(self.token)


class Expiry(Process):  # type: ignore[misc]  # asimpy ships no types
    """Ends a lease when its time is over, if it is still the same."""

    def init(self, server: LockServer, token: int) -> None:
        self.server, self.token = server, token

    async def run(self) -> None:
        await self.timeout(TTL)
        self.server.release(self.token)


class Client(Process):  # type: ignore[misc]  # asimpy ships no types
    """Takes the lock, works for a while, gives it back."""

    def init(self, name: str, server: LockServer, work: int) -> None:
        self.name, self.server, self.work = name, server, work

    async def run(self) -> None:
        token = await self.server.acquire()
        self.log(self.name, f"holds with token {token}")
        await self.timeout(self.work)
        self.server.release(token)
        self.log(self.name, f"done with token {token}")


def main() -> list[tuple[float, str, str]]:
    env = Environment()
    server = LockServer(env)
    for name, work in (("ada", 3), ("bob", 4), ("eve", 2)):
        Client(env, name, server, work)
    env.run()
    log: list[tuple[float, str, str]] = env.get_log()
    return log


if __name__ == "__main__":
    for at, name, what in main():
        print(f"{at:5} {name:8} {what}")
