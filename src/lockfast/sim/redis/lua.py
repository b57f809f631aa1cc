"""Redis's Lua: scripts run by a real Lua 5.1, over the modelled commands.

Needs the package `lupa`. One interpreter serves all servers of the process, because a script is
compiled once; what a script reads and writes is the server's that runs it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final

from lockfast.sim.redis.data import Reply, ReplyError, Status

Call: Any = Callable[[Sequence[bytes]], Reply]
"""Carries out one command for a script."""


class Interpreter:
    """Lua 5.1 with the libraries that Redis gives to scripts, as far as they are used."""

    def __init__(self) -> None:
        lua51 = import_module("lupa.lua51")

        self._lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._is_table = lambda value: lua51.lua_type(value) == "table"
        self._call: Call = None
        self._scripts: dict[bytes, Any] = {}
        lua, globals_ = self._lua, self._lua.globals()
        globals_[b"redis"] = lua.table_from(
            {
                b"call": self._redis_call,
                b"sha1hex": lambda text: hashlib.sha1(text).hexdigest().encode(),
                b"error_reply": lambda text: lua.table_from({b"err": text}),
                b"status_reply": lambda text: lua.table_from({b"ok": text}),
            }
        )
        globals_[b"struct"] = lua.table_from({b"pack": _pack, b"unpack": _unpack})
        globals_[b"cmsgpack"] = lua.table_from({b"pack": self._msgpack, b"unpack": self._msgunpack})

    def run(
        self, body: bytes, keys: Sequence[bytes], arguments: Sequence[bytes], call: Call
    ) -> Reply:
        """Run a script; raises ReplyError for its own errors and those of its commands."""
        script = self._scripts.get(body)
        if script is None:
            script = self._scripts[body] = self._lua.compile(body)
        globals_ = self._lua.globals()
        globals_[b"KEYS"] = self._lua.table_from(keys)
        globals_[b"ARGV"] = self._lua.table_from(arguments)
        before, self._call = self._call, call
        try:
            return self._reply(script())
        except ReplyError:
            raise
        except Exception as error:
            if type(error).__name__ != "LuaError":
                raise
            raise ReplyError(f"ERR Error running script: user_script: {error}") from None
        finally:
            self._call = before

    def _redis_call(self, *arguments: Any) -> Any:
        found = self._call([_argument(argument) for argument in arguments])
        return self._value(found)

    def _value(self, reply: Reply) -> Any:
        """A reply as Lua sees it: nothing is false, a status is a table."""
        if reply is None:
            return False
        if isinstance(reply, Status):
            return self._lua.table_from({b"ok": bytes(reply)})
        if isinstance(reply, list):
            return self._lua.table_from([self._value(part) for part in reply])
        return reply

    def _reply(self, value: Any) -> Reply:
        """What a script returned, as the client gets it."""
        if isinstance(value, bool):
            return 1 if value else None
        if isinstance(value, int | float):
            return int(value)
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, tuple):
            return self._reply(value[0])
        if value[b"err"] is not None:
            raise ReplyError(value[b"err"].decode(errors="replace"))
        if value[b"ok"] is not None:
            return Status(value[b"ok"])
        found = []
        for i in range(1, len(value) + 1):
            part = value[i]
            if part is None:
                break
            found.append(self._reply(part))
        return found

    # ── cmsgpack ─────────────────────────────────────────────────────────────────────

    def _msgpack(self, *values: Any) -> bytes:
        parts: list[bytes] = []
        for value in values:
            self._pack_value(value, parts)
        return b"".join(parts)

    def _pack_value(self, value: Any, parts: list[bytes]) -> None:
        if value is None:
            parts.append(b"\xc0")
        elif value is True or value is False:
            parts.append(b"\xc3" if value else b"\xc2")
        elif isinstance(value, int | float):
            parts.append(_packed_number(value))
        elif isinstance(value, bytes):
            parts.append(_packed_head(len(value), 0xA0, 31, (0xD9, 0xDA, 0xDB)))
            parts.append(value)
        else:
            pairs = list(value.items())
            count = len(pairs)
            if all(type(key) is int and 1 <= key <= count for key, _ in pairs):
                parts.append(_packed_head(count, 0x90, 15, (0, 0xDC, 0xDD)))
                for i in range(1, count + 1):
                    self._pack_value(value[i], parts)
            else:
                parts.append(_packed_head(count, 0x80, 15, (0, 0xDE, 0xDF)))
                for key, part in pairs:
                    self._pack_value(key, parts)
                    self._pack_value(part, parts)

    def _msgunpack(self, data: bytes) -> Any:
        found: list[Any] = []
        at = 0
        while at < len(data):
            value, at = self._unpack_value(data, at)
            found.append(value)
        return tuple(found)

    def _unpack_value(self, data: bytes, at: int) -> tuple[Any, int]:
        try:
            return self._unpack_checked(data, at)
        except (IndexError, struct.error):
            raise ReplyError("ERR user_script: Missing bytes in input.") from None

    def _unpack_checked(self, data: bytes, at: int) -> tuple[Any, int]:
        head = data[at]
        at += 1
        if head < 0x80:
            return head, at
        if head >= 0xE0:
            return head - 0x100, at
        if head in _PLAIN:
            return _PLAIN[head], at
        if head in _NUMBERS:
            form = _NUMBERS[head]
            (number,) = struct.unpack_from(form, data, at)
            return number, at + struct.calcsize(form)
        kind, count, at = _unpacked_head(head, data, at)
        if kind == "text":
            if at + count > len(data):
                raise IndexError
            return data[at : at + count], at + count
        made = self._lua.table()
        for i in range(1, count + 1):
            key: Any = i
            if kind == "map":
                key, at = self._unpack_value(data, at)
            made[key], at = self._unpack_value(data, at)
        return made, at


def _argument(value: Any) -> bytes:
    """As Redis turns what a script passes to a command into text."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ReplyError("ERR Lua redis() command arguments must be strings or integers")
    return b"%.17g" % value


_PLAIN: Final = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS: Final = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_HEADS: Final = {
    0xD9: ("text", ">B"),
    0xDA: ("text", ">H"),
    0xDB: ("text", ">I"),
    0xDC: ("list", ">H"),
    0xDD: ("list", ">I"),
    0xDE: ("map", ">H"),
    0xDF: ("map", ">I"),
}


def _unpacked_head(head: int, data: bytes, at: int) -> tuple[str, int, int]:
    if head in _HEADS:
        kind, form = _HEADS[head]
        (count,) = struct.unpack_from(form, data, at)
        return kind, count, at + struct.calcsize(form)
    if head < 0x90:
        return "map", head & 0x0F, at
    if head < 0xA0:
        return "list", head & 0x0F, at
    if head < 0xC0:
        return "text", head & 0x1F, at
    raise ReplyError("ERR user_script: Bad data format in input.")


def _packed_number(value: int | float) -> bytes:
    if value != int(value):
        single = struct.pack(">f", value)
        is_exact = struct.unpack(">f", single)[0] == value
        return b"\xca" + single if is_exact else b"\xcb" + struct.pack(">d", value)
    number = int(value)
    if number >= 0:
        if number < 0x80:
            return bytes((number,))
        for head, form, top in ((0xCC, ">B", 8), (0xCD, ">H", 16), (0xCE, ">I", 32)):
            if number < 1 << top:
                return bytes((head,)) + struct.pack(form, number)
        return b"\xcf" + struct.pack(">Q", number)
    if number >= -32:
        return struct.pack(">b", number)
    for head, form, top in ((0xD0, ">b", 7), (0xD1, ">h", 15), (0xD2, ">i", 31)):
        if number >= -(1 << top):
            return bytes((head,)) + struct.pack(form, number)
    return b"\xd3" + struct.pack(">q", number)


def _packed_head(count: int, short: int, short_max: int, heads: tuple[int, int, int]) -> bytes:
    if count <= short_max:
        return bytes((short | count,))
    if heads[0] and count < 1 << 8:
        return bytes((heads[0], count))
    if count < 1 << 16:
        return bytes((heads[1],)) + struct.pack(">H", count)
    return bytes((heads[2],)) + struct.pack(">I", count)


# ── struct ───────────────────────────────────────────────────────────────────────────

_SIZES: Final = {"b": 1, "B": 1, "h": 2, "H": 2, "d": 8}


@cache
def _items(form: bytes) -> tuple[tuple[str, int], ...]:
    """The items of a format such as `<ddI4c0`, little-endian throughout."""
    text = form.decode()
    assert text.startswith("<"), f"struct format {text!r}"
    found: list[tuple[str, int]] = []
    i = 1
    while i < len(text):
        kind = text[i]
        i += 1
        digits = ""
        while i < len(text) and text[i].isdigit():
            digits += text[i]
            i += 1
        assert kind in "bBhHdIc", f"struct format {text!r}"
        found.append((kind, int(digits) if digits else _SIZES.get(kind, 4)))
    return tuple(found)


def _pack(form: bytes, *values: Any) -> bytes:
    parts: list[bytes] = []
    rest = iter(values)
    for kind, size in _items(form):
        value = next(rest)
        if kind == "d":
            parts.append(struct.pack("<d", value))
        elif kind == "c":
            parts.append(value[:size] if size else value)
        else:
            parts.append((int(value) % (1 << 8 * size)).to_bytes(size, "little"))
    return b"".join(parts)


def _unpack(form: bytes, data: bytes, position: float = 1) -> tuple[Any, ...]:
    at = int(position) - 1
    found: list[Any] = []
    for kind, size in _items(form):
        if kind == "c" and not size:
            # The number before it is its length.
            size = int(found.pop())
        if at + size > len(data):
            raise ReplyError("ERR user_script: bad argument #2 to 'unpack' (data string too short)")
        piece = data[at : at + size]
        at += size
        if kind == "c":
            found.append(piece)
        elif kind == "d":
            found.append(struct.unpack("<d", piece)[0])
        else:
            found.append(int.from_bytes(piece, "little", signed=kind in "bh"))
    return (*found, at + 1)


@cache
def interpreter() -> Interpreter:
    """That of this process."""
    return Interpreter()
