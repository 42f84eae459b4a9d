"""The base class of receivers of alerts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class AlertReceiver:
    """Base class of receivers of alerts, which run in the supervisor's process, in a thread of their own.

    One is made without arguments when the supervisor starts. What ``receive`` raises is logged, and the call
    is repeated later, so it may see an alert more than once: ``id`` and ``state`` tell.
    """

    def receive(self, alert: Mapping[str, Any]) -> None:
        """Take an alert that fires or was resolved; its fields are those that ``alerts()`` returns."""
        raise NotImplementedError
