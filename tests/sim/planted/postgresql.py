"""Bugs planted in the PostgreSQL store: in its functions, as the model has them, and its steps."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

from lockfast.sim.postgresql import functions, statements
from lockfast.sim.postgresql.database import Database, Key, Row, Transaction, Yields
from lockfast.sim.postgresql.functions import Call, Run
from lockfast.stores.postgresql.rows import StepRows
from tests.sim.planted.bugs import bug, replace


def define(stack: ExitStack, name: str, wrong: Any) -> None:
    """Make one of the SQL functions do something else."""
    right = functions.FUNCTIONS[name]
    functions.FUNCTIONS[name] = wrong
    statements.prepare.cache_clear()

    def restore() -> None:
        functions.FUNCTIONS[name] = right
        statements.prepare.cache_clear()

    stack.callback(restore)


@bug("postgresql: a keep-alive that is not stored", promise="exclusion", store="postgresql")
def _(stack: ExitStack) -> None:
    def renew(
        call: Call, namespace: str, session: str, claims: int, checksum: int, lowest: int,
        given_ms: int | None,
    ) -> Run:  # fmt: skip
        own = call.tx.get("sessions", namespace, session)
        found = yield from right(call, namespace, session, claims, checksum, lowest, given_ms)
        if own is not None and found[0][0] == "renewed":
            deadline_ms = own["deadline_ms"]
            yield from call.tx.update("sessions", (namespace, session), deadline_ms=deadline_ms)
        return found

    right = functions.renew
    define(stack, "renew", renew)


@bug("postgresql: tokens go on where the standby was", promise="tokens", store="postgresql")
def _(stack: ExitStack) -> None:
    replace(stack, functions, "is_stale", lambda tx: False)
    replace(stack, StepRows, "is_behind", lambda self, by_us: False)


@bug("postgresql: commits do not wait for the disk", promise="tokens", store="postgresql")
def _(stack: ExitStack) -> None:
    right = Database.commit

    def commit(
        self: Database, changes: dict[tuple[str, Key], Row | None], is_durable: bool
    ) -> None:
        right(self, changes, is_durable=False)

    replace(stack, Database, "commit", commit)


@bug("postgresql: the last to come is served first", promise="order", store="postgresql")
def _(stack: ExitStack) -> None:
    right = functions.line_of

    def line_of(tx: Transaction, namespace: str, kind: str, name: str, line: str) -> list[Row]:
        rows = right(tx, namespace, kind, name, line)
        return rows[::-1] if line == "w" else rows

    replace(stack, functions, "line_of", line_of)


@bug("postgresql: a clock of whole seconds", promise="exclusion", store="postgresql")
def _(stack: ExitStack) -> None:
    def now_ms(self: Call, given: int | None) -> int:
        return given if given is not None else round(self.wall_us() / 1_000_000) * 1000

    replace(stack, Call, "now_ms", now_ms)


@bug("postgresql: a notification with another's token", promise="tokens", store="postgresql")
def _(stack: ExitStack) -> None:
    right = functions._hand_over

    def hand_over(
        call: Call, resource: Row, heir: str, channel: str, now_ms: int
    ) -> Generator[Yields, Any, tuple[Any, ...] | None]:
        told = yield from right(call, resource, heir, channel, now_ms)
        notices = [(to, text.rpartition(" ")) for to, text in call.tx.notices]
        call.tx.notices = {(to, f"{part[0]} {int(part[2]) - 1}"): None for to, part in notices}
        return told

    replace(stack, functions, "_hand_over", hand_over)


@bug("postgresql: a token without the epoch", promise="tokens", store="postgresql")
def _(stack: ExitStack) -> None:
    def raise_epoch(call: Call, given_us: int | None) -> Run:
        """Store the new timeline, and keep the epoch."""
        yield from call.tx.update("meta", (True,), timeline=call.tx.database.timeline_text)
        return [(0,)]

    define(stack, "raise_epoch", raise_epoch)
    replace(stack, StepRows, "is_behind", lambda self, by_us: False)
