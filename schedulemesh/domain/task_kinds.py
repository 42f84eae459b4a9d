"""Kinds of tasks: those that are expected to run equally long."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.arrays import member_id
from schedulemesh.domain.name_patterns import name_pattern
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.task import TaskSpec


class TaskKind(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What tasks of the same owner, pool, name pattern and size have in common."""

    #: Empty: not known.
    owner: str = ""
    pool_name: str = ""
    #: See ``domain.name_patterns``.
    pattern: str
    #: The GPUs that they ask for, in units of 1/10,000; None: as much as their pool gives by default.
    gpu: int | None = None
    #: The CPUs, in the same units, where they ask for no GPU.
    cpu: int | None = None

    @classmethod
    def of(cls, spec: TaskSpec, need: Resources | None) -> TaskKind:
        """The kind of a task that asks for these resources; None: for what its pool gives by default."""
        return cls(
            owner=spec.owner,
            pool_name=spec.pool_name,
            pattern=name_pattern(member_id(spec.task_id, 0) if spec.array else spec.task_id),
            gpu=None if need is None else need.gpu,
            cpu=None if need is None or need.gpu else need.cpu,
        )
