"""A client dies while it holds the lock: the lease expires and the next client gets it.

python examples/models/crashing_client.py
"""

from __future__ import annotations

from asimpy import Environment, Process
from lock_server import TTL, Client, LockServer  # type: ignore[import-not-found]  # pyright: ignore[reportImplicitRelativeImport]


class Dying(Process):  # type: ignore[misc]  # asimpy ships no types
    """Acquires the lock and crashes."""

    def init(self, server: LockServer) -> None:
        self.server = server

    async def run(self) -> None:
        token = await self.server.acquire()
        self.log("dying", f"holds with token {token}")
        await self.timeout(1)
        self.log("dying", "crashes without releasing it")


def main() -> list[tuple[float, str, str]]:
    env = Environment()
    server = LockServer(env)
    Dying(env, server)
    Client(env, "next", server, 2)
    env.run()
    log: list[tuple[float, str, str]] = env.get_log()
    return log


if __name__ == "__main__":
    for at, name, what in main():
        print(f"{at:5} {name:8} {what}")
    print(f"(the lease lasts {TTL})")
