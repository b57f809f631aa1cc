"""The OpenAPI 3.1 description, derived from the route table and the command definitions."""

from __future__ import annotations

import types
from typing import Any, Final, Union, get_args, get_origin

from lockfast import __version__
from lockfast.core import commands as c
from lockfast.core.codec import hints_of
from lockfast.core.modes import MODES_OF_KIND
from lockfast.server.problems import MEDIA_TYPE
from lockfast.stores.lockserver.routes import ROOT, ROUTES, Route
from lockfast.stores.quorum.json_codec import NODE, PATHS, wakes_path

_JSON: Final = "application/json"
_NAMESPACE: Final = {
    "name": "namespace",
    "in": "query",
    "required": False,
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$"},
}


def document(*, is_node: bool = False) -> dict[str, Any]:
    """Return the description of a server, and of its node if it is one."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    for method, path, summary, body in _OTHERS:
        entry = _described(summary, path)
        if body is not None:
            entry["requestBody"] = {"content": {_JSON: {"schema": body}}, "required": True}
        paths.setdefault(path, {})[method] = entry
    if is_node:
        paths |= _node_paths()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Lockfast",
            "version": __version__,
            "description": "A distributed lock manager. Replies are the messages of "
            "lockfast.core.codec; refusals are problem documents (RFC 9457) with the "
            "same message in `reply`.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Problem": {
                    "type": "object",
                    "required": ["type", "title", "status"],
                    "properties": {
                        "type": {"type": "string"},
                        "title": {"type": "string"},
                        "status": {"type": "integer"},
                        "detail": {"type": "string"},
                        "reply": {"type": "object"},
                    },
                },
                **{kind.__name__: schema_of(kind) for kind in get_args(c.Reply)},
            },
        },
        "security": [{"bearer": []}],
    }


def _node_paths() -> dict[str, dict[str, Any]]:
    wakes = wakes_path("{session}")
    paths: dict[str, dict[str, Any]] = {
        NODE: {"get": _described("Describe this server as a node of a majority", NODE)},
        wakes: {"get": _described("Follow the wakes of a session of this node", wakes)},
    }
    for kind, path in PATHS.items():
        summary = f"Send {kind.__name__} to this node; clients of quorum+http:// do"
        entry = _described(summary, path)
        entry["requestBody"] = {"content": {_JSON: {"schema": schema_of(kind)}}, "required": True}
        paths[path] = {"post": entry}
    return paths


_OTHERS: Final[tuple[tuple[str, str, str, dict[str, Any] | None], ...]] = (
    (
        "post",
        f"{ROOT}/sessions",
        "Open a session whose id the server chooses",
        {
            "type": "object",
            "properties": {
                "ttl_ms": {"type": "integer", "default": 30000},
                "owner": {"type": "string"},
                "metadata": {"type": "string"},
            },
            "additionalProperties": False,
        },
    ),
    ("get", f"{ROOT}/sessions/{{session}}/wakes", "Follow the wakes of a session", None),
    (
        "post",
        f"{ROOT}/revocations",
        "Take a lock from all its holders",
        {
            "type": "object",
            "required": ["name", "reason"],
            "properties": {
                "kind": {"enum": list(MODES_OF_KIND)},
                "name": {"type": "string"},
                "reason": {"type": "string"},
                "by": {"type": "string"},
            },
            "additionalProperties": False,
        },
    ),
    ("get", f"{ROOT}/deadlocks", "List deadlocks", None),
    ("get", f"{ROOT}/wait-graph", "Show who waits for whom", None),
    ("get", f"{ROOT}/whoami", "Show the principal of the request", None),
    ("get", "/metrics", "Metrics in Prometheus' format", None),
    ("get", "/healthz", "Whether the process serves requests", None),
    ("get", "/readyz", "Whether the store answers", None),
    ("get", "/openapi.json", "This document", None),
)


def _operation(route: Route) -> dict[str, Any]:
    hints = hints_of(route.command)
    fields = {name: hint for name, hint in hints.items() if name not in route.in_path}
    found = _described(route.summary, route.path)
    found["operationId"] = route.command.__name__
    if route.command in (c.Enter, c.Look, c.Convert):
        found["parameters"].append(
            {
                "name": "Prefer",
                "in": "header",
                "required": False,
                "schema": {"type": "string", "pattern": "^wait=[0-9]{1,2}$"},
            }
        )
    if route.uses_query:
        found["parameters"] += [
            {"name": name, "in": "query", "required": False, "schema": _schema(hint)}
            for name, hint in fields.items()
        ]
    elif fields:
        schema = schema_of(route.command)
        properties = {k: v for k, v in schema["properties"].items() if k not in route.in_path}
        required = [name for name in schema["required"] if name not in route.in_path]
        body = {**schema, "properties": properties, "required": required}
        found["requestBody"] = {"content": {_JSON: {"schema": body}}, "required": bool(required)}
    return found


def _described(summary: str, path: str) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {
            "name": part[1:-1],
            "in": "path",
            "required": True,
            "schema": _PATH.get(part[1:-1], {"type": "string"}),
        }
        for part in path.split("/")
        if part.startswith("{")
    ]
    if path.startswith(ROOT):
        parameters.append(_NAMESPACE)
    problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
    return {
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "2XX": {"description": "Done, or under way", "content": {_JSON: {}, "text/plain": {}}},
            "4XX": {"description": "Refused", "content": {MEDIA_TYPE: problem}},
            "5XX": {"description": "The store failed", "content": {MEDIA_TYPE: problem}},
        },
    }


_PATH: Final[dict[str, dict[str, Any]]] = {
    "session": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"},
    "n": {"type": "integer", "minimum": 1},
    "kind": {"enum": list(MODES_OF_KIND)},
    "name": {"type": "string", "minLength": 1, "maxLength": 512},
}


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a message, as `core/codec.py` encodes it."""
    hints = hints_of(kind)
    return {
        "type": "object",
        "properties": {name: _schema(hint) for name, hint in hints.items()},
        "required": [name for name in kind._fields if name not in kind._field_defaults],
        "additionalProperties": False,
    }


def _schema(hint: Any) -> dict[str, Any]:
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        if len(kinds) > 1:
            return {"type": "object", "minProperties": 1, "maxProperties": 1}
        return {"anyOf": [_schema(kinds[0]), {"type": "null"}]}
    if get_origin(hint) is tuple:
        of = get_args(hint)
        if len(of) == 2 and of[1] is ...:
            return {"type": "array", "items": _schema(of[0])}
        return {"type": "array", "prefixItems": [_schema(item) for item in of]}
    return schema_of(hint)


_PLAIN: Final = {str: "string", int: "integer", bool: "boolean"}
