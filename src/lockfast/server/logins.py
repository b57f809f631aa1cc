"""The login of the dashboard: a cookie that contains the user's encrypted credential.

The cookie is the bearer token (or JWT), encrypted and authenticated with the server's key. Every
request decrypts it and verifies the credential again, so a revoked token ends the login at once.
Logins are stateless: a restarted server, or another one with the same key, accepts the cookie.

The cookie is one half. The other is a check value, derived from the cookie and returned by the
login, which the page keeps in its storage and sends in the header `CHECK_HEADER` with every
request, reads included. Other sites cannot read or guess it, which prevents forged requests. On
loopback without TLS a browser sends the cookie to every port of the host, so another program there
may receive it; it is useless without the check value, which only pages of this origin can read.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import time
from typing import Final, NamedTuple

from cryptography.fernet import Fernet, InvalidToken
from starlette.requests import Request
from starlette.responses import Response

from lockfast.errors import StoreMisconfiguredError
from lockfast.stores.private_files import open_private

CHECK_HEADER: Final = "x-lockfast-check"
SECURE_COOKIE: Final = "__Host-lockfast"
LOOPBACK_COOKIE: Final = "lockfast-loopback"
"""The cookie's name without TLS, where browsers accept neither `__Host-` nor Secure."""
LIFETIME_S: Final = 12 * 3600
CREDENTIAL_MAX: Final = 2048
"""Keeps the sealed cookie below the 4 KiB that browsers store."""
COOKIE_MAX: Final = 4096
KEY_BYTES: Final = 32


class LoginRefused(Exception):
    """A login cookie was not accepted; the reason is for the audit log only."""


class Login(NamedTuple):
    cookie: str
    check: str

    def set_cookie(self, request: Request, response: Response) -> None:
        _set_cookie(request, response, self.cookie, LIFETIME_S)


class Logins:
    """Seals and opens login cookies."""

    def __init__(self, key: bytes = b"") -> None:
        key = key or secrets.token_bytes(KEY_BYTES)
        self._fernet = Fernet(base64.urlsafe_b64encode(_derived(key, b"seal")))
        self._check_key = _derived(key, b"check")
        self._ended: dict[str, float] = {}

    def begin(self, credential: str) -> Login:
        """Return the two halves of a login for a verified credential."""
        cookie = self._fernet.encrypt(credential.encode()).decode("ascii")
        return Login(cookie, self._check_of(cookie))

    def credential_in(self, request: Request) -> str | None:
        """Return the credential in the cookie of a request; None if it sends no check value.

        Raises LoginRefused.
        """
        checks = request.headers.getlist(CHECK_HEADER)
        if not checks:
            return None
        cookie = request.cookies.get(_cookie_name(request), "")
        if len(checks) > 1 or not cookie or len(cookie) > COOKIE_MAX:
            raise LoginRefused("a check value without a login cookie")
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise LoginRefused("a login cookie in a request from another origin")
        if not hmac.compare_digest(checks[0].encode(), self._check_of(cookie).encode()):
            raise LoginRefused("a login cookie with a wrong check value")
        if cookie in self._ended:
            raise LoginRefused("a login cookie after its logout")
        try:
            return self._fernet.decrypt(cookie, ttl=LIFETIME_S).decode()
        except (InvalidToken, UnicodeDecodeError):
            raise LoginRefused("a login cookie that has expired or is not ours") from None

    def end(self, request: Request, response: Response) -> None:
        """Delete the cookie, and refuse it from now on."""
        now_s = time.time()
        self._ended = {one: until for one, until in self._ended.items() if until > now_s}
        self._ended[request.cookies.get(_cookie_name(request), "")] = now_s + LIFETIME_S
        _set_cookie(request, response, "", 0)

    def _check_of(self, cookie: str) -> str:
        digest = hmac.digest(self._check_key, cookie.encode(), "sha256")
        return base64.urlsafe_b64encode(digest).decode("ascii").rstrip("=")


def read_key(path: str) -> bytes:
    """Return the key in a file; create the file if there is none.

    Raises StoreMisconfiguredError if others may read the file, or if it was cut short.
    """
    try:
        descriptor = open_private(path, os.O_RDONLY, path)
    except FileNotFoundError:
        key = secrets.token_bytes(KEY_BYTES)
        descriptor = open_private(path, os.O_WRONLY | os.O_CREAT, path)
        with open(descriptor, "wb") as file:
            file.write(key)
        return key
    with open(descriptor, "rb") as file:
        key = file.read(KEY_BYTES)
    if len(key) < KEY_BYTES:
        raise StoreMisconfiguredError(path, "is not a key", "delete it; users log in again")
    return key


def _derived(key: bytes, purpose: bytes) -> bytes:
    return hmac.digest(key, b"lockfast login " + purpose, hashlib.sha256)


def _is_secure(request: Request) -> bool:
    """Return whether the browser uses TLS, to us or to a proxy in front of us."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def _cookie_name(request: Request) -> str:
    return SECURE_COOKIE if SECURE_COOKIE in request.cookies else LOOPBACK_COOKIE


def _set_cookie(request: Request, response: Response, value: str, max_age_s: int) -> None:
    secure = _is_secure(request)
    response.set_cookie(
        SECURE_COOKIE if secure else LOOPBACK_COOKIE,
        value,
        max_age=max_age_s,
        path="/",
        secure=secure,
        httponly=True,
        samesite="strict",
    )
