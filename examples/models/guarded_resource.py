"""A client pauses past its lease and writes anyway: only a guard at the resource stops it.

Without a guard the late write overwrites the newer one. A guard that remembers the highest token
it has seen refuses it.

    python examples/models/guarded_resource.py
"""

from __future__ import annotations

from asimpy import Environment, Process
from lock_server import TTL, LockServer  # type: ignore[import-not-found]  # pyright: ignore[reportImplicitRelativeImport]


class Resource:
    """Something that many clients write to, one at a time."""

    def __init__(self, guarded: bool) -> None:
        self.guarded = guarded
        self.floor = 0
        self.value = "nothing"

    def write(self, token: int, value: str) -> bool:
        if self.guarded and token < self.floor:
            return False
        self.floor = max(self.floor, token)
        self.value = value
        return True


class Writer(Process):  # type: ignore[misc]  # asimpy ships no types
    """Acquires the lock, pauses, and writes without checking that it still holds the lock."""

    def init(self, name: str, server: LockServer, resource: Resource, pause: int) -> None:
        self.name, self.server, self.resource, self.pause = name, server, resource, pause

    async def run(self) -> None:
        token = await self.server.acquire()
        self.log(self.name, f"holds with token {token}")
        await self.timeout(self.pause)
        written = self.resource.write(token, self.name)
        self.log(self.name, f"writes with token {token}: {'done' if written else 'refused'}")
        self.server.release(token)


def main(guarded: bool) -> tuple[str, list[tuple[float, str, str]]]:
    env = Environment()
    server, resource = LockServer(env), Resource(guarded)
    Writer(env, "zombie", server, resource, TTL * 2)
    Writer(env, "quick", server, resource, 1)
    env.run()
    return resource.value, env.get_log()


if __name__ == "__main__":
    for guarded in (False, True):
        print("with a guard:" if guarded else "without a guard:")
        value, log = main(guarded)
        for at, name, what in log:
            print(f"{at:5} {name:8} {what}")
        print(f"      the resource has what {value} wrote\n")
