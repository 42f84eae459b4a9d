"""Types of the results that describe the scheduler itself."""

from __future__ import annotations

from schedulemesh.core.client.results import Result


class AboutResult(Result, total=False):
    """The answer of ``about``."""

    name: str
    namespace: str
    detached: bool
    #: That of ScheduleMesh.
    version: str
    #: When its supervisor began to serve, in seconds since 1970.
    started_at: float
    node_id: str
    pid: int
    #: The address of the journal.
    journal: str
    #: One more with each life of the supervisor.
    epoch: int
    #: Its clock, in seconds since 1970.
    time: float
    #: The address of the HTTP API; None: there is none, or it does not serve yet.
    http: str | None
    pools: int
    agents: int
    running_tasks: int
    queued_tasks: int


class HeadHealth(AboutResult, total=False):
    """The answer of ``ScheduleMeshHead.start`` and ``health``."""

    alive: bool
    #: Whether its name is taken, so that it can be stopped; only where it is not alive.
    registered: bool


class HeadStopped(Result, total=False):
    """The answer of ``ScheduleMeshHead.stop``."""

    already_gone: bool
