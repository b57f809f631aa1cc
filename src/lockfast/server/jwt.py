"""JWTs of an OpenID Connect provider, verified by PyJWT with the provider's published keys.

The keys come only from the configured https URL: `jku` and `x5u` in a token are ignored. A thread
fetches them, so no request waits for the provider. A token with an unknown key is refused and makes
the thread fetch the keys again, at most once every REFRESH_MIN_S.
"""

from __future__ import annotations

import json
import logging
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import jwt

from lockfast.errors import StoreMisconfiguredError
from lockfast.server.config import Jwt
from lockfast.server.identity import Refusal, clean

logger = logging.getLogger(__name__)

ASYMMETRIC: Final = frozenset(
    {f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512)} | {"EdDSA"}
)
REQUIRED: Final = ("exp", "iss", "aud", "sub")
PRINCIPAL: Final = "oidc:"
"""Prefix of the provider's names, so that none can be mistaken for a token's principal."""
REFRESH_S: Final = 300.0
REFRESH_MIN_S: Final = 10.0
FETCH_S: Final = 5.0
KEYS_MAX: Final = 1 << 20
LEEWAY_S: Final = 30


class JwtVerifier:
    def __init__(self, settings: Jwt) -> None:
        for algorithm in settings.algorithms:
            if algorithm not in ASYMMETRIC:
                raise StoreMisconfiguredError(
                    "[jwt]", f"{algorithm} is not an asymmetric algorithm", "use RS256 or ES256"
                )
        if not settings.jwks_url.startswith("https://"):
            raise StoreMisconfiguredError("[jwt]", "jwks_url is not https", "use https://")
        self._settings = settings
        self._keys: dict[str, jwt.PyJWK] = {}
        self._wanted = threading.Event()
        self._closed = False
        tls = ssl.create_default_context(cafile=settings.ca or None)
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=tls), _NoRedirect
        )
        self._fetch()
        threading.Thread(target=self._refresh, name="lockfast-jwks", daemon=True).start()

    def principal_of(self, credential: str) -> str:
        settings = self._settings
        try:
            head = jwt.get_unverified_header(credential)
            key = self._keys.get(head.get("kid", ""))
            if key is None:
                self._wanted.set()
                raise Refusal("a JWT with an unknown key")
            claims: dict[str, Any] = jwt.decode(
                credential,
                key.key,
                algorithms=list(settings.algorithms),
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=LEEWAY_S,
                options={"require": list(REQUIRED)},
            )
        except (jwt.PyJWTError, TypeError, ValueError) as error:
            raise Refusal(f"a JWT that is not valid: {error}") from None
        name = claims.get(settings.principal)
        if not isinstance(name, str):
            raise Refusal(f"a JWT without {settings.principal}")
        return clean(PRINCIPAL + name)

    def _refresh(self) -> None:
        while not self._closed:
            time.sleep(REFRESH_MIN_S)
            self._wanted.wait(REFRESH_S)
            self._wanted.clear()
            self._fetch()

    def _fetch(self) -> None:
        try:
            with self._opener.open(self._settings.jwks_url, timeout=FETCH_S) as response:
                found = json.loads(response.read(KEYS_MAX))
            self._keys = dict(_usable(found["keys"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("%s: the keys cannot be read: %s", self._settings.jwks_url, error)

    def close(self) -> None:
        self._closed = True
        self._wanted.set()


def _usable(entries: list[Any]) -> Iterator[tuple[str, jwt.PyJWK]]:
    """Yield the signature keys by id. Skip others, so that one key cannot disable the rest."""
    for entry in entries:
        try:
            if entry["kty"] in ("RSA", "EC", "OKP") and entry.get("use", "sig") == "sig":
                yield entry["kid"], jwt.PyJWK(entry)
        except (ValueError, KeyError, TypeError, AttributeError, jwt.PyJWTError) as error:
            logger.warning("a key of the provider is not usable: %s", error)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: keys come only from the configured URL."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None
