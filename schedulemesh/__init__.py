"""Pools, quotas, preemption and placement for Ray clusters.

The public names are loaded when they are first used, because every agent's process imports this package:
importing it loads nothing else, Ray included.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from schedulemesh.version import VERSION

if TYPE_CHECKING:
    from schedulemesh.client.leases import Lease
    from schedulemesh.client.remote import connect
    from schedulemesh.config.policy import PreemptionAggressiveness, PreemptionPolicy
    from schedulemesh.core.agent.agent_actor import AgentActor
    from schedulemesh.core.agent.metrics_agent import MetricsReportingAgent
    from schedulemesh.core.client.head import ScheduleMeshHead
    from schedulemesh.core.client.scheduler import RayScheduler
    from schedulemesh.core.worker_groups.group import WorkerGroup
    from schedulemesh.errors import (
        GroupNotLeasedError,
        GroupRefusedError,
        InvalidRequestError,
        JobFailedError,
        JournalError,
        JournalTakenOverError,
        LeaseEndedError,
        LeaseRefusedError,
        NotAllowedError,
        NotStorableError,
        ProtocolMismatchError,
        RayJobNotFoundError,
        ResultNotLoadableError,
        ScheduleMeshError,
        SchedulerExistsError,
        SchedulerNotFoundError,
        SchedulerUnavailableError,
        TaskFailedError,
        WorkerDiedError,
        WorkerError,
        WorkerFailedError,
        WorkerTimeoutError,
    )
    from schedulemesh.simple import SimpleScheduler, SimpleTaskSpec

__version__ = VERSION

__all__ = [
    "AgentActor",
    "GroupNotLeasedError",
    "GroupRefusedError",
    "InvalidRequestError",
    "JobFailedError",
    "JournalError",
    "JournalTakenOverError",
    "Lease",
    "LeaseEndedError",
    "LeaseRefusedError",
    "MetricsReportingAgent",
    "NotAllowedError",
    "NotStorableError",
    "PreemptionAggressiveness",
    "PreemptionPolicy",
    "ProtocolMismatchError",
    "RayJobNotFoundError",
    "RayScheduler",
    "ResultNotLoadableError",
    "ScheduleMeshError",
    "ScheduleMeshHead",
    "SchedulerExistsError",
    "SchedulerNotFoundError",
    "SchedulerUnavailableError",
    "SimpleScheduler",
    "SimpleTaskSpec",
    "TaskFailedError",
    "WorkerDiedError",
    "WorkerError",
    "WorkerFailedError",
    "WorkerGroup",
    "WorkerTimeoutError",
    "__version__",
    "connect",
]

#: The modules of the public names; errors are in ``errors``.
_MODULES = {
    "AgentActor": "core.agent.agent_actor",
    "Lease": "client.leases",
    "MetricsReportingAgent": "core.agent.metrics_agent",
    "PreemptionAggressiveness": "config.policy",
    "PreemptionPolicy": "config.policy",
    "RayScheduler": "core.client.scheduler",
    "ScheduleMeshHead": "core.client.head",
    "SimpleScheduler": "simple",
    "SimpleTaskSpec": "simple",
    "WorkerGroup": "core.worker_groups.group",
    "connect": "client.remote",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'errors')}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("ray", __name__):
            raise
        raise ImportError(
            f"{name} needs schedulemesh-core and Ray, which are not installed here; without them "
            "schedulemesh.connect(url) reaches a scheduler over HTTP"
        ) from None
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
