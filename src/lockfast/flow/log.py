"""The logger. It imports `logging` on the first message, to keep `import lockfast` fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockfast.events import Event


class _Logger:
    def warning(self, message: str, *values: object) -> None:
        import logging

        logging.getLogger("lockfast").warning(message, *values)

    def event(self, event: Event) -> None:
        """Log one event on one line, with its values as `extra` fields."""
        import logging

        from lockfast.flow.log_lines import line_of

        level, text, fields = line_of(event)
        logger = logging.getLogger("lockfast")
        if logger.isEnabledFor(level):
            logger.log(level, "%s", text, extra=fields)


logger = _Logger()
