"""Passwords outside the URL: read again for each connection, so that they may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lockfast.errors import StoreUnavailableError

Password = str | Callable[[], str]
"""A password, or a function that returns the current one."""
LENGTH_MAX: Final = 65536


class PasswordFile:
    """Reads a password from the first line of a file, on every call."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self) -> str:
        with open(self._path, encoding="utf-8") as file:
            return file.readline(LENGTH_MAX).rstrip("\r\n")

    def __repr__(self) -> str:
        return f"<PasswordFile {self._path}>"


def plain(password: Password, label: str) -> str:
    """Return the current password of the store `label`.

    Raises StoreUnavailableError if it cannot be read now, so that callers retry.
    """
    if isinstance(password, str):
        return password
    try:
        found = password()
    except Exception as error:
        # Do not show the error's text: the function's author may have put the password into it.
        raise StoreUnavailableError(
            label,
            f"the password cannot be read ({type(error).__name__} in {_name_of(password)})",
            "check the file or function that provides it",
        ) from error
    if not isinstance(found, str):
        raise StoreUnavailableError(
            label, f"{_name_of(password)} returned {type(found).__name__} instead of a password"
        )
    return found


def _name_of(function: Callable[[], str]) -> str:
    return repr(function) if isinstance(function, PasswordFile) else "the password function"
