"""Prints the log of scheduler objects where the program configures no logging."""

from __future__ import annotations

import logging


class _Console(logging.StreamHandler):  # type: ignore[type-arg]  # of stderr
    """Prints records that no other handler would print."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop records once the program has handlers of its own."""
        return not logging.getLogger().handlers and super().filter(record)


def show_log() -> None:
    """Print the log of ``schedulemesh`` from INFO on, unless the program configures its logging."""
    log = logging.getLogger("schedulemesh")
    if log.level != logging.NOTSET or log.hasHandlers():
        return
    handler = _Console()
    handler.setFormatter(logging.Formatter("[%(levelname)s] %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
