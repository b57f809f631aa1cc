"""The keys of a Redis server and the commands that the store's scripts use on them.

Arguments are bytes, as they arrive; replies are those of RESP: int, bytes, None, lists of these,
or a `ReplyError`. A test compares all of it with a real server on random commands.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

Reply: TypeAlias = Any
Arguments: TypeAlias = Sequence[bytes]


class ReplyError(Exception):
    """An error reply."""


class Status(bytes):
    """A reply such as OK."""


class SortedSet:
    """Members with scores, by score and then in byte order."""

    __slots__ = ("order", "scores")

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.order: list[tuple[float, bytes]] = []

    def add(self, member: bytes, score: float) -> bool:
        """Return True if the member is new."""
        former = self.scores.get(member)
        if former is not None:
            if former == score:
                return False
            self._drop(member, former)
        self.scores[member] = score
        insort(self.order, (score, member))
        return former is None

    def remove(self, member: bytes) -> bool:
        score = self.scores.pop(member, None)
        if score is None:
            return False
        self._drop(member, score)
        return True

    def _drop(self, member: bytes, score: float) -> None:
        del self.order[bisect_left(self.order, (score, member))]

    def copy(self) -> SortedSet:
        made = SortedSet()
        made.scores, made.order = dict(self.scores), list(self.order)
        return made


Value: TypeAlias = dict[bytes, bytes] | SortedSet | list[bytes] | bytes

_TYPES: Final[dict[type, bytes]] = {
    dict: b"hash",
    SortedSet: b"zset",
    list: b"list",
    bytes: b"string",
}


class Data:
    """One database."""

    def __init__(self) -> None:
        self.keys: dict[bytes, Value] = {}

    def copy(self) -> Data:
        """A copy, as a replica or a file on disk has it."""
        made = Data()
        made.keys = {
            key: value if isinstance(value, bytes) else value.copy()
            for key, value in self.keys.items()
        }
        return made

    def run(self, command: Arguments) -> Reply:
        """Execute one command. Raises ReplyError."""
        name = command[0].upper()
        handler = COMMANDS.get(name)
        if handler is None:
            raise ReplyError(f"ERR unknown command `{name.decode()}`")
        return handler(self, command[1:])

    def _at(self, key: bytes, kind: type) -> Any:
        """Return the value, or an empty one of that type."""
        found = self.keys.get(key)
        if found is None:
            return kind()
        if type(found) is not kind:
            raise ReplyError("WRONGTYPE Operation against a key holding the wrong kind of value")
        return found

    def _store(self, key: bytes, value: Any, *, empty: bool) -> None:
        """Delete a key that has no elements left."""
        if empty:
            self.keys.pop(key, None)
        else:
            self.keys[key] = value

    # ── hashes ───────────────────────────────────────────────────────────────────────

    def hset(self, arguments: Arguments) -> Reply:
        key, *pairs = arguments
        if not pairs or len(pairs) % 2:
            raise _wrong_number("hset")
        rows = self._at(key, dict)
        before = len(rows)
        rows.update(zip(pairs[::2], pairs[1::2], strict=True))
        self.keys[key] = rows
        return len(rows) - before

    def hget(self, arguments: Arguments) -> Reply:
        key, field = arguments
        return self._at(key, dict).get(field)

    def hmget(self, arguments: Arguments) -> Reply:
        key, *fields = arguments
        rows = self._at(key, dict)
        return [rows.get(field) for field in fields]

    def hdel(self, arguments: Arguments) -> Reply:
        key, *fields = arguments
        rows = self._at(key, dict)
        gone = sum(rows.pop(field, None) is not None for field in fields)
        self._store(key, rows, empty=not rows)
        return gone

    def hgetall(self, arguments: Arguments) -> Reply:
        (key,) = arguments
        return [part for pair in self._at(key, dict).items() for part in pair]

    def hkeys(self, arguments: Arguments) -> Reply:
        (key,) = arguments
        return list(self._at(key, dict))

    def hlen(self, arguments: Arguments) -> Reply:
        (key,) = arguments
        return len(self._at(key, dict))

    # ── sorted sets ──────────────────────────────────────────────────────────────────

    def zadd(self, arguments: Arguments) -> Reply:
        key, *pairs = arguments
        only_known = bool(pairs) and pairs[0].upper() == b"XX"
        pairs = pairs[only_known:]
        if not pairs or len(pairs) % 2:
            raise ReplyError("ERR syntax error")
        scores = [_score(score) for score in pairs[::2]]
        members = self._at(key, SortedSet)
        added = 0
        for score, member in zip(scores, pairs[1::2], strict=True):
            if not only_known or member in members.scores:
                added += members.add(member, score)
        self._store(key, members, empty=not members.order)
        return added

    def zrem(self, arguments: Arguments) -> Reply:
        key, *gone = arguments
        members = self._at(key, SortedSet)
        removed = sum([members.remove(member) for member in gone])
        self._store(key, members, empty=not members.order)
        return removed

    def zcard(self, arguments: Arguments) -> Reply:
        (key,) = arguments
        return len(self._at(key, SortedSet).order)

    def zscore(self, arguments: Arguments) -> Reply:
        key, member = arguments
        score = self._at(key, SortedSet).scores.get(member)
        return None if score is None else _shown(score)

    def zrange(self, arguments: Arguments) -> Reply:
        key, start, stop, *options = arguments
        order = self._at(key, SortedSet).order
        found = order[_span(_integer(start), _integer(stop), len(order))]
        return _members(found, with_scores=[o.upper() for o in options] == [b"WITHSCORES"])

    def zrangebyscore(self, arguments: Arguments) -> Reply:
        key, low, high, *options = arguments
        order = self._at(key, SortedSet).order
        low_score, low_open = _bound(low)
        high_score, high_open = _bound(high)
        found = [
            pair
            for pair in order
            if (pair[0] > low_score or (not low_open and pair[0] == low_score))
            and (pair[0] < high_score or (not high_open and pair[0] == high_score))
        ]
        with_scores = b"WITHSCORES" in [option.upper() for option in options]
        rest = [option for option in options if option.upper() != b"WITHSCORES"]
        return _members(_limited(found, rest), with_scores=with_scores)

    def zrangebylex(self, arguments: Arguments) -> Reply:
        key, low, high, *options = arguments
        return _limited(self._between(key, low, high), options)

    def zrevrangebylex(self, arguments: Arguments) -> Reply:
        key, high, low, *options = arguments
        return _limited(self._between(key, low, high)[::-1], options)

    def _between(self, key: bytes, low: bytes, high: bytes) -> list[bytes]:
        # Like the command itself, this treats all scores as equal.
        order = self._at(key, SortedSet).order
        score = order[0][0] if order else 0.0
        first = _lexical(order, score, low, is_low=True)
        last = _lexical(order, score, high, is_low=False)
        return [member for _, member in order[first:last]]

    # ── lists ────────────────────────────────────────────────────────────────────────

    def rpush(self, arguments: Arguments) -> Reply:
        key, *values = arguments
        rows = self._at(key, list)
        rows.extend(values)
        self.keys[key] = rows
        return len(rows)

    def llen(self, arguments: Arguments) -> Reply:
        (key,) = arguments
        return len(self._at(key, list))

    def lrange(self, arguments: Arguments) -> Reply:
        key, start, stop = arguments
        rows = self._at(key, list)
        return list(rows[_span(_integer(start), _integer(stop), len(rows))])

    def ltrim(self, arguments: Arguments) -> Reply:
        key, start, stop = arguments
        rows = self._at(key, list)
        kept = rows[_span(_integer(start), _integer(stop), len(rows))]
        self._store(key, kept, empty=not kept)
        return Status(b"OK")

    # ── keys ─────────────────────────────────────────────────────────────────────────

    def exists(self, arguments: Arguments) -> Reply:
        return sum(key in self.keys for key in arguments)

    def delete(self, arguments: Arguments) -> Reply:
        return sum(self.keys.pop(key, None) is not None for key in arguments)

    def type_of(self, arguments: Arguments) -> Reply:
        (key,) = arguments
        found = self.keys.get(key)
        return Status(b"none" if found is None else _TYPES[type(found)])

    def flushall(self, arguments: Arguments) -> Reply:
        self.keys.clear()
        return Status(b"OK")


COMMANDS: Final[dict[bytes, Callable[[Data, Arguments], Reply]]] = {
    b"HSET": Data.hset,
    b"HGET": Data.hget,
    b"HMGET": Data.hmget,
    b"HDEL": Data.hdel,
    b"HGETALL": Data.hgetall,
    b"HKEYS": Data.hkeys,
    b"HLEN": Data.hlen,
    b"ZADD": Data.zadd,
    b"ZREM": Data.zrem,
    b"ZCARD": Data.zcard,
    b"ZSCORE": Data.zscore,
    b"ZRANGE": Data.zrange,
    b"ZRANGEBYSCORE": Data.zrangebyscore,
    b"ZRANGEBYLEX": Data.zrangebylex,
    b"ZREVRANGEBYLEX": Data.zrevrangebylex,
    b"RPUSH": Data.rpush,
    b"LLEN": Data.llen,
    b"LRANGE": Data.lrange,
    b"LTRIM": Data.ltrim,
    b"EXISTS": Data.exists,
    b"DEL": Data.delete,
    b"TYPE": Data.type_of,
    b"FLUSHALL": Data.flushall,
}
WRITES: Final = frozenset((b"HSET", b"HDEL", b"ZADD", b"ZREM", b"RPUSH", b"LTRIM", b"DEL"))
STORES: Final = frozenset((b"HSET", b"ZADD", b"RPUSH"))
"""Writes that need memory (the flag `denyoom`)."""


def _wrong_number(name: str) -> ReplyError:
    return ReplyError(f"ERR wrong number of arguments for '{name}' command")


def _integer(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise ReplyError("ERR value is not an integer or out of range") from None


def _score(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        raise ReplyError("ERR value is not a valid float") from None


def _bound(text: bytes) -> tuple[float, bool]:
    """Parse a score, and whether the range excludes it."""
    is_open = text.startswith(b"(")
    try:
        return float(text[1:] if is_open else text), is_open
    except ValueError:
        raise ReplyError("ERR min or max is not a float") from None


def _lexical(order: list[tuple[float, bytes]], score: float, bound: bytes, *, is_low: bool) -> int:
    """Return the index at which the members within a bound begin or end."""
    if bound == b"-":
        return 0
    if bound == b"+":
        return len(order)
    if bound[:1] not in (b"[", b"("):
        raise ReplyError("ERR min or max not valid string range item")
    find = bisect_left if (bound[:1] == b"[") == is_low else bisect_right
    return find(order, (score, bound[1:]))


def _span(start: int, stop: int, length: int) -> slice:
    start = max(0, start + length) if start < 0 else start
    stop = stop + length if stop < 0 else stop
    return slice(start, max(start, stop + 1))


def _limited(found: list[Any], options: Sequence[bytes]) -> list[Any]:
    if not options:
        return found
    if len(options) != 3 or options[0].upper() != b"LIMIT":
        raise ReplyError("ERR syntax error")
    offset, count = _integer(options[1]), _integer(options[2])
    if offset < 0:
        return []
    return found[offset:] if count < 0 else found[offset : offset + count]


def _members(found: list[tuple[float, bytes]], *, with_scores: bool) -> list[bytes]:
    if not with_scores:
        return [member for _, member in found]
    return [part for score, member in found for part in (member, _shown(score))]


def _shown(score: float) -> bytes:
    return b"%d" % score if score == int(score) and abs(score) < 1e17 else b"%.17g" % score
