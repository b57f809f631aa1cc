"""Name templates for decorators: in `report:{day}`, `{day}` is the argument `day`."""

from __future__ import annotations

from collections.abc import Callable
from string import Formatter
from typing import Any

from lockfast.core.names import check_name, escape_field
from lockfast.errors import InvalidNameError


def namer(template: str, function: Callable[..., Any]) -> Callable[..., str]:
    """Return a function that computes the lock's name from the arguments of a call.

    A field is the plain name of an argument. Its value is escaped, so that different values
    never produce the same name. Write a literal brace twice.
    """
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise InvalidNameError(template, f"the template does not parse: {error}") from None
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
            raise InvalidNameError(
                template, "two fields need a separator between them, such as `:`"
            )
        # Values escape these separators, so that a separator always ends a field.
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
    """Return the characters that can separate fields: neither alphanumeric nor `%`."""
    return "".join(c for c in text if not c.isalnum() and c != "%")


def title(function: Callable[..., Any]) -> str:
    """Return a function's name for messages; a partial has none, so use its repr."""
    return getattr(function, "__qualname__", None) or repr(function)
