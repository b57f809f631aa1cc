"""Name templates: in `report:{day}`, `{day}` is filled in for each call or request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any

from lockfast.core.names import check_name, escape_field
from lockfast.errors import InvalidNameError


class Template:
    """A lock's name with fields. A field is a plain name; write a literal brace twice.

    Values are escaped, so that different values never produce the same name.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._parts = list(Formatter().parse(text))
        except ValueError as error:
            raise InvalidNameError(text, f"the template does not parse: {error}") from None
        self.fields: list[str] = []
        # Values escape these separators, so that a separator always ends a field.
        self._separators = ""
        between: str | None = None
        for literal, field, spec, conversion in self._parts:
            if between is not None:
                between += literal
            if field is None:
                continue
            if spec or conversion or not field.isidentifier():
                raise InvalidNameError(text, f"{{{field}}} must be a plain name in braces")
            if between is not None and not marks_in(between):
                raise InvalidNameError(
                    text, "two fields need a separator between them, such as `:`"
                )
            self.fields.append(field)
            self._separators += marks_in(between or "")
            between = ""
        if not self.fields:
            self.name({})  # raises if it is not a valid name

    def name(self, values: Mapping[str, object]) -> str:
        """Return the name with its fields filled in; raises InvalidNameError."""
        return check_name(
            "".join(
                literal + ("" if field is None else escape_field(values[field], self._separators))
                for literal, field, _, _ in self._parts
            )
        )


def namer(text: str, function: Callable[..., Any]) -> Callable[..., str]:
    """Return a function that computes the lock's name from the arguments of a call."""
    template = Template(text)
    if not template.fields:
        name = template.name({})
        return lambda *args, **kwargs: name

    import inspect

    signature = inspect.signature(function)
    for field in template.fields:
        if field not in signature.parameters:
            raise InvalidNameError(text, f"{{{field}}} is not an argument of {title(function)}()")

    def name_of(*args: Any, **kwargs: Any) -> str:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            # As Python's own message, which the call would have raised.
            raise TypeError(f"{title(function)}() {error}") from None
        bound.apply_defaults()
        return template.name(bound.arguments)

    return name_of


def marks_in(text: str) -> str:
    """Return the characters that can separate fields: neither alphanumeric nor `%`."""
    return "".join(c for c in text if not c.isalnum() and c != "%")


def title(function: Callable[..., Any]) -> str:
    """Return a function's name for messages; a partial has none, so use its repr."""
    return getattr(function, "__qualname__", None) or repr(function)
