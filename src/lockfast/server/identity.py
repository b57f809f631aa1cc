"""Who sends a request: a principal, by a bearer token, a login, a client certificate or a JWT.

Every failure looks the same to the client: 401. The audit log records the reason.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from starlette.requests import Request

from lockfast.server.logins import LoginRefused, Logins
from lockfast.server.tokens import PREFIX

PEER: Final = "lockfast.peer"
"""The scope's key for the principal from a verified client certificate."""


class Refusal(Exception):
    """A credential was not accepted; the reason is for the audit log only."""


class Identity(NamedTuple):
    principal: str
    by: str
    """How it was established: token, certificate, jwt, proxy or none."""


ANONYMOUS: Final = Identity("", "none")


class Verifier(Protocol):
    """Checks one kind of bearer credential."""

    def principal_of(self, credential: str) -> str:
        """Return the principal of a credential. Raises Refusal."""
        ...


class Authentication:
    """The credentials that this server accepts."""

    def __init__(
        self,
        tokens: Verifier | None = None,
        jwt: Verifier | None = None,
        *,
        certificates: bool = False,
        proxies: frozenset[str] = frozenset(),
        proxy_header: str = "",
        anonymous: bool = False,
        logins: Logins | None = None,
    ) -> None:
        self._tokens = tokens
        self._jwt = jwt
        self._certificates = certificates
        self._proxies = proxies
        self._proxy_header = proxy_header
        self.anonymous = anonymous
        self.logins = logins if logins is not None else Logins()

    def identify(self, request: Request) -> Identity:
        """Return the identity that sends a request. Raises Refusal."""
        if self.anonymous:
            return ANONYMOUS
        values = request.headers.getlist("authorization")
        if len(values) > 1:
            raise Refusal("several Authorization headers")
        if values:
            scheme, _, credential = values[0].partition(" ")
            if scheme.lower() != "bearer":
                raise Refusal("the Authorization header is not a bearer token")
            return self.verify(credential.strip())
        try:
            sealed = self.logins.credential_in(request)
        except LoginRefused as refused:
            raise Refusal(str(refused)) from None
        if sealed is not None:
            return self.verify(sealed)
        peer = request.scope.get(PEER)
        if self._certificates and peer:
            return Identity(peer, "certificate")
        return self._proxied(request)

    def verify(self, credential: str) -> Identity:
        """Return the identity that a bearer credential proves. Raises Refusal."""
        if credential.startswith(PREFIX):
            if self._tokens is None:
                raise Refusal("tokens are not accepted here")
            return Identity(self._tokens.principal_of(credential), "token")
        if self._jwt is None:
            raise Refusal("not a token of this server")
        return Identity(self._jwt.principal_of(credential), "jwt")

    def _proxied(self, request: Request) -> Identity:
        if not self._proxy_header:
            raise Refusal("no credentials")
        names = request.headers.getlist(self._proxy_header)
        client = request.client.host if request.client is not None else ""
        if not names:
            raise Refusal("no credentials")
        if client not in self._proxies:
            raise Refusal(f"a proxy header from {client}, which is not a listed proxy")
        if len(names) > 1:
            raise Refusal("several proxy headers")
        return Identity(clean(names[0]), "proxy")


def clean(name: str) -> str:
    """Return a principal's name if it is valid in an owner label. Raises Refusal otherwise."""
    if not 1 <= len(name) <= 128 or not name.isprintable() or any(c in " []" for c in name):
        raise Refusal("the name of the principal has spaces, brackets or is too long")
    return name
