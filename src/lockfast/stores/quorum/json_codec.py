"""The encoding of requests and answers as JSON, for nodes that are servers.

A request is the object of its fields, sent to the path that its name gives. Decoding is strict, as
in `core/codec.py`, from which the encoding is derived: what comes from a socket is input.
"""

from __future__ import annotations

from typing import Any, Final, cast

from lockfast.core.codec import encode_fields, fields_of, message_of, parse
from lockfast.stores.http.messages import BODY_MAX
from lockfast.stores.lockserver.routes import ROOT
from lockfast.stores.quorum import messages as m

NODE: Final = f"{ROOT}/node"
"""Where a server describes its node; its requests have paths below."""
PATHS: Final = {kind: f"{NODE}/{name}" for kind, name in m.NAMES.items()}
REQUEST_MAX: Final = 1 << 24
"""The largest request: a session may have tens of thousands of locks, which `Sync` lists."""


def wakes_path(session: str) -> str:
    return f"{NODE}/sessions/{session}/wakes"


def encode(message: m.Request | m.Answer | m.About) -> bytes:
    return encode_fields(fields_of(message))


def request_of(kind: type, fields: Any) -> m.Request:
    """Return the request with these fields. Raises CodecError."""
    return cast("m.Request", message_of(kind, fields))


def answer_to(request: m.Request, body: bytes) -> m.Answer:
    """Decode the answer to a request. Raises CodecError."""
    return cast("m.Answer", message_of(m.ANSWERS[type(request)], parse(body, BODY_MAX)))


def about_in(body: bytes) -> m.About:
    """Decode what a server says about its node. Raises CodecError."""
    return message_of(m.About, parse(body, BODY_MAX))
