"""The HTTP API as data: which request executes which command. Client and server share it.

A command's fields are in the path where the path names them; the others are in the query of a
GET request and in a JSON object in the body of any other. Fields with their default value may be
omitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, get_type_hints
from urllib.parse import quote, urlencode

from lockfast.core import commands as c
from lockfast.core.codec import CodecError, command_of, encode_fields, fields_of

ROOT: Final = "/v1"
BODY_MAX: Final = 64 * 1024
"""The largest body of a request."""


class Route(NamedTuple):
    method: str
    path: str
    command: type
    summary: str

    @property
    def in_path(self) -> tuple[str, ...]:
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    @property
    def uses_query(self) -> bool:
        return self.method == "GET"


_SESSION: Final = f"{ROOT}/sessions/{{session}}"
_CLAIM: Final = f"{_SESSION}/claims/{{n}}"

ROUTES: Final = (
    Route("PUT", _CLAIM, c.Enter, "Enter the queues of one or several locks"),
    Route("DELETE", _CLAIM, c.Leave, "Release a lock, or leave its queue"),
    Route("GET", _CLAIM, c.Look, "Read the state of a claim"),
    Route("POST", f"{_SESSION}/renewals", c.Renew, "Renew a session with all its claims"),
    Route("PUT", _SESSION, c.Open, "Open a session"),
    Route("DELETE", _SESSION, c.Close, "End a session and release its locks"),
    Route("GET", f"{_SESSION}/claims", c.Claims, "List the claims of a session"),
    Route("PUT", f"{_CLAIM}/mode", c.Convert, "Upgrade or downgrade a held lock"),
    Route("PUT", f"{_CLAIM}/value", c.Proclaim, "Change the value of a held claim"),
    Route("PUT", f"{_CLAIM}/actor", c.Adopt, "Assign a claim to another task or thread"),
    Route("POST", f"{_CLAIM}/contention", c.Contend, "Try to get a lock that has no queue"),
    Route("POST", f"{_CLAIM}/revocation", c.Revoke, "Take a lock from its holder"),
    Route("POST", f"{_CLAIM}/break", c.Break, "Break a deadlock"),
    Route("POST", f"{_SESSION}/revocation", c.RevokeSession, "End the session of another client"),
    Route("POST", f"{_SESSION}/expulsion", c.Expel, "End a session whose keep-alives stopped"),
    Route("PUT", f"{_SESSION}/watch", c.Watch, "Wake this session when the event log grows"),
    Route("GET", f"{ROOT}/sessions", c.Sessions, "List the sessions"),
    Route("GET", f"{ROOT}/locks", c.Listing, "List the locks in use"),
    Route("GET", f"{ROOT}/locks/{{kind}}/{{name}}", c.Inspect, "Show holders and queue of a lock"),
    Route("PUT", f"{ROOT}/limits/{{kind}}/{{name}}", c.Resize, "Change a semaphore's limit"),
    Route("GET", f"{ROOT}/events", c.Events, "Read the event log, or follow it as SSE"),
)

ROUTE_OF: Final[Mapping[type, Route]] = {route.command: route for route in ROUTES}


class Sent(NamedTuple):
    """A command, as a request."""

    method: str
    path: str
    """The path with its query, percent-encoded."""
    body: bytes


def request_of(command: c.Command) -> Sent:
    """Return the request that executes a command."""
    route = ROUTE_OF[type(command)]
    fields = fields_of(command)
    path = route.path
    place: Any = command.enter if isinstance(command, c.Contend) else command
    for name in route.in_path:
        fields.pop(name, None)
        path = path.replace(
            f"{{{name}}}", quote(str(getattr(place, name)), safe="/" * (name == "name"))
        )
    if not route.uses_query:
        return Sent(route.method, path, encode_fields(fields) if fields else b"")
    known = {name: value for name, value in fields.items() if value is not None}
    return Sent(route.method, f"{path}?{urlencode(known)}" if known else path, b"")


def command_from(
    route: Route, in_path: Mapping[str, str], query: Mapping[str, str], body: Any
) -> c.Command:
    """Return the command that a request means. Raises CodecError."""
    if route.uses_query:
        fields = _from_query(route.command, query)
    elif body is None:
        fields = {}
    elif isinstance(body, dict):
        fields = dict(body)
    else:
        raise CodecError(f"the body has to be an object with the fields of {_name(route)}")
    for name in route.in_path:
        if name in fields and str(fields[name]) != in_path[name]:
            raise CodecError(f"{name} is given in the path and differs in the body")
    at: dict[str, Any] = {
        name: _number(name, text) if name == "n" else text for name, text in in_path.items()
    }
    if route.command is c.Contend:
        entering = fields.get("enter")
        fields["enter"] = {**(entering if isinstance(entering, dict) else {}), **at}
    else:
        fields.update(at)
    opening = fields.get("open")
    if route.command is c.Enter and isinstance(opening, dict):
        fields["open"] = {"session": at["session"], **opening}
    if route.command is c.Listing:
        fields.setdefault("kind", "lock")
    if route.command is c.Events:
        fields.setdefault("after", None)
    if route.command is c.Enter:
        _expand(fields)
    command = command_of(route.command, fields)
    if isinstance(command, c.Enter) and command.open and command.open.session != command.session:
        raise CodecError("open.session has to be the session in the path")
    return command


def _expand(fields: dict[str, Any]) -> None:
    """Turn {"lock": NAME} and {"lock": NAME, "mode": MODE} into places."""
    if "lock" not in fields:
        return
    if "places" in fields:
        raise CodecError("give either lock or places")
    mode = fields.pop("mode", "exclusive")
    fields["places"] = [{"kind": "lock", "name": fields.pop("lock"), "mode": mode}]


def _from_query(kind: type, query: Mapping[str, str]) -> dict[str, Any]:
    hints = get_type_hints(kind, vars(c))
    return {
        name: text if hints.get(name) is str else _number(name, text)
        for name, text in query.items()
    }


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20):
        raise CodecError(f"{name} has to be an integer")
    return int(text)


def _name(route: Route) -> str:
    return route.command.__name__
