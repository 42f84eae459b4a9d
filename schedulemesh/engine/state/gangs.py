"""Which members of an elastic gang run."""

from __future__ import annotations

from schedulemesh.domain.agent import gang_of
from schedulemesh.engine.state.agents import Running
from schedulemesh.engine.state.mesh_state import MeshState


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
