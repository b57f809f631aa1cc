"""Exit codes, and the errors they stand for. Scripts rely on them: they never change."""

from __future__ import annotations

import errno
from typing import Final

from lockfast.errors import (
    AccessDeniedError,
    AcquireTimeoutError,
    DeadlockError,
    LeaseLostError,
    LimitError,
    LockfastError,
    StoreError,
    StoreMisconfiguredError,
)

OK: Final = 0
NO: Final = 1
"""The answer is no: `show` of a free lock, `revoke` that found no holder."""
USAGE: Final = 2
UNAVAILABLE: Final = 69
INTERNAL: Final = 70
OUTPUT: Final = 74
"""What was asked for could not be written to standard output."""
NOT_OBTAINED: Final = 75
LEASE_LOST: Final = 76
DENIED: Final = 77
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
BY_SIGNAL: Final = 128
"""Plus the signal's number, as shells do."""


class CommandError(Exception):
    """One line for the user, and its exit code."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


def exit_code_of(error: LockfastError) -> int:
    """Return the exit code for an error of the library."""
    if isinstance(error, LeaseLostError):
        # Without a token it was a waiting claim that was revoked.
        return NOT_OBTAINED if error.token is None else LEASE_LOST
    if isinstance(error, AcquireTimeoutError | DeadlockError | LimitError):
        return NOT_OBTAINED
    if isinstance(error, StoreError):
        if isinstance(error, AccessDeniedError) or _is_denial(error):
            return DENIED
        return USAGE if isinstance(error, StoreMisconfiguredError) else UNAVAILABLE
    return USAGE


def _is_denial(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        denials = (errno.EACCES, errno.EPERM, errno.EROFS)
        # The number of an ssl.SSLError is OpenSSL's, not the system's.
        is_system = isinstance(cause, OSError) and type(cause).__module__ != "ssl"
        if is_system and getattr(cause, "errno", None) in denials:
            return True
        cause = cause.__cause__
    return False
