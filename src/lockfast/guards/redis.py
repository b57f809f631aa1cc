"""A guard for data kept in Redis: one script checks the token and writes.

This module imports no Redis library. It uses the caller's client, blocking or asyncio, and
does not catch that client's exceptions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from lockfast.errors import StoreError, UnsupportedError
from lockfast.guards.admission import (
    ATTEMPTS,
    Admission,
    admitted,
    checked_result,
    compared_marks,
    judge,
    plan_admission,
)

Value: TypeAlias = str | bytes | int | float

SET: Final = "return redis.call('SET', KEYS[1], unpack(ARGV))"
HSET: Final = "return redis.call('HSET', KEYS[1], unpack(ARGV))"
DELETE: Final = "return redis.call('DEL', unpack(KEYS))"
_PLACE: Final = "--[[ the caller's script ]]"


class Client(Protocol):
    """The part of a redis-py client that a guard uses."""

    def execute_command(self, *arguments: Any) -> Any: ...


class _Call(NamedTuple):
    """An admission and the script to run if it passes."""

    admission: Admission
    sha: str
    body: str
    arguments: tuple[Value, ...]

    def by_sha(self) -> tuple[Value, ...]:
        return ("EVALSHA", self.sha, *self.arguments)

    def by_body(self) -> tuple[Value, ...]:
        return ("EVAL", self.body, *self.arguments)

    def result(self, answer: Any) -> Any:
        """Return the result of the caller's script; raise StaleTokenError if it did not run."""
        passed, *rest = answer
        if not passed:
            judge(self.admission, int(rest[0]))
            raise AssertionError(f"the server refused {self.admission}, which should have passed")
        admitted(self.admission)
        found = rest[0] if rest else None
        if isinstance(found, Exception):
            raise found
        return found


class _Watched(NamedTuple):
    """An admission inside a transaction of the caller's commands, under WATCH."""

    admission: Admission

    @property
    def fields(self) -> list[str]:
        return [mark.key for mark in self.admission.marks]

    def rising(self, found: Sequence[Any]) -> dict[str, int]:
        """The floors to be raised, by field; raises StaleTokenError if the token may not pass."""
        admission = self.admission
        token, floors = admission.token, dict(zip(admission.marks, found, strict=True))
        judge(admission, _highest([floors[mark] for mark in admission.compared]))
        return {mark.key: token for mark in admission.raised if int(floors[mark] or 0) < token}

    def replies(self, received: list[Any], rising: Mapping[str, int]) -> list[Any]:
        """Those of the caller's own commands."""
        admitted(self.admission)
        return received[:-1] if rising else received

    def gave_up(self) -> StoreError:
        return self.admission.gave_up(
            "retry, use set(), hset() or run(), or give this resource a guard with another key"
        )


@cache
def _wrapped(script: str) -> tuple[str, str]:
    around = (Path(__file__).parent / "redis.lua").read_text(encoding="utf-8")
    body = around.replace(_PLACE, script)
    return body, hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()


class _Base:
    """What the blocking and the asyncio guard share: everything except sending."""

    _for, _not_for = "__enter__", "__aenter__"
    """A method that only suitable clients have, and one that only the other kind has."""

    def __init__(self, client: Any, *, key: str = "lockfast:floors", tree: bool = False) -> None:
        if not key:
            raise UnsupportedError("key=''", "the floors need a key in Redis", "give it a name")
        if hasattr(client, self._not_for) and not hasattr(client, self._for):
            kind = f"{type(client).__module__}.{type(client).__qualname__}"
            raise UnsupportedError(
                f"{type(self).__name__} for {kind}",
                "RedisGuard takes a redis.Redis, AsyncRedisGuard a redis.asyncio.Redis",
                "use the other guard",
            )
        self._client = client
        self._key = key
        self.tree = tree

    def _call(
        self,
        resource: str,
        token: int,
        script: str,
        keys: Sequence[Value] = (),
        arguments: Sequence[Value] = (),
        *,
        shared: bool = False,
        once: bool = False,
    ) -> _Call:
        admission = self._planned(resource, token, shared, once)
        marks = (*admission.compared, *admission.raised)
        body, sha = _wrapped(script)
        return _Call(
            admission,
            sha,
            body,
            (
                1 + len(keys),
                self._key,
                *keys,
                token,
                int(once),
                len(admission.compared),
                len(admission.raised),
                *(mark.key for mark in marks),
                *arguments,
            ),
        )

    def _watched(self, resource: str, token: int, shared: bool, once: bool) -> _Watched:
        return _Watched(self._planned(resource, token, shared, once))

    def _planned(self, resource: str, token: int, shared: bool, once: bool) -> Admission:
        return plan_admission(
            resource, token, shared=shared, once=once, tree=self.tree, guard="redis"
        )

    def _floor_command(self, resource: str) -> tuple[Value, ...]:
        marks = compared_marks(resource, tree=self.tree)
        return ("HMGET", self._key, *(mark.key for mark in marks))

    def _admission(self, resource: str, token: int, shared: bool, once: bool) -> _Call:
        return self._call(resource, token, "", shared=shared, once=once)

    def _setting(
        self,
        resource: str,
        token: int,
        key: str,
        value: Value,
        expire_ms: int | None,
        once: bool,
    ) -> _Call:
        arguments = (value,) if expire_ms is None else (value, "PX", expire_ms)
        return self._call(resource, token, SET, [key], arguments, once=once)

    def _hsetting(
        self, resource: str, token: int, key: str, values: Mapping[str, Value], once: bool
    ) -> _Call:
        if not values:
            raise ValueError("hset() needs at least one field; values is empty")
        pairs = [part for pair in values.items() for part in pair]
        return self._call(resource, token, HSET, [key], pairs, once=once)

    def _deletion(self, resource: str, token: int, keys: Sequence[str], once: bool) -> _Call:
        return self._call(resource, token, DELETE, keys, once=once)


def _highest(floors: Sequence[Any]) -> int:
    return max(int(floor or 0) for floor in floors)


def _has_changed(error: Exception) -> bool:
    # Compare the name, so that the class need not be imported.
    return type(error).__name__ == "WatchError"


def _is_missing(error: Exception) -> bool:
    # Compare the name, so that the class need not be imported.
    return type(error).__name__ == "NoScriptError" or str(error).startswith("NOSCRIPT")


class RedisGuard(_Base):
    """Floors in a hash of the caller's Redis, checked and raised in the script that writes.

    `client` is a `redis.Redis` or anything with its `execute_command`. All floors are in
    the hash `key`. In a cluster, give it the hash tag of the data it guards, because a
    script can use the keys of one slot only. A client that retries commands automatically
    may send a write again that was already carried out. That is harmless for the same
    token, but with `once=True` the second attempt raises StaleTokenError.

    With `tree=True` names are paths: a write makes older tokens stale on its name, on
    every name above and on every name beneath, and leaves siblings alone.
    """

    def admit(self, resource: str, token: int, *, shared: bool = False, once: bool = False) -> None:
        """Let the holder of `token` through to `resource`, or raise StaleTokenError.

        A separate write after `admit` is not protected: a successor may write in between.
        Use `set`, `hset`, `delete` or `run`, which check and write in one step.
        """
        self._send(self._admission(resource, token, shared, once))

    def floor(self, resource: str) -> int:
        """Return the lowest token that would be admitted now; 0 if any token would."""
        return _highest(self._client.execute_command(*self._floor_command(resource)))

    def set(
        self,
        resource: str,
        token: int,
        key: str,
        value: Value,
        *,
        expire_ms: int | None = None,
        once: bool = False,
    ) -> None:
        """SET `key`; raise StaleTokenError if a newer token was admitted to `resource`."""
        self._send(self._setting(resource, token, key, value, expire_ms, once))

    def hset(
        self,
        resource: str,
        token: int,
        key: str,
        values: Mapping[str, Value],
        *,
        once: bool = False,
    ) -> int:
        """HSET fields of `key`; return how many are new."""
        return int(self._send(self._hsetting(resource, token, key, values, once)))

    def delete(self, resource: str, token: int, *keys: str, once: bool = False) -> int:
        """DEL `keys`; return how many existed."""
        return int(self._send(self._deletion(resource, token, keys, once)))

    def run(
        self,
        resource: str,
        token: int,
        script: str,
        keys: Sequence[Value] = (),
        arguments: Sequence[Value] = (),
        *,
        shared: bool = False,
        once: bool = False,
    ) -> Any:
        """Run your own Lua script, with its own KEYS and ARGV, if the token is admitted."""
        return self._send(
            self._call(resource, token, script, keys, arguments, shared=shared, once=once)
        )

    def execute(
        self,
        resource: str,
        token: int,
        operation: Callable[[Any], object],
        *,
        shared: bool = False,
        once: bool = False,
    ) -> list[Any]:
        """Carry out the commands that `operation` queues in the pipeline it is given.

        They are one transaction (MULTI) with the check, and are not sent if the token is stale.
        Returns their replies. If another write under the same `key` of floors comes in between,
        all is done again, so `operation` may be called more than once. For one command, `set`,
        `hset`, `delete` and `run` need fewer round trips and no repetition.
        """
        watched = self._watched(resource, token, shared, once)
        for _ in range(ATTEMPTS):
            with self._client.pipeline(transaction=True) as pipeline:
                pipeline.watch(self._key)
                rising = watched.rising(pipeline.hmget(self._key, watched.fields))
                pipeline.multi()
                checked_result(operation(pipeline))
                if rising:
                    pipeline.hset(self._key, mapping=rising)
                try:
                    replies = pipeline.execute()
                except Exception as error:
                    if not _has_changed(error):
                        raise
                else:
                    return watched.replies(replies, rising)
        raise watched.gave_up()

    def _send(self, call: _Call) -> Any:
        try:
            answer = self._client.execute_command(*call.by_sha())
        except Exception as error:
            if not _is_missing(error):
                raise
            answer = self._client.execute_command(*call.by_body())
        return call.result(answer)


class AsyncRedisGuard(_Base):
    """RedisGuard for a `redis.asyncio.Redis`."""

    _for, _not_for = "__aenter__", "__enter__"

    async def admit(
        self, resource: str, token: int, *, shared: bool = False, once: bool = False
    ) -> None:
        """Let the holder of `token` through to `resource`, or raise StaleTokenError."""
        await self._send(self._admission(resource, token, shared, once))

    async def floor(self, resource: str) -> int:
        """Return the lowest token that would be admitted now; 0 if any token would."""
        return _highest(await self._client.execute_command(*self._floor_command(resource)))

    async def set(
        self,
        resource: str,
        token: int,
        key: str,
        value: Value,
        *,
        expire_ms: int | None = None,
        once: bool = False,
    ) -> None:
        """SET `key`; raise StaleTokenError if a newer token was admitted to `resource`."""
        await self._send(self._setting(resource, token, key, value, expire_ms, once))

    async def hset(
        self,
        resource: str,
        token: int,
        key: str,
        values: Mapping[str, Value],
        *,
        once: bool = False,
    ) -> int:
        """HSET fields of `key`; return how many are new."""
        return int(await self._send(self._hsetting(resource, token, key, values, once)))

    async def delete(self, resource: str, token: int, *keys: str, once: bool = False) -> int:
        """DEL `keys`; return how many existed."""
        return int(await self._send(self._deletion(resource, token, keys, once)))

    async def run(
        self,
        resource: str,
        token: int,
        script: str,
        keys: Sequence[Value] = (),
        arguments: Sequence[Value] = (),
        *,
        shared: bool = False,
        once: bool = False,
    ) -> Any:
        """Run your own Lua script, with its own KEYS and ARGV, if the token is admitted."""
        return await self._send(
            self._call(resource, token, script, keys, arguments, shared=shared, once=once)
        )

    async def execute(
        self,
        resource: str,
        token: int,
        operation: Callable[[Any], object],
        *,
        shared: bool = False,
        once: bool = False,
    ) -> list[Any]:
        """Carry out the commands that `operation` queues in the pipeline it is given."""
        watched = self._watched(resource, token, shared, once)
        for _ in range(ATTEMPTS):
            async with self._client.pipeline(transaction=True) as pipeline:
                await pipeline.watch(self._key)
                rising = watched.rising(await pipeline.hmget(self._key, watched.fields))
                pipeline.multi()
                checked_result(operation(pipeline))
                if rising:
                    pipeline.hset(self._key, mapping=rising)
                try:
                    replies = await pipeline.execute()
                except Exception as error:
                    if not _has_changed(error):
                        raise
                else:
                    return watched.replies(replies, rising)
        raise watched.gave_up()

    async def _send(self, call: _Call) -> Any:
        try:
            answer = await self._client.execute_command(*call.by_sha())
        except Exception as error:
            if not _is_missing(error):
                raise
            answer = await self._client.execute_command(*call.by_body())
        return call.result(answer)
