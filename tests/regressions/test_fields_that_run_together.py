"""Two different calls of a decorated function never share a lock.

With `{a}:{b}`, the arguments ("x:y", "z") and ("x", "y:z") gave one name: the separator between two
fields was not escaped in their values. Found by hypothesis.
"""

from __future__ import annotations

from lockfast.api.template import namer


def build(a: str, b: str) -> None: ...


def test_what_stands_between_fields_is_escaped_in_them() -> None:
    for template in ("{a}:{b}", "{a} {b}", "{a}.{b}", "{a}--{b}"):
        mark = template.removeprefix("{a}").removesuffix("{b}")
        name_of = namer(template, build)
        assert name_of(f"x{mark}y", "z") != name_of("x", f"y{mark}z")
    dots = namer("{a}.{b}", build)
    assert dots("..", "z") != dots(".2E", "z")
