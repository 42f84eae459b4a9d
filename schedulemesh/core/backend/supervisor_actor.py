"""The supervisor's Ray actor, and where its parts are put together.

Every process that holds its handle imports this module, so it is thin: what the supervisor does is in
``schedulemesh.runtime``, which its own process alone loads, and which knows nothing of Ray.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from schedulemesh.core.backend.registered_schedulers import CALLS

if TYPE_CHECKING:
    from schedulemesh.runtime.supervisor import SupervisorService


class Supervisor:
    """One async Ray actor that accepts requests, decides, records and executes."""

    def __init__(self, settings: bytes, job_id: str) -> None:
        import ray

        self._service = _compose(settings, job_id)
        # After a restart nobody may call for long, and recovery must not wait for that. Older versions of Ray
        # need the handle to exist as long as the call.
        itself = ray.get_runtime_context().current_actor
        itself.recover.remote()


def _compose(settings: bytes, job_id: str) -> SupervisorService:
    """The composition root of the supervisor's process: the one place where its parts are chosen."""
    from schedulemesh.core.backend.process_priority import (
        take_oom_score_of_ray,
        take_priority_of_ray,
    )

    take_oom_score_of_ray()
    take_priority_of_ray()  # before everything that takes time

    import gc

    gc.disable()  # what is imported here stays, and looking for garbage in it takes a tenth of the start

    import logging

    import msgspec

    from schedulemesh.config.settings import SchedulerSettings
    from schedulemesh.core.backend.process_tuning import (
        collect_garbage_rarely,
        switch_threads_often,
    )
    from schedulemesh.core.backend.ray_backend import RayBackend
    from schedulemesh.core.backend.ray_internals import ignore_unread_errors
    from schedulemesh.core.transport.user_code import load_strategy
    from schedulemesh.runtime.clock import SteadyClock
    from schedulemesh.runtime.services.decision_log import speak
    from schedulemesh.runtime.supervisor import SupervisorService
    from schedulemesh.store.sql import SqlJournal

    logging.basicConfig(level=logging.INFO, format="[%(levelname)s] %(message)s")
    decoded = msgspec.msgpack.decode(settings, type=SchedulerSettings)
    speak(decoded.language)
    ignore_unread_errors()
    collect_garbage_rarely()
    switch_threads_often()
    return SupervisorService(
        backend=RayBackend(),
        settings=decoded,
        job_id=job_id,
        open_journal=SqlJournal,
        load_strategy=load_strategy,
        clock=SteadyClock(),
    )


def _call(name: str) -> Callable[..., Awaitable[Any]]:
    async def call(self: Supervisor, *args: Any) -> Any:
        return await getattr(self._service, name)(*args)

    call.__name__ = call.__qualname__ = name
    return call


for _name in CALLS:
    setattr(Supervisor, _name, _call(_name))
