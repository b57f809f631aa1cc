"""A majority of independent lock servers: any two majorities share a server, so one holder.

The client proposes a token to all servers. A server accepts only a token above its last, and only
if its lease is free. The client holds the lock if a majority accepts. One server may be down.

    python examples/models/majority.py
"""

from __future__ import annotations

import random

from asimpy import Environment, Process

TTL = 20


class Server:
    """One of several servers; it knows only what it accepted itself."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.up = True
        self.token = 0
        self.until = -1.0

    def accept(self, token: int) -> bool:
        if not self.up or token <= self.token or self.env.now < self.until:
            return False
        self.token, self.until = token, self.env.now + TTL
        return True

    def release(self, token: int) -> None:
        if self.up and token == self.token:
            self.until = -1.0


class Client(Process):  # type: ignore[misc]  # asimpy ships no types
    """Asks all servers, holds the lock if a majority accepts, else releases and retries later."""

    def init(self, name: str, servers: list[Server], seed: int) -> None:
        self.name, self.servers, self.random = name, servers, random.Random(seed)

    async def run(self) -> None:
        while True:
            # Time first, then who: no two clients propose the same.
            token = int(self.now * 100) * 10 + len(self.name)
            yes = 0
            for server in self.servers:
                await self.timeout(self.random.random())
                yes += server.accept(token)
            if yes > len(self.servers) // 2:
                break
            for server in self.servers:
                server.release(token)
            await self.timeout(self.random.uniform(1, 10))
        self.log(self.name, f"holds with token {token}, {yes} of {len(self.servers)} agree")
        await self.timeout(3)
        self.log(self.name, f"done with token {token}")
        for server in self.servers:
            server.release(token)


def main(seed: int = 1, down: int = 1) -> list[tuple[float, str, str]]:
    env = Environment()
    servers = [Server(env) for _ in range(3)]
    for server in servers[:down]:
        server.up = False
    for i, name in enumerate(("a", "bb", "ccc")):
        Client(env, name, servers, seed * 10 + i)
    env.run(until=500)
    log: list[tuple[float, str, str]] = env.get_log()
    return log


if __name__ == "__main__":
    for at, name, what in main():
        print(f"{at:7.2f} {name:4} {what}")
