"""What this process's scheduler objects say is seen, also where the program configures no logging."""

from __future__ import annotations

import logging


class _Console(logging.StreamHandler):  # type: ignore[type-arg]  # of stderr
    """Prints where nobody else would."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Say nothing once the program has handlers of its own."""
        return not logging.getLogger().handlers and super().filter(record)


def show_log() -> None:
    """Have ``schedulemesh``'s log be printed from INFO on, unless the program has decided on its logging."""
    log = logging.getLogger("schedulemesh")
    if log.level != logging.NOTSET or log.hasHandlers():
        return
    handler = _Console()
    handler.setFormatter(logging.Formatter("[%(levelname)s] %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
