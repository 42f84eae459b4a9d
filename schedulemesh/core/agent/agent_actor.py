"""AgentActor: a base class of agents that processes payloads, can be cancelled, and calls methods by name.

It is a plain class, so that it can be subclassed; ScheduleMesh creates the Ray actor.
"""

from __future__ import annotations

import threading
import time

from schedulemesh.core.agent.control_channel import current
from schedulemesh.core.agent.safe_points import SafePoint
from schedulemesh.domain.user_data import UserValue


class AgentActor:
    """Base class of agents. Subclasses override ``process`` and, to be saved, ``save_state``."""

    def __init__(self, name: str, labels: dict[str, str] | None = None) -> None:
        self.name = name
        self.labels = dict(labels or {})
        self._cancelled: dict[str, threading.Event] = {}

    def process(
        self,
        payload: UserValue = None,
        task_id: str | None = None,
        simulated_duration: float | None = None,
    ) -> dict[str, UserValue]:
        """Do the work: here, wait ``simulated_duration`` seconds unless cancelled, and return the payload.

        Returns ``agent``, ``task_id``, ``status`` ("completed" or "cancelled"), ``payload`` and
        ``duration`` in seconds.
        """
        began = time.monotonic()
        stop = self._stop_event(task_id or "")
        cancelled = stop.is_set() or stop.wait(simulated_duration or 0.0)
        self._cancelled.pop(task_id or "", None)
        return {
            "agent": self.name,
            "task_id": task_id,
            "status": "cancelled" if cancelled else "completed",
            "payload": payload,
            "duration": time.monotonic() - began,
        }

    def cancel(self, task_id: str) -> dict[str, UserValue]:
        """Ask a task to stop, whether it runs already or has not started yet.

        Returns ``success``, ``task_id`` and ``agent``. Called from another thread than ``process``.
        """
        self._stop_event(task_id).set()
        return {"success": True, "task_id": task_id, "agent": self.name}

    def is_cancelled(self, task_id: str) -> bool:
        """Whether the task was asked to stop; a loop checks this between its steps."""
        return self._stop_event(task_id).is_set()

    def invoke(self, method: str, *args: UserValue, **kwargs: UserValue) -> UserValue:
        """Call a public method by name and return what it returns; AttributeError where there is none."""
        if method.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no public method {method!r}")
        return getattr(self, method)(*args, **kwargs)

    def safe_point(self) -> SafePoint:
        """Declare that the object is in a consistent state; call it once per iteration of a long loop.

        If an eviction has requested the state, it is saved here, and the call returns when the task has been
        cancelled. In a coroutine write ``await self.safe_point()``: without ``await`` the method goes on
        after the save, and a ``save_state`` that is a coroutine runs beside it. Outside of ScheduleMesh it
        does nothing.
        """
        channel = current()
        return SafePoint() if channel is None else channel.safe_point()

    def _stop_event(self, task_id: str) -> threading.Event:
        return self._cancelled.setdefault(task_id, threading.Event())
