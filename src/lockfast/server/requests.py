"""Helpers for every endpoint: the JSON of a request's body, and responses."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from lockfast.core.codec import encode_fields, parse
from lockfast.server.problems import INVALID, SLOW, TOO_LARGE, Problem
from lockfast.stores.lockserver.routes import BODY_MAX

BODY_S: Final = 30.0
"""How long a body may take to arrive."""
DEPTH_MAX: Final = 32


def json_response(value: Any) -> Response:
    return Response(encode_fields(value), media_type="application/json")


def stream_response(lines: Any, media: str) -> Response:
    return StreamingResponse(lines, headers={"x-accel-buffering": "no"}, media_type=media)


async def json_body(request: Request, bytes_max: int = BODY_MAX) -> Any:
    """Return the JSON of a body, None if it is empty. Raises Problem if too large, deep or slow."""
    raw = await _body(request, bytes_max)
    if not raw:
        return None
    if len(raw) > BODY_MAX:
        return await asyncio.to_thread(_parsed, raw, bytes_max)
    return _parsed(raw, bytes_max)


async def _body(request: Request, bytes_max: int) -> bytes:
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                data += piece
                if len(data) > bytes_max:
                    raise Problem(413, TOO_LARGE, f"a body has at most {bytes_max} bytes")
    except TimeoutError:
        raise Problem(
            408, SLOW, f"a body has to arrive within {BODY_S:g} s", headers={"connection": "close"}
        ) from None
    return bytes(data)


def _parsed(raw: bytes, bytes_max: int) -> Any:
    if raw.count(b"[") + raw.count(b"{") > DEPTH_MAX and _depth(raw) > DEPTH_MAX:
        raise Problem(422, INVALID, f"the body is nested deeper than {DEPTH_MAX}")
    return parse(raw, bytes_max)


def _depth(raw: bytes) -> int:
    depth = deepest = 0
    in_text = escaped = False
    for byte in raw:
        if in_text:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_text = False
        elif byte == 0x22:
            in_text = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest
