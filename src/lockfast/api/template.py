"""Names with fields, for the decorator: `report:{day}` takes the argument `day`."""

from __future__ import annotations

from collections.abc import Callable
from string import Formatter
from typing import Any

from lockfast.core.names import check_name, escape_field
from lockfast.errors import InvalidNameError


def namer(template: str, function: Callable[..., Any]) -> Callable[..., str]:
    """A function from the call's arguments to the lock's name.

    Fields are plain argument names; their values are escaped, so that two different
    values never give one name. Braces are doubled to be taken literally.
    """
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise InvalidNameError(template, f"as a decorator's name: {error}") from None
    if not any(field is not None for _, field, _, _ in parts):
        name = check_name("".join(text for text, *_ in parts))
        return lambda *args, **kwargs: name

    import inspect

    signature = inspect.signature(function)
    separators = ""
    between: str | None = None
    for text, field, spec, conversion in parts:
        if between is not None:
            between += text
        if field is None:
            continue
        if spec or conversion or field not in signature.parameters:
            raise InvalidNameError(
                template, f"{{{field}}} is not an argument of {title(function)}()"
            )
        if between is not None and not marks_in(between):
            raise InvalidNameError(template, "two fields need a mark between them, such as `:`")
        # Escaped in values, the marks between fields show where each of them ends.
        separators += marks_in(between or "")
        between = ""

    def name_of(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return check_name(
            "".join(
                text + ("" if field is None else escape_field(bound.arguments[field], separators))
                for text, field, _, _ in parts
            )
        )

    return name_of


def marks_in(text: str) -> str:
    """What tells two fields apart: neither part of a word nor of an escape."""
    return "".join(c for c in text if not c.isalnum() and c != "%")


def title(function: Callable[..., Any]) -> str:
    """What to call a function in a message; a partial has no name."""
    return getattr(function, "__qualname__", None) or repr(function)
