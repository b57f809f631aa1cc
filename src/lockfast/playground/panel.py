"""What the playground adds to the dashboard of its server: files and endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response

from lockfast.playground.drawing import LEGEND
from lockfast.playground.scene import BOUNDS, CommandError, Scene
from lockfast.server.dashboard.panels import Guarded, Panel
from lockfast.server.problems import INVALID, Problem
from lockfast.server.requests import json_body, json_response, stream_response
from lockfast.server.streams import SSE, as_sse

if TYPE_CHECKING:
    from lockfast.server.service import Caller

ADDRESS: Final = "/playground"
LIVELY_S: Final = 0.2
"""How often the state is sent while workers run, so that the timeline moves."""
IDLE_S: Final = 1.0
LEAST_S: Final = 0.05
"""The shortest pause between two states."""


def make_panel(scene: Scene) -> Panel:
    return Panel(ADDRESS, Path(__file__).with_name("static"), _Endpoints(scene).all())


class _Endpoints:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def all(self) -> tuple[tuple[str, str, Guarded], ...]:
        return (
            ("GET", f"{ADDRESS}/hello", self._hello),
            ("GET", f"{ADDRESS}/state", self._state),
            ("GET", f"{ADDRESS}/stream", self._stream),
            ("POST", f"{ADDRESS}/commands", self._command),
        )

    async def _hello(self, request: Request, caller: Caller) -> Response:
        """Return what never changes: the bounds of the settings, and the legend."""
        return json_response({"bounds": BOUNDS, "legend": LEGEND})

    async def _state(self, request: Request, caller: Caller) -> Response:
        return json_response(await asyncio.to_thread(self._scene.state))

    async def _stream(self, request: Request, caller: Caller) -> Response:
        caller.usage.may_stream()
        return stream_response(self._states(request, caller), SSE)

    async def _states(self, request: Request, caller: Caller) -> AsyncIterator[bytes]:
        """Yield the state after each change, and periodically as time passes."""
        scene = self._scene
        version = -1
        with caller.usage.stream():
            while not await request.is_disconnected():
                state = await asyncio.to_thread(scene.state)
                yield as_sse({"what": "state", **state})
                await asyncio.sleep(LEAST_S)
                timeout = IDLE_S if scene.is_idle else LIVELY_S
                version = await asyncio.to_thread(scene.wait_for_change, version, timeout)

    async def _command(self, request: Request, caller: Caller) -> Response:
        body = await json_body(request)
        if not isinstance(body, dict) or not isinstance(body.get("command"), str):
            raise Problem(422, INVALID, "the body needs command")
        try:
            # Some commands wait for a worker to end.
            await asyncio.to_thread(self._scene.do, body.pop("command"), body)
        except CommandError as error:
            raise Problem(422, INVALID, str(error)) from None
        return json_response({})
