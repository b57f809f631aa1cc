"""The logger. It imports `logging` on the first message, to keep `import lockfast` fast."""

from __future__ import annotations


class _Logger:
    def warning(self, message: str, *values: object) -> None:
        import logging

        logging.getLogger("lockfast").warning(message, *values)


logger = _Logger()
