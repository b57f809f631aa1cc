"""Bearer tokens of 256 random bits. The file contains only their SHA-256.

A principal has at most two live tokens, so that one can be replaced without interruption.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from lockfast.errors import LimitError, StoreMisconfiguredError
from lockfast.stores.private_files import check_directory, make_directories, open_private

PREFIX: Final = "lf_"
LIVE_MAX: Final = 2
"""Per principal: the one in use, and its replacement."""


class Token(NamedTuple):
    """A token's record, without the token itself."""

    id: str
    principal: str
    sha256: str
    created: int
    expires: int | None
    """Seconds since 1970; None: never."""

    def is_live(self, now: float) -> bool:
        return self.expires is None or now < self.expires


class TokenFile:
    """The tokens of a server, in a file that only its user may read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._read_at: tuple[int, int] | None = None
        self._tokens: tuple[Token, ...] = ()

    def all(self) -> tuple[Token, ...]:
        """Return every token; the file is read again if it has changed."""
        try:
            descriptor = open_private(self.path, os.O_RDONLY, self.path)
        except FileNotFoundError:
            self._tokens, self._read_at = (), None
            return ()
        with open(descriptor, encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp != self._read_at:
                self._tokens = _parse(self.path, file.read())
                self._read_at = stamp
        return self._tokens

    def create(self, principal: str, lifetime_s: int | None = None) -> str:
        """Create a token and return it; it cannot be read again later. Raises LimitError."""
        with self._changing():
            now = int(time.time())
            live = [token for token in self.all() if token.is_live(now)]
            count = sum(token.principal == principal for token in live)
            if count >= LIVE_MAX:
                raise LimitError(
                    f"live tokens of {principal}", count + 1, LIVE_MAX, "revoke one of them first"
                )
            token = PREFIX + secrets.token_urlsafe(32)
            expires = None if lifetime_s is None else now + lifetime_s
            kept = Token(secrets.token_hex(4), principal, _hash(token), now, expires)
            self._write((*live, kept))
        return token

    def revoke(self, token_id: str) -> bool:
        """Delete a token; return whether it existed."""
        with self._changing():
            kept = tuple(token for token in self.all() if token.id != token_id)
            found = len(kept) < len(self.all())
            if found:
                self._write(kept)
        return found

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Lock the file against other writers: one must not undo what another revoked."""
        directory = os.path.dirname(os.path.abspath(self.path))
        make_directories(directory)
        check_directory(directory, self.path)
        descriptor = open_private(f"{self.path}-lock", os.O_RDWR | os.O_CREAT, self.path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self, tokens: tuple[Token, ...]) -> None:
        text = json.dumps({"tokens": [token._asdict() for token in tokens]}, indent=1)
        write_private(self.path, text + "\n")


def write_private(path: str, text: str) -> None:
    """Replace a file atomically by one that only this user may read."""
    temporary = f"{path}.{secrets.token_hex(4)}"
    descriptor = open_private(temporary, os.O_WRONLY | os.O_CREAT, path)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


class TokenVerifier:
    """Verifies tokens against the file; checks for changes at most once a second."""

    def __init__(self, file: TokenFile) -> None:
        self._file = file
        self._tokens = file.all()
        self._look_at = 0.0

    def principal_of(self, credential: str) -> str:
        from lockfast.server.identity import Refusal

        now = time.time()
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + 1
            self._tokens = self._file.all()
        hashed = _hash(credential)
        found = None
        for token in self._tokens:  # all of them, so that the time reveals nothing
            if hmac.compare_digest(token.sha256, hashed):
                found = token
        if found is None:
            raise Refusal("unknown token")
        if not found.is_live(now):
            raise Refusal(f"token {found.id} of {found.principal} has expired")
        return found.principal


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _parse(path: str, text: str) -> tuple[Token, ...]:
    try:
        found: Any = json.loads(text)
        return tuple(Token(**token) for token in found["tokens"])
    except (ValueError, TypeError, KeyError) as error:
        raise StoreMisconfiguredError(
            path, f"is not a token file ({error})", "restore it, or delete it and create tokens"
        ) from None
