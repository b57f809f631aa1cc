"""Names of resources: what is allowed, so that two spellings are never one lock."""

from __future__ import annotations

import unicodedata

from lockfast.errors import InvalidNameError

NAME_BYTES_MAX = 512


def check_name(name: object) -> str:
    """Return `name` unchanged if it can name a resource, else raise InvalidNameError."""
    if not isinstance(name, str):
        raise InvalidNameError(name, f"it is a {type(name).__name__}, not a str")
    if type(name) is not str:
        # An enum's member equals its value but may be printed as something else.
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
            raise InvalidNameError(name, "it has a lone surrogate, so it is not UTF-8") from None
        if not unicodedata.is_normalized("NFC", name):
            raise InvalidNameError(name, "it is not in Unicode NFC form; normalize it first")
        clean = not has_controls(name)
    if not clean:
        raise InvalidNameError(name, "it has control characters")
    if length > NAME_BYTES_MAX:
        raise InvalidNameError(name, f"it has {length} bytes, at most {NAME_BYTES_MAX} are allowed")
    if "." in name or "/" in name:
        for segment in name.split("/"):
            if segment in ("", ".", ".."):
                raise InvalidNameError(name, "it has an empty or dot segment between slashes")
    return name


def check_prefix(prefix: object) -> str:
    """Return `prefix` if names can begin with it: a name, cut anywhere, or nothing."""
    if not isinstance(prefix, str):
        raise InvalidNameError(prefix, f"it is a {type(prefix).__name__}, not a str")
    if prefix and any(unicodedata.category(c) in ("Cc", "Cs") for c in prefix):
        raise InvalidNameError(prefix, "it has control characters or lone surrogates")
    return str.__str__(prefix)


def has_controls(text: str) -> bool:
    """Whether a text could move a terminal's cursor or break a line of a log."""
    return any(unicodedata.category(c) in ("Cc", "Zl", "Zp") for c in text)


def ancestors(name: str) -> tuple[str, ...]:
    """The names above `name`, outermost first: `a/b/c` gives `a` and `a/b`."""
    found = []
    at = name.find("/")
    while at != -1:
        found.append(name[:at])
        at = name.find("/", at + 1)
    return tuple(found)


def escape_field(value: object, separators: str = "") -> str:
    """The text of a decorator's argument as one segment of a name, never an alias.

    Slashes, percent signs, `separators` and characters a name cannot have are written as
    %XX of their UTF-8 bytes, so two different values never give one name.
    """
    text = str(value)
    if not unicodedata.is_normalized("NFC", text):
        raise InvalidNameError(text, "the argument is not in Unicode NFC form")
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
