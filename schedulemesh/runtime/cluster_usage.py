"""What the work in the cluster holds, by Ray job: values of ``Backend.usage``."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.resources import Resources


class RayJob(msgspec.Struct, frozen=True, kw_only=True):
    """A Ray job: one driver with all that it started."""

    job_id: str
    #: The namespace of its driver; actors may have others.
    namespace: str
    #: The metadata of its job config.
    metadata: dict[str, str]
    driver_node_id: str
    #: 0: not known.
    driver_pid: int
    #: The command of the driver.
    entrypoint: str
    #: Seconds since 1970.
    started_at: float
    #: Whether the driver has ended; detached actors and groups of the job may still hold resources.
    ended: bool

    @property
    def submission_id(self) -> str:
        """The submission of ``ray job submit`` that has started its driver; empty: none has."""
        return self.metadata.get("job_submission_id", "")


class RayHolder(msgspec.Struct, frozen=True, kw_only=True):
    """An actor outside placement groups, or a placement group, that holds resources or waits for them; or
    plain tasks of one job that wait for the same.
    """

    #: The backend's id of the actor or the placement group.
    ray_id: str
    is_group: bool
    #: Whether it stands for plain tasks; their namespace is that of their driver.
    are_tasks: bool = False
    #: The job that created it; of plain tasks it may not be known: empty.
    job_id: str
    #: Empty: it has no name.
    name: str
    namespace: str
    #: Node and amount of each part that has resources: one of an actor, one per bundle of a group.
    held: tuple[tuple[str, Resources], ...] = ()
    #: Each part for which there was no room yet.
    waiting: tuple[Resources, ...] = ()


class ClusterUsage(msgspec.Struct, frozen=True, kw_only=True):
    """All holders, of ours and of others, and the jobs that created them.

    Of plain tasks it has at most those that wait: the cluster keeps no record of what the others hold.
    """

    #: By id; a job that the cluster has forgotten is missing.
    jobs: dict[str, RayJob]
    holders: tuple[RayHolder, ...]
