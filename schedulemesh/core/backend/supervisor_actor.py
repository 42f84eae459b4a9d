"""The supervisor's Ray actor. It is thin, because every process that holds its handle imports this module.

What it does is in ``service.py``, which only the supervisor's own process loads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

#: The calls that clients and agent hosts make.
CALLS = (
    "alive",
    "ask",
    "command_done",
    "hello",
    "last_saved",
    "poll",
    "agent_restarted",
    "report_metrics",
    "result_part",
    "shutdown",
    "withdraw",
)


class Supervisor:
    """One async Ray actor that takes requests, decides, remembers and has its executor carry it out."""

    def __init__(self, *args: Any) -> None:
        from schedulemesh.runtime.supervisor import SupervisorService

        self._service = SupervisorService(*args)


def _call(name: str) -> Callable[..., Awaitable[Any]]:
    async def call(self: Supervisor, *args: Any) -> Any:
        return await getattr(self._service, name)(*args)  # one of its own methods

    call.__name__ = call.__qualname__ = name
    return call


for _name in CALLS:
    setattr(Supervisor, _name, _call(_name))
