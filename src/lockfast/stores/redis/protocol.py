"""Encode what is sent to the server and decode its answers: the store without its sockets.

Each command is one call of one script, with the keys of the namespace. The wires of both APIs share
this; a simulator can run `script_of(type(command)).body` with `keys` and `arguments(command)` in a
Lua interpreter and pass the answer to `reply`.
"""

from __future__ import annotations

from typing import Any

from lockfast.core.commands import Command, Reply
from lockfast.errors import StoreError
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.codec import ENCODERS, PLAIN, AnswerError, reply_to
from lockfast.stores.redis.confirmation import Confirmation
from lockfast.stores.redis.errors import translate
from lockfast.stores.redis.resp import pack, pack_four
from lockfast.stores.redis.scripts import keys_of, script_of
from lockfast.stores.stream import unreadable


class ScriptProtocol:
    """Commands to one namespace, as script calls."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.keys = keys_of(address.namespace)
        self.confirmation = Confirmation(address.label, address.wait) if address.wait else None
        self._heads: dict[type, bytes] = {}

    def arguments(self, command: Command) -> tuple[str | int, ...]:
        """Return ARGV of the command's script."""
        kind: type = type(command)
        plainly = PLAIN.get(kind)
        plain = plainly(command) if plainly is not None else None
        return plain or ENCODERS[kind](command)

    def packed(self, command: Command, clock: str = "") -> bytes:
        """Return the encoded command; only tests pass a `clock`."""
        kind: type = type(command)
        plainly = PLAIN.get(kind)
        plain = plainly(command) if plainly is not None else None
        if plain is None or clock:
            return pack(*self._call(kind, clock), *(plain or ENCODERS[kind](command)))
        # The part before the arguments of a plain claim never changes: pack it once.
        head = self._heads.get(kind)
        if head is None:
            nothing = pack_four("", "", "", "")
            head = self._heads[kind] = pack(*self._call(kind), "", "", "", "")[: -len(nothing)]
        return head + pack_four(*plain)

    def _call(self, kind: type, clock: str = "") -> tuple[str | bytes | int, ...]:
        keys: tuple[str | bytes, ...] = (*self.keys, clock) if clock else self.keys
        return ("EVALSHA", script_of(kind, self.address.layout).sha, len(keys), *keys)

    def loading(self, command: Command) -> bytes:
        """Return the command that loads the script, for a server that does not have it."""
        kind: type = type(command)
        return pack("SCRIPT", "LOAD", script_of(kind, self.address.layout).body)

    def reply(self, command: Command, found: Any) -> Reply:
        """Return the reply in the server's answer.

        Raises the error for an error reply, and OutcomeUnknownError if the answer is not one of
        this command's script.
        """
        if isinstance(found, Exception):
            raise self.error(found)
        try:
            return reply_to(command, found)
        except AnswerError as error:
            raise unreadable(self.address.label, error) from error

    def error(self, reply: Exception) -> StoreError:
        return translate(str(reply), self.address.label)
