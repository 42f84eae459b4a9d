"""Job cleanup: the capacity of a job is free only when nothing of it is left in Ray."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from schedulemesh.config.settings import SchedulerSettings
from schedulemesh.runtime.agents.endings import pauses
from schedulemesh.runtime.backend import Backend, JobRemains
from schedulemesh.runtime.retries import until_answered

logger = logging.getLogger(__name__)

#: Seconds between two looks: doubled from the first to the last.
_LOOK_S, _LAST_LOOK_S = 0.05, 5.0
#: Seconds after which what does not end is reported.
_PATIENCE_S = 10.0


def owner_of(namespace: str, actor_name: str) -> str:
    """What the Ray jobs of a runner's drivers are marked with: one runner runs one attempt."""
    return f"{namespace}/{actor_name}"


def jobs_folder(settings: SchedulerSettings, session_folder: Path) -> str:
    """The folder that logs and checkpoints of jobs are kept in, on every node the same: that of the journal,
    if one was given, else one in the folder of Ray's session.
    """
    state_path = settings.state_path
    in_session_folder = state_path is None or "://" in state_path
    return str(
        session_folder / "schedulemesh" if in_session_folder else Path(state_path or "").absolute()
    )


async def end_jobs(backend: Backend, owner: str) -> JobRemains:
    """End everything in Ray that belongs to the jobs with this owner, and return when nothing is left: the
    nodes where they were, and what stays there.

    What does not end keeps its capacity, as a process does.
    """
    reported = time.monotonic() + _PATIENCE_S
    pause_s = pauses(_LOOK_S, _LAST_LOOK_S)
    while True:
        remains = await until_answered("ending a job", lambda: backend.end_jobs(owner))
        if not remains.living:
            return remains
        if time.monotonic() > reported:
            logger.warning(
                "%d drivers, actors and placement groups of the job of %s do not end; what it held stays "
                "taken until they do",
                remains.living,
                owner,
            )
            reported = time.monotonic() + _PATIENCE_S
        await asyncio.sleep(next(pause_s))
