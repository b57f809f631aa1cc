"""The ASGI application: routes, with the same checks in the same order around each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Scope

from lockfast.core import commands as c
from lockfast.errors import StoreMisconfiguredError, UnsupportedError
from lockfast.server.audit import AuditLog, Refusals, Sender
from lockfast.server.border import LOOPBACK_HOSTS, Border
from lockfast.server.config import Config, Policy
from lockfast.server.counters import Counters
from lockfast.server.dashboard.panels import Panel
from lockfast.server.dashboard.routes import Dashboard
from lockfast.server.endpoints import Endpoints
from lockfast.server.event_log import EventLog
from lockfast.server.identity import Authentication, Identity, Refusal
from lockfast.server.node_endpoints import NodeEndpoints
from lockfast.server.node_service import NodeHost, NodeOptions
from lockfast.server.problems import (
    DRAINING,
    INVALID,
    NOT_FOUND,
    Problem,
    forbidden,
    over_quota,
    problem_of,
    unauthorized,
)
from lockfast.server.quotas import UsageTable
from lockfast.server.rights import EVERYTHING
from lockfast.server.service import Caller, Service
from lockfast.stores.lockserver.routes import ROUTES, Route
from lockfast.stores.registry import open_store, parse_url

logger = logging.getLogger(__name__)

NAMESPACES_MAX: Final = 1024
UPKEEP: Final = frozenset({c.Renew, c.Leave, c.Close})
"""Commands that keep or release what a client holds; they have their own rate limit."""

PATH_MAX: Final = 200
"""How much of a path is written to the audit log."""
PRINCIPAL: Final = "lockfast.principal"
"""The key of an ASGI scope under which the authenticated principal is kept for the audit log."""

Endpoint = Callable[[Request], Awaitable[Response]]


class LockServer:
    """A server over one store: its namespaces, principals and streams."""

    def __init__(
        self,
        store_url: str,
        config: Config,
        authentication: Authentication,
        panels: Iterable[Panel] = (),
        node: NodeOptions | None = None,
    ) -> None:
        self._store_url = store_url
        parsed = parse_url(store_url)
        if parsed.scheme.startswith("http"):
            raise StoreMisconfiguredError(
                parsed.label, "is a Lockfast server itself", "name its store with --store"
            )
        if parsed.scheme.endswith("+cluster") or parsed.scheme.startswith("sharded+"):
            # The server's clients do not know the shards, and their sessions would span several.
            raise UnsupportedError(
                "a lock server over shards",
                f"{parsed.label} spreads locks over shards, which only its own clients know",
                "let clients connect to the cluster, or give the server another store",
            )
        self._own_namespace = parsed.namespace
        self.label = parsed.label
        self.authentication = authentication
        self._policy = config.policy
        self._usages = UsageTable(lambda principal: self._policy.quotas_of(principal))
        self.audit = AuditLog(config.audit_log)
        self._refusals = Refusals(self.audit)
        self.draining = asyncio.Event()
        self.counters = Counters()
        self._services: dict[str, Service] = {}
        self._logs: dict[str, EventLog] = {}
        self.nodes = NodeHost(node) if node is not None else None
        endpoints = Endpoints(self, is_node=node is not None)
        self.dashboard = Dashboard(self, panels)
        routes = [self._route(route, endpoints) for route in ROUTES]
        routes += [
            StarletteRoute(path, self._guarded(endpoint, False), methods=[method])
            for method, path, endpoint in (*endpoints.others(), *self.dashboard.guarded())
        ]
        if self.nodes is not None:
            routes += [
                StarletteRoute(path, self._guarded(endpoint, upkeep, name), methods=[method])
                for method, path, endpoint, upkeep, name in NodeEndpoints(self, self.nodes).routes()
            ]
        routes += [
            StarletteRoute(path, self._open(endpoint), methods=["GET"])
            for path, endpoint in endpoints.public()
        ]
        routes += [
            StarletteRoute(path, self._open(endpoint), methods=[method])
            for method, path, endpoint in self.dashboard.public()
        ]
        app = Starlette(
            routes=routes,
            exception_handlers={HTTPException: self._not_found, Exception: self._failed},
            lifespan=self._lifespan,
        )
        # A redirect would name our scheme: behind a proxy with TLS, plain HTTP.
        app.router.redirect_slashes = False
        hosts = (*LOOPBACK_HOSTS, *config.hosts)
        self.app: ASGIApp = Border(
            app, hosts, self._note_refusal, insecure=authentication.anonymous
        )

    # ── namespaces ───────────────────────────────────────────────────────────────────

    def service(self, namespace: str) -> Service:
        """Return the service of a namespace; open its store on first use."""
        namespace = self._checked(namespace)
        found = self._services.get(namespace)
        if found is None:
            if len(self._services) >= NAMESPACES_MAX:
                raise over_quota(f"more than {NAMESPACES_MAX} namespaces on this server")
            store = open_store(self._url_of(namespace), "asyncio")
            found = self._services[namespace] = Service(store, store.caller_wire().send)
        return found

    def event_log(self, namespace: str) -> EventLog:
        namespace = self._checked(namespace)
        found = self._logs.get(namespace)
        if found is None:
            url = self._url_of(namespace)
            found = EventLog(lambda: open_store(url, "asyncio"), "lockfast serve (event log)")
            self._logs[namespace] = found
        return found

    def checked_namespace(self, request: Request) -> str:
        """Return the namespace that a request names; "" is the default. Raises Problem."""
        return self._checked(request.query_params.get("namespace", ""))

    def _checked(self, namespace: str) -> str:
        if not namespace or namespace in self._services:
            return namespace
        try:
            wanted = parse_url(self._store_url).in_namespace(namespace).namespace
        except StoreMisconfiguredError:
            raise Problem(422, INVALID, "namespace is malformed") from None
        if self._own_namespace and wanted not in ("", self._own_namespace):
            raise Problem(404, NOT_FOUND, "this server serves one namespace only")
        return wanted

    def _url_of(self, namespace: str) -> str:
        if self._own_namespace or not namespace:
            return self._store_url
        mark = "&" if "?" in self._store_url else "?"
        return f"{self._store_url}{mark}namespace={namespace}"

    async def check_node(self) -> None:
        """Open the node of the default namespace, if this server is one. Raises StoreError."""
        if self.nodes is not None:
            await self.nodes.node("").about()

    # ── callers ──────────────────────────────────────────────────────────────────────

    def caller(self, request: Request) -> Caller:
        """Return the principal that sends a request, and its rights. Raises Problem."""
        identity = self._identify(request)
        request.scope[PRINCIPAL] = identity.principal
        if self.authentication.anonymous:
            return Caller("", EVERYTHING, self._usages.of(""))
        namespace = self.checked_namespace(request)
        rights = self._policy.rights.of(identity.principal, namespace or self._own_namespace)
        if not rights.any():
            raise forbidden(f"{identity.principal} has no rights in this namespace")
        return Caller(identity.principal, rights, self._usages.of(identity.principal))

    def _identify(self, request: Request) -> Identity:
        try:
            return self.authentication.identify(request)
        except Refusal as refusal:
            self.note_refused_login(request, refusal)
            raise unauthorized() from None

    def may_stream(self, caller: Caller) -> None:
        """Raise Problem if the caller may not open another stream now."""
        if self.draining.is_set():
            raise Problem(503, DRAINING)
        caller.usage.may_stream()

    def note_login(self, request: Request, principal: str) -> None:
        """Write a login to the audit log."""
        sender = Sender(_address(request.scope), principal)
        self.audit.write("login", path=_path(request.scope), **sender.values())

    def note_refused_login(self, request: Request, refusal: Exception) -> None:
        """Write a refused login to the audit log."""
        scope = request.scope
        sender = Sender(_address(scope))
        self._refusals.write("login refused", sender, why=str(refusal), path=_path(scope))

    def set_policy(self, policy: Policy) -> None:
        """Replace rights and quotas."""
        self._policy = policy
        self._usages.set_quotas()
        self.audit.write("rights reloaded")

    # ── requests ─────────────────────────────────────────────────────────────────────

    def _route(self, route: Route, endpoints: Endpoints) -> StarletteRoute:
        path = route.path.replace("{name}", "{name:path}")
        is_upkeep = route.command in UPKEEP
        endpoint = self._guarded(endpoints.command(route), is_upkeep, route.command.__name__)
        return StarletteRoute(path, endpoint, methods=[route.method])

    def _guarded(
        self,
        endpoint: Callable[[Request, Caller], Awaitable[Response]],
        is_upkeep: bool,
        name: str = "other",
    ) -> Endpoint:
        async def guarded(request: Request) -> Response:
            response = await answered(request)
            self.counters.answered(name, response.status_code)
            return response

        async def answered(request: Request) -> Response:
            try:
                caller = self.caller(request)
                with caller.usage.request(is_upkeep):
                    return await endpoint(request, caller)
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:
                return self._refused(request, error)

        return guarded

    def _open(self, endpoint: Endpoint) -> Endpoint:
        """Wrap an endpoint that needs no credentials."""

        async def opened(request: Request) -> Response:
            try:
                return await endpoint(request)
            except Exception as error:
                return self._refused(request, error)

        return opened

    def _refused(self, request: Request, error: Exception) -> Response:
        problem = problem_of(error)
        if problem.status == 403:
            self._note_refusal(request.scope, problem)
        elif problem.status >= 500:
            logger.warning("%s: %s", request.url.path, error, exc_info=problem.status == 500)
        return problem.response()

    def _note_refusal(self, scope: Scope, problem: Problem) -> None:
        sender = Sender(_address(scope), scope.get(PRINCIPAL, ""))
        values = {"kind": problem.kind, "why": problem.detail, "path": _path(scope)}
        self._refusals.write("request refused", sender, **values)

    async def _not_found(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            headers = dict(error.headers or {})
            return Problem(405, NOT_FOUND, "this method is not allowed", headers=headers).response()
        return Problem(error.status_code, NOT_FOUND).response()

    async def _failed(self, request: Request, error: Exception) -> Response:
        return self._refused(request, error)

    # ── start and end ────────────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await self.close()

    def gauges(self) -> dict[str, int]:
        """Return the current values for metrics."""
        return {
            "namespaces": len(self._services),
            "listening_sessions": sum(len(one.wakes) for one in self._services.values()),
            "draining": int(self.draining.is_set()),
        }

    def drain(self) -> None:
        """Report not ready from now on, and ask streams to reconnect elsewhere."""
        self.draining.set()

    async def close(self) -> None:
        """Close the stores. Sessions stay alive in the store."""
        await self.dashboard.close()
        for log in self._logs.values():
            await log.close()
        for service in self._services.values():
            service.wakes.close()
            service.store.close()
        self._services.clear()
        if self.nodes is not None:
            self.nodes.close()
        self._refusals.summarize()
        self.audit.close()


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else "unix"


def _path(scope: Scope) -> str:
    return str(scope.get("path", ""))[:PATH_MAX]
