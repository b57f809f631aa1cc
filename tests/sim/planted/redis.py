"""Bugs planted in the Redis store's Lua scripts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from lockfast.stores.redis import scripts
from tests.sim.planted.bugs import MisfitError, bug, replace


def edit(stack: ExitStack, part: str, right: str, wrong: str) -> None:
    """Replace text in one part of the scripts."""
    source = (scripts.FOLDER / f"{part}.lua").read_text(encoding="utf-8")
    if source.count(right) != 1:
        raise MisfitError(f"{part}.lua has {right!r} {source.count(right)} times")
    whole, edited = scripts._text, part

    def wrong_text(part: str, definitions: Mapping[str, object]) -> str:
        text = whole(part, definitions)
        return text.replace(right, wrong) if part == edited else text

    replace(stack, scripts, "_text", wrong_text)
    scripts.script_of.cache_clear()
    stack.callback(scripts.script_of.cache_clear)


def define(stack: ExitStack, name: str, wrong: str) -> None:
    """Replace one of the scripts' definitions."""
    if name not in scripts._DEFINITIONS:
        raise MisfitError(f"the scripts define no {name}")
    right = scripts._DEFINITIONS[name]
    scripts._DEFINITIONS[name] = wrong
    scripts.script_of.cache_clear()

    def restore() -> None:
        scripts._DEFINITIONS[name] = right
        scripts.script_of.cache_clear()

    stack.callback(restore)


@bug("redis: token from the counter alone", promise="tokens", store="redis")
def _(stack: ExitStack) -> None:
    define(stack, "NEXT_TOKEN", "token = token + 1")


@bug("redis: a clock of whole seconds", promise="exclusion", store="redis")
def _(stack: ExitStack) -> None:
    define(
        stack,
        "READ_CLOCK",
        "local time = call('TIME')\n"
        "wall_us = time[1] * 1000000 + time[2]\n"
        "now_ms = math.floor(wall_us / 1000000 + 0.5) * 1000",
    )


@bug("redis: a keep-alive that is not stored", promise="exclusion", store="redis")
def _(stack: ExitStack) -> None:
    edit(stack, "renew", "  session.deadline_ms = now_ms + session.ttl_ms\n", "")


@bug("redis: permits weighed as one", promise="exclusion", store="redis")
def _(stack: ExitStack) -> None:
    edit(stack, "lines", "(reserved.permit or 0) + place[4] <=", "(reserved.permit or 0) + 1 <=")


@bug("redis: a reader overtakes a waiting writer", promise="order", store="redis")
def _(stack: ExitStack) -> None:
    edit(
        stack,
        "lines",
        "  if resource.waiting > 0 then\n    local prefix = line_prefix('w', place)",
        "  if resource.waiting > 0 and place[3] ~= 'shared' then\n"
        "    local prefix = line_prefix('w', place)",
    )


@bug("redis: the last to come is the first to be served", promise="order", store="redis")
def _(stack: ExitStack) -> None:
    edit(stack, "enter", "rank_of(entered_ms - head_start_ms,", "rank_of(4e12 - now_ms,")


@bug("redis: a writer beside readers after its upgrade", promise="exclusion", store="redis")
def _(stack: ExitStack) -> None:
    edit(
        stack,
        "lines",
        "    if resource.holders > 1 then\n      return\n    end\n    local claim = get_claim(",
        "    local claim = get_claim(",
    )


@bug("redis: a window that does not close", promise="window", store="redis")
def _(stack: ExitStack) -> None:
    edit(stack, "lines", "local function close_for(place, span_ms)\n", _CLOSES_NOTHING)


_CLOSES_NOTHING = "local function close_for(place, span_ms)\n  span_ms = 0\n"
