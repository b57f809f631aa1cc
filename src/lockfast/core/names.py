"""Validation of resource names. Each valid name has exactly one spelling."""

from __future__ import annotations

import unicodedata
from typing import Final

from lockfast.errors import InvalidNameError

NAME_BYTES_MAX = 512
INTERNAL: Final = "//"
"""In the names of resources that clients keep for themselves, such as the outcomes of `once`. No
user can give such a name, and neither a list nor a watch shows them."""


def check_name(name: object) -> str:
    """Return `name` unchanged if it is a valid resource name, else raise InvalidNameError."""
    if not isinstance(name, str):
        raise InvalidNameError(name, f"expected a str, not {type(name).__name__}")
    if type(name) is not str:
        # A member of a str enum equals its value but may be formatted differently.
        name = str.__str__(name)
    if not name:
        raise InvalidNameError(name, "it is empty")
    if name.isascii():
        length = len(name)
        clean = name.isprintable()
    else:
        try:
            length = len(name.encode("utf-8"))
        except UnicodeEncodeError:
            raise InvalidNameError(
                name, "it contains a lone surrogate, which UTF-8 cannot encode"
            ) from None
        if not unicodedata.is_normalized("NFC", name):
            raise InvalidNameError(
                name, "it is not in Unicode NFC; use unicodedata.normalize('NFC', name)"
            )
        clean = not has_controls(name)
    if not clean:
        raise InvalidNameError(name, "it contains control characters")
    if length > NAME_BYTES_MAX:
        raise InvalidNameError(name, f"it has {length} bytes, the limit is {NAME_BYTES_MAX}")
    if "." in name or "/" in name:
        for segment in name.split("/"):
            if segment in ("", ".", ".."):
                raise InvalidNameError(name, "a segment between slashes is empty, '.' or '..'")
    return name


def check_stored_name(name: str) -> None:
    """Check a name that may be internal: a valid name, INTERNAL and another valid name."""
    for part in name.split(INTERNAL, 1):
        check_name(part)


def check_prefix(prefix: object) -> str:
    """Return `prefix` if a name can begin with it: any part of a name from its start, or ""."""
    if not isinstance(prefix, str):
        raise InvalidNameError(prefix, f"expected a str, not {type(prefix).__name__}")
    if prefix and any(unicodedata.category(c) in ("Cc", "Cs") for c in prefix):
        raise InvalidNameError(prefix, "it contains control characters or lone surrogates")
    return str.__str__(prefix)


def has_controls(text: str) -> bool:
    """Return True if a text contains characters that could corrupt a terminal or a log."""
    return any(unicodedata.category(c) in ("Cc", "Zl", "Zp") for c in text)


def ancestors(name: str) -> tuple[str, ...]:
    """Return the ancestors of `name`, outermost first: `a/b/c` gives `a` and `a/b`."""
    found = []
    at = name.find("/")
    while at != -1:
        found.append(name[:at])
        at = name.find("/", at + 1)
    return tuple(found)


def escape_field(value: object, separators: str = "") -> str:
    """Escape a decorator's argument as one segment of a name.

    Slashes, percent signs, `separators` and characters that names cannot contain become %XX
    of their UTF-8 bytes, so different values never produce the same name.
    """
    text = str(value)
    if not unicodedata.is_normalized("NFC", text):
        raise InvalidNameError(
            text, "the argument is not in Unicode NFC; use unicodedata.normalize('NFC', …)"
        )
    if not text:
        return "%"
    if text in (".", ".."):
        separators = "."
    return "".join(
        "".join(f"%{byte:02X}" for byte in c.encode("utf-8", "surrogatepass"))
        if c in "/%" or c in separators or unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")
        else c
        for c in text
    )
