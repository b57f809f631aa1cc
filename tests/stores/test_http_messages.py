"""Replies of HTTP servers, however they are cut into pieces."""

from __future__ import annotations

import pytest

from lockfast.stores.http.messages import (
    BODY_MAX,
    HEAD_MAX,
    LineReader,
    ProtocolError,
    ReplyReader,
    Response,
    whole,
)

HEAD = b"HTTP/1.1 200 OK\r\n"
PLAIN = HEAD + b"Content-Length: 5\r\n\r\nhello"
CLOSING = HEAD + b"Content-Length: 5\r\nConnection: close\r\n\r\nhello"
EMPTY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n"

REPLIES = [
    pytest.param(PLAIN, Response(200, b"hello", True), id="plain"),
    pytest.param(CLOSING, Response(200, b"hello", False), id="closing"),
    pytest.param(EMPTY, Response(503, b"", True), id="empty"),
    pytest.param(CHUNKED, Response(200, b"hello", True), id="chunked"),
]


@pytest.mark.parametrize(("reply", "response"), REPLIES)
def test_a_reply_is_the_same_wherever_it_is_cut(reply: bytes, response: Response) -> None:
    for at in range(len(reply)):
        reader = ReplyReader()
        for piece in (reply[:at], reply[at:]):
            assert not reader.done
            if piece:
                reader.feed(piece)
        assert reader.done
        assert reader.response() == response


@pytest.mark.parametrize(("reply", "response"), REPLIES)
def test_a_reply_may_arrive_byte_by_byte(reply: bytes, response: Response) -> None:
    reader = ReplyReader()
    for at in range(len(reply)):
        assert not reader.done
        reader.feed(reply[at : at + 1])
    assert reader.done
    assert reader.response() == response


@pytest.mark.parametrize("reply", [PLAIN, CHUNKED], ids=["plain", "chunked"])
def test_what_follows_a_reply_is_kept(reply: bytes) -> None:
    reader = ReplyReader()
    reader.feed(reply + EMPTY)
    assert reader.done
    assert reader.rest() == EMPTY


def test_a_body_without_a_length_lasts_until_the_connection_closes() -> None:
    reader = ReplyReader()
    reader.feed(HEAD + b"\r\nhel")
    reader.feed(b"lo")
    assert not reader.done
    reader.feed(b"")
    assert reader.done
    assert reader.response() == Response(200, b"hello", False)


def test_only_a_plain_reply_in_one_piece_is_whole() -> None:
    assert whole(PLAIN) == Response(200, b"hello", True)
    for other in (CLOSING, EMPTY, CHUNKED, PLAIN + b"!", *(PLAIN[:at] for at in range(len(PLAIN)))):
        assert whole(other) is None


@pytest.mark.parametrize("reply", [PLAIN, EMPTY, CHUNKED], ids=["plain", "empty", "chunked"])
def test_a_reply_that_ends_early_is_an_error(reply: bytes) -> None:
    for at in range(len(reply)):
        reader = ReplyReader()
        if at:
            reader.feed(reply[:at])
        with pytest.raises(ProtocolError, match="in the middle" if at else "without a reply"):
            reader.feed(b"")


@pytest.mark.parametrize(
    "reply",
    [
        b"x" * (HEAD_MAX + 1),
        HEAD + b"x: " + b"x" * HEAD_MAX + b"\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: five\r\n\r\n",
        HEAD + b"Content-Length: %d\r\n\r\n" % (BODY_MAX + 1),
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nhello\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % (BODY_MAX + 1),
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * (HEAD_MAX + 1),
    ],
    ids=[
        *("head without end", "long head", "no HTTP", "HTTP/2", "negative length", "no number"),
        *(
            "long body",
            "negative chunk",
            "no hexadecimal",
            "no size",
            "long chunk",
            "chunk without end",
        ),
    ],
)
def test_what_is_no_reply_or_too_large_is_an_error(reply: bytes) -> None:
    with pytest.raises(ProtocolError):
        ReplyReader().feed(reply)


def test_lines_are_returned_as_they_become_complete() -> None:
    reader = LineReader()
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    assert reader.feed(head + b'b\r\n{"a":1}\n{"b\r\n') == [{"a": 1}]
    assert reader.feed(b'4\r\n":2}\r\n') == []
    assert not reader.done
    assert reader.feed(b"0\r\n\r\n") == [{"b": 2}]
    assert reader.done
