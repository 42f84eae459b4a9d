"""Which members of an elastic gang run, and the tasks of those beyond its core."""

from __future__ import annotations

from collections.abc import Iterator

from schedulemesh.domain.agent import gang_of
from schedulemesh.engine.state.agents import Running
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queued_tasks import QueuedTask
from schedulemesh.engine.state.tasks import RunningTask


def core_runs(state: MeshState, gang_name: str) -> bool:
    """Whether the core of an elastic gang runs, without which no extra member starts."""
    core = state.agents.get(gang_name)
    return core is not None and isinstance(core.phase, Running)


def members_running(state: MeshState, gang_name: str) -> list[int]:
    """The ranks of the members of a gang that run, in order; none: its core does not run."""
    core = state.agents.get(gang_name)
    if core is None or not isinstance(core.phase, Running):
        return []
    extras = ((name, state.agents.get(name)) for name in core.spec.extra_names)
    running = [name for name, a in extras if a is not None and isinstance(a.phase, Running)]
    ranks = [member[1] for member in map(gang_of, running) if member is not None]
    return [*range(len(core.spec.bundles)), *ranks]


def extra_tasks(state: MeshState, gang_name: str) -> Iterator[RunningTask | QueuedTask]:
    """The tasks of the extra members of an elastic gang that run or wait."""
    core = state.agents.get(gang_name)
    for task_id in () if core is None else core.spec.extra_names:
        task = state.running.by_id.get(task_id) or state.queue.by_id.get(task_id)
        if task is not None and task.spec.extra_of == gang_name:
            yield task
