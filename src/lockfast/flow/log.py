"""The logger, which is imported when there is something to say: most programs never need it."""

from __future__ import annotations


class _Logger:
    def warning(self, message: str, *values: object) -> None:
        import logging

        logging.getLogger("lockfast").warning(message, *values)


logger = _Logger()
