"""Requests to the cluster: the member that answers, the user's token, errors made typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import monotonic
from typing import Any, Final, Protocol, TypeAlias

from lockfast.errors import (
    OutcomeUnknownError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from lockfast.stores.etcd.address import Endpoint
from lockfast.stores.etcd.cluster import Cluster
from lockfast.stores.etcd.errors import TokenRefusedError, translate
from lockfast.stores.etcd.http import Response, request
from lockfast.stores.etcd.requests import AUTHENTICATE, TXN, Json
from lockfast.stores.etcd.rows import decode, encode

ATTEMPTS: Final = 3
"""A request has this many tries in its time: a member that has stopped answers none. With one
member there is one try: whoever is slow gets no quicker by being asked again."""
ATTEMPT_S_MIN: Final = 0.1
ATTEMPT_S_MAX: Final = 1.5


Enough: TypeAlias = Callable[[bytes], bool]
"""Takes the next piece of a reply that may never end; True when no more is needed."""


class Transport(Protocol):
    """A face's way to send bytes to a member and receive its reply."""

    async def exchange(
        self, endpoint: Endpoint, packed: bytes, until_s: float, enough: Enough | None = None
    ) -> Response:
        """The whole reply, or as soon as what has come is `enough`.

        Raises StoreUnavailableError if it surely was not sent, else OutcomeUnknownError.
        """
        ...

    async def pause(self, seconds: float) -> None:
        """Let others go first."""
        ...

    def close(self) -> None: ...


class Gateway:
    """The JSON gateway of whichever member answers."""

    def __init__(self, cluster: Cluster, transport: Transport) -> None:
        self.cluster = cluster
        self.transport = transport

    async def txn(self, body: Json | bytes, until_s: float, *, repeatable: bool = False) -> Json:
        """One transaction; `repeatable` if it only reads."""
        return await self.call(TXN, body, until_s, repeatable=repeatable)

    async def stream(self, path: str, body: Json, until_s: float, enough: Enough) -> None:
        """Read a reply that does not end by itself, until it is enough; tried once."""
        data = json.dumps(body).encode()
        endpoint = self.cluster.endpoint
        packed = request(str(endpoint), path, data, *self.headers())
        response = await self.transport.exchange(endpoint, packed, until_s, enough)
        if response.status != 200:
            raise translate(self.cluster.label, response.status, response.body)

    async def call(
        self, path: str, body: Json | bytes, until_s: float, *, repeatable: bool = True
    ) -> Json:
        """Ask one member after the other until one answers.

        Raises StoreUnavailableError if it surely was not done, OutcomeUnknownError if it may
        have been and is not `repeatable`.
        """
        cluster = self.cluster
        now_s = monotonic()
        attempt_s = until_s - now_s
        if len(cluster.failures) > 1:  # else there is nobody to turn to
            attempt_s = min(max(attempt_s / ATTEMPTS, ATTEMPT_S_MIN), ATTEMPT_S_MAX)
        data = body if isinstance(body, bytes) else encode(body).encode()
        failed = 0
        while True:
            endpoint = cluster.endpoint
            try:
                return await self._ask(
                    endpoint, path, data, min(until_s, now_s + attempt_s), until_s
                )
            except StoreMisconfiguredError:
                raise
            except (StoreUnavailableError, OutcomeUnknownError) as error:
                cluster.suspect(endpoint)
                now_s = monotonic()
                failed += 1
                in_doubt = isinstance(error, OutcomeUnknownError)
                if in_doubt and not repeatable:
                    raise
                last = failed >= len(cluster.address.endpoints) and not in_doubt
                if last or now_s >= until_s or failed >= ATTEMPTS * len(cluster.failures):
                    if in_doubt:
                        raise StoreUnavailableError(
                            error.store, error.what, error.advice
                        ) from error
                    raise

    async def _ask(
        self, endpoint: Endpoint, path: str, data: bytes, attempt_s: float, until_s: float
    ) -> Json:
        try:
            return await self._once(endpoint, path, data, attempt_s)
        except TokenRefusedError:
            self.cluster.token = ""
        try:
            return await self._once(endpoint, path, data, until_s)
        except TokenRefusedError as error:
            raise StoreUnavailableError(
                self.cluster.label, f"refuses a new token ({error})"
            ) from None

    async def _once(self, endpoint: Endpoint, path: str, data: bytes, until_s: float) -> Json:
        if self.cluster.address.username and not self.cluster.token:
            await self._authenticate(endpoint, until_s)
        packed = request(str(endpoint), path, data, *self.headers())
        response = await self.transport.exchange(endpoint, packed, until_s)
        return self.answer(response)

    def headers(self) -> tuple[str, ...]:
        token = self.cluster.token
        return (f"Authorization: {token}",) if token else ()

    async def _authenticate(self, endpoint: Endpoint, until_s: float) -> None:
        address = self.cluster.address
        credentials = {"name": address.username, "password": address.password}
        data = json.dumps(credentials).encode()
        packed = request(str(endpoint), AUTHENTICATE, data)
        try:
            answer = self.answer(await self.transport.exchange(endpoint, packed, until_s))
        except OutcomeUnknownError as error:
            raise StoreUnavailableError(error.store, error.what, error.advice) from error
        self.cluster.token = str(answer["token"])

    def answer(self, response: Response) -> Json:
        """What a reply says; an error reply is raised."""
        label = self.cluster.label
        if response.status != 200:
            raise translate(label, response.status, response.body)
        try:
            found: Any = decode(response.body.decode())
            found = found.get("result", found)
            self.cluster.learn(found["header"])
        except (ValueError, AttributeError, KeyError, TypeError):
            said = response.body[:80].decode(errors="replace")
            raise StoreError(label, f"answered {said!r}, which is not etcd's gateway") from None
        answer: Json = found
        return answer
