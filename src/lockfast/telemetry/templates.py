"""Map lock names to a bounded set of labels."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

TEMPLATES_MAX: Final = 100

_FIELD: Final = re.compile(r"\{[^{}/]*\}")


class Templates:
    """An allow-list of lock names. `{field}` in an entry stands for one part of a path.

    Without entries every name maps to "", so that no lock name becomes a label.
    """

    def __init__(self, templates: Iterable[str] = ()) -> None:
        if isinstance(templates, str):
            raise TypeError(f"lock_names must be a list of templates, not the str {templates!r}")
        self.texts = tuple(dict.fromkeys(templates))
        wrong: list[object] = [text for text in self.texts if not text or type(text) is not str]
        if wrong:
            raise TypeError(f"a template must be a non-empty str, not {wrong[0]!r}")
        if len(self.texts) > TEMPLATES_MAX:
            raise ValueError(
                f"{len(self.texts)} templates: at most {TEMPLATES_MAX} are allowed, because each "
                "multiplies the number of time series"
            )
        self._exact = {text for text in self.texts if not _FIELD.search(text)}
        self._patterns = [(_pattern(text), text) for text in self.texts if _FIELD.search(text)]

    def of(self, name: str) -> str:
        """Return the template that `name` matches, or ""."""
        if name in self._exact:
            return name
        for pattern, text in self._patterns:
            if pattern.fullmatch(name):
                return text
        return ""


def _pattern(template: str) -> re.Pattern[str]:
    parts = _FIELD.split(template)
    return re.compile("[^/]+".join(map(re.escape, parts)))
