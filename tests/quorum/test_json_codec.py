"""The JSON of requests and answers: nothing is lost, and nothing malformed gets through."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, get_args

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockfast.core.codec import CodecError, hints_of, parse
from lockfast.core.commands import Open
from lockfast.stores.quorum import messages as m
from lockfast.stores.quorum.json_codec import (
    NODE,
    PATHS,
    about_in,
    answer_to,
    encode,
    request_of,
)
from lockfast.stores.quorum.node import Node
from tests.quorum.servers import three_servers
from tests.quorum.test_reference import SKEW_US, START_US, STEPS, Script

NUMBERS = st.integers(0, 1 << 53)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
REQUESTS: tuple[Any, ...] = get_args(m.Request)
BYTES_MAX = 1 << 20


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of a field."""
    if hint is str:
        return TEXTS
    if hint is int:
        return NUMBERS
    if hint is bool:
        return st.booleans()
    of = get_args(hint)
    if type(None) in of:
        return st.none() | values_of(of[0])
    if of:
        return st.lists(values_of(of[0]), max_size=3).map(tuple)
    return messages_of(hint)


def messages_of(kind: Any) -> st.SearchStrategy[Any]:
    hints = hints_of(kind)
    return st.builds(kind, *(values_of(hints[name]) for name in kind._fields))


@given(st.one_of(*map(messages_of, REQUESTS)))
def test_a_request_is_decoded_as_it_was(request: Any) -> None:
    assert request_of(type(request), parse(encode(request), BYTES_MAX)) == request


@given(
    st.sampled_from(REQUESTS).flatmap(
        lambda kind: st.tuples(messages_of(kind), messages_of(m.ANSWERS[kind]))
    )
)
def test_an_answer_is_decoded_as_it_was(pair: tuple[Any, Any]) -> None:
    request, answer = pair
    assert answer_to(request, encode(answer)) == answer


@given(messages_of(m.About))
def test_what_a_node_says_about_itself_is_decoded_as_it_was(about: m.About) -> None:
    assert about_in(encode(about)) == about


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.one_of(*map(messages_of, REQUESTS)), st.data())
def test_a_damaged_request_is_refused_or_valid(request: Any, data: st.DataObject) -> None:
    """Replace or add one value anywhere: the decoder returns a request or raises CodecError."""
    fields = json.loads(encode(request))
    target = fields
    while True:
        inner = [value for value in target.values() if isinstance(value, dict)]
        if not inner or data.draw(st.booleans()):
            break
        target = inner[0]
    name = data.draw(st.sampled_from([*target, "new"]))
    target[name] = data.draw(PLAIN)
    kind: Any = type(request)
    try:
        found = request_of(kind, fields)
    except CodecError:
        return
    for value, hint in zip(found, hints_of(kind).values(), strict=True):
        if hint in (str, int, bool):
            assert type(value) is hint


# ── against the rules ────────────────────────────────────────────────────────────────


class Clock:
    """The wall clock of the nodes in this process."""

    us = START_US


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with (
        pytest.MonkeyPatch.context() as patch,
        three_servers(tmp_path_factory.mktemp("nodes"), skew_us=SKEW_US, count=1) as one,
    ):
        for place in ("stores.quorum.sqlite", "server.node_service"):
            patch.setattr(f"lockfast.{place}.wall_us", lambda: Clock.us)
        yield one.servers[0].base


def as_served(request: Any, wall_us: int) -> Any:
    """Return what a server passes on to its node."""
    opening: Any = request if isinstance(request, Open) else getattr(request, "open", None)
    if opening is not None:
        opening = opening._replace(inbox=opening.session, process="")
    if isinstance(request, Open):
        return opening
    if isinstance(request, m.Take):
        return request._replace(open=opening)
    if isinstance(request, m.Sync):
        claims = (
            c._replace(restore=c.restore and c.ballot <= wall_us + 2 * SKEW_US)
            for c in request.claims
        )
        return request._replace(open=opening, claims=tuple(claims))
    return request


@pytest.mark.parametrize("seed", range(3))
def test_a_server_answers_as_the_rules_say(server: str, seed: int) -> None:
    reference, requests = Node(SKEW_US), Script(seed)
    with httpx.Client(base_url=server, params={"namespace": f"seed-{seed}"}) as http:
        Clock.us = START_US
        assert http.get(NODE).json()["silent_ms"] == 0
        for step in range(STEPS):
            request = requests.next()
            if isinstance(request, m.Sync):
                request = request._replace(flight=max(0, request.flight))
            Clock.us = wall_us = requests.wall_us
            served = as_served(request, wall_us)
            expected, _ = reference.apply(served, wall_us // 1000, wall_us)
            response = http.post(PATHS[type(request)], json=json.loads(encode(request)))
            assert response.status_code == 200, response.text
            found = answer_to(request, response.content)
            assert found == expected, f"seed {seed}, step {step}: {request}"


def test_random_bytes_are_refused(server: str) -> None:
    rng = random.Random(7)
    headers = {"Content-Type": "application/json"}
    with httpx.Client(base_url=server, headers=headers) as http:
        for kind, path in PATHS.items():
            for _ in range(5):
                body = rng.randbytes(rng.randrange(40))
                assert http.post(path, content=body).status_code == 422, (kind, body)
