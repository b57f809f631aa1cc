"""The codec of commands and replies: it keeps every value and validates its input."""

from __future__ import annotations

import json
import random

import pytest

from lockfast.conformance.commands import Commands
from lockfast.core import commands as c
from lockfast.core.codec import CodecError, decode_command, decode_reply, encode
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.table import Table
from lockfast.sim.promises import NOTHING, snapshot


def conversation(seed: int, steps: int) -> list[tuple[c.Command, c.Reply]]:
    """Random commands and the table's replies to them."""
    table, commands, seen = Table(MemoryRows()), Commands(seed, None), NOTHING
    said = []
    for _ in range(steps):
        step = commands.next(seen)
        command = step.command
        if isinstance(command, c.Renew):
            command = command._replace(count=max(0, command.count))
        reply, _ = table.apply(command, step.now_ms, step.wall_us)
        said.append((command, reply))
        seen = snapshot(table, step.now_ms, step.wall_us, seen)
    return said


@pytest.mark.parametrize("seed", range(6))
def test_what_is_written_is_read_again(seed: int) -> None:
    for command, reply in conversation(seed, 120):
        assert decode_command(encode(command)) == command
        assert decode_reply(encode(reply)) == reply


def test_every_kind_of_message_is_tried() -> None:
    said = [pair for seed in range(12) for pair in conversation(seed, 120)]
    assert len({type(command) for command, _ in said}) >= 18
    assert len({type(reply) for _, reply in said}) >= 12


def test_one_message_reads_as_the_docstring_says() -> None:
    place = c.Place("lock", "orders/42", "exclusive")
    assert json.loads(encode(c.Enter("s-1", 1, (place,), open=c.Open("s-1", 1000, "me")))) == {
        "v": 1,
        "Enter": {
            "session": "s-1",
            "n": 1,
            "places": [{"kind": "lock", "name": "orders/42", "mode": "exclusive"}],
            "open": {"session": "s-1", "ttl_ms": 1000, "owner": "me"},
        },
    }
    renewed = c.Renewed(True, ((1, c.Granted(17)), (2, c.Gone("revoked"))))
    assert json.loads(encode(renewed))["Renewed"]["looks"] == [
        [1, {"Granted": {"token": 17}}],
        [2, {"Gone": {"reason": "revoked"}}],
    ]


WRONG = {
    "nothing": "",
    "no JSON": "{",
    "no object": "[]",
    "a null": "null",
    "no version": '{"Close":{"session":"s"}}',
    "another version": '{"v":2,"Close":{"session":"s"}}',
    "a version that is true": '{"v":true,"Close":{"session":"s"}}',
    "no message": '{"v":1}',
    "two messages": '{"v":1,"Close":{"session":"s"},"Claims":{"session":"s"}}',
    "an unknown message": '{"v":1,"Destroy":{"session":"s"}}',
    "a reply": '{"v":1,"Done":{}}',
    "a missing field": '{"v":1,"Close":{}}',
    "an unknown field": '{"v":1,"Close":{"session":"s","force":true}}',
    "a field twice": '{"v":1,"Close":{"session":"s","session":"t"}}',
    "fields in a list": '{"v":1,"Close":["s"]}',
    "a number for a text": '{"v":1,"Close":{"session":1}}',
    "a flag for a number": '{"v":1,"Look":{"session":"s","n":true}}',
    "a float": '{"v":1,"Look":{"session":"s","n":1.0}}',
    "no number": '{"v":1,"Look":{"session":"s","n":NaN}}',
    "a huge number": '{"v":1,"Look":{"session":"s","n":' + "9" * 400 + "}}",
    "a number of 5,000 digits": '{"v":1,"Look":{"session":"s","n":' + "9" * 5000 + "}}",
    "a negative claim number": '{"v":1,"Look":{"session":"s","n":-1}}',
    "a claim number too large": '{"v":1,"Look":{"session":"s","n":9007199254740993}}',
    "a negative number of a witness": (
        '{"v":1,"Break":{"session":"s","n":1,"witnesses":[{"session":"s","n":-1,"held":true}]}}'
    ),
    "a negative number in a list": '{"v":1,"Renew":{"session":"s","waiting":[1,-1]}}',
    "a negative number in a pair": (
        '{"v":1,"Break":{"session":"s","n":1,"witnesses":[],"ahead_of":["t",-1]}}'
    ),
    "a number below": '{"v":1,"Look":{"session":"s","n":-1152921504606846977}}',
    "a number for a flag": '{"v":1,"Watch":{"session":"s","on":1}}',
    "a lone surrogate": '{"v":1,"Close":{"session":"\\ud800"}}',
    "deep": '{"v":1,"Close":{"session":' + "[" * 100_000 + "]" * 100_000 + "}}",
    "no list": '{"v":1,"Renew":{"session":"s","waiting":{}}}',
    "a list of others": '{"v":1,"Renew":{"session":"s","waiting":["x"]}}',
    "too long a list": '{"v":1,"Renew":{"session":"s","waiting":[' + "1," * 100_000 + "1]}}",
    "half a pair": '{"v":1,"Break":{"session":"s","n":1,"witnesses":[],"ahead_of":["s"]}}',
    "too large": '{"v":1,"Close":{"session":"' + "s" * (1 << 20) + '"}}',
}


@pytest.mark.parametrize("what", WRONG)
def test_anything_else_is_refused(what: str) -> None:
    with pytest.raises(CodecError):
        decode_command(WRONG[what])


@pytest.mark.parametrize("token", [0, -1, 2**53 + 1])
def test_a_token_that_no_store_gives_is_refused(token: int) -> None:
    with pytest.raises(CodecError):
        decode_reply(f'{{"v":1,"Granted":{{"token":{token}}}}}')


def test_bytes_that_are_not_utf_8_are_refused() -> None:
    with pytest.raises(CodecError):
        decode_reply(b'{"v":1,"Gone":{"reason":"\xff"}}')


@pytest.mark.parametrize("seed", range(4))
def test_damage_raises_no_other_error(seed: int) -> None:
    """Truncated, repeated and changed bytes decode to some message or are refused."""
    chance = random.Random(seed)
    texts = [encode(message).encode() for pair in conversation(seed, 60) for message in pair]
    for _ in range(2_000):
        text = bytearray(chance.choice(texts))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(text))
            text[at : at + chance.choice((0, 1, 1, 8))] = chance.choice(
                (b"", b"x", b'"', b"{}", b"[]", b"-1", b"null", b"1e9", b"\xff", b"9" * 30)
            )
            if not text:
                break
        for decode in (decode_command, decode_reply):
            try:
                decode(bytes(text))
            except CodecError:
                pass
