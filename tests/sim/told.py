"""Small histories written by hand, in milliseconds."""

from __future__ import annotations

from lockfast.core.commands import Place
from lockfast.sim.history import Entry

A = ("lock", "a")
B = ("lock", "b")


def writes(*names: tuple[str, str]) -> tuple[Place, ...]:
    return tuple(Place(*name, "exclusive") for name in names)


def reads(*names: tuple[str, str]) -> tuple[Place, ...]:
    return tuple(Place(*name, "shared") for name in names)


class Told:
    """Records what clients asked and what they were answered; `entries` is the history."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._ops = 0

    @property
    def entries(self) -> list[Entry]:
        return sorted(self._entries, key=lambda entry: int(entry["at"]))

    def lease(
        self,
        by: str,
        places: tuple[Place, ...],
        asked: float,
        told: float,
        released: float,
        token: int,
        queued: float | None = None,
        head_start: int = 0,
        **about: bool,
    ) -> int:
        """Record one lease, from the request to its release, answered a millisecond later."""
        op = self._ask(asked, by, "acquire", places=places, head_start=head_start, **about)
        if queued is not None:
            self._got(queued, op, "queued")
        self._got(told, op, "granted", token=token)
        self._got(released, op, "over", why="released")
        self._got(released + 1, self._ask(released, by, "release", of=op), "done")
        return op

    def busy(self, by: str, places: tuple[Place, ...], asked: float) -> None:
        """Record an acquire without waiting that found the lock taken, a millisecond later."""
        self._got(asked + 1, self._ask(asked, by, "acquire", places=places, wait=False), "busy")

    def conversion(self, of: int, mode: str, asked: float, told: float, token: int) -> None:
        self._got(told, self._ask(asked, "", "convert", of=of, mode=mode), "granted", token=token)

    def _ask(self, at: float, by: str, what: str, **about: object) -> int:
        self._ops += 1
        self._entries.append(
            {"at": int(at * 1000), "op": self._ops, "by": by, "ask": what, **about}
        )
        return self._ops

    def _got(self, at: float, op: int, what: str, **about: object) -> None:
        self._entries.append({"at": int(at * 1000), "op": op, "got": what, **about})
