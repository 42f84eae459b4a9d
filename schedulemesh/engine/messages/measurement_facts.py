"""Facts about what was measured of agents and tasks, as far as decisions use it; see ``facts``."""

from __future__ import annotations

from typing import Union

from schedulemesh.engine.messages.fact import Fact


class GpusIdle(Fact, tag="gpus_idle", frozen=True, kw_only=True):
    """The GPUs of an agent have hardly been used for as long as the policy says."""

    agent_name: str
    #: In seconds since 1970.
    since: float
    at: float = 0.0


class GpusBusy(Fact, tag="gpus_busy", frozen=True, kw_only=True):
    """The GPUs of an agent that were idle are used again, or nobody knows, or the policy does not ask."""

    agent_name: str
    at: float = 0.0


class EndMeasured(Fact, tag="end_measured", frozen=True, kw_only=True):
    """When a task ends by the progress that it reports, in place of its estimated duration."""

    task_id: str
    #: In seconds since 1970; None: its estimate counts again.
    ends_at: float | None = None
    at: float = 0.0


AnyMeasurement = Union[GpusIdle, GpusBusy, EndMeasured]
