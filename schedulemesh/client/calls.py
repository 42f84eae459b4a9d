"""SchedulerCalls: every call of a scheduler object that sends no class, function, handle or reference."""

from __future__ import annotations

from collections.abc import Iterable

from schedulemesh.api.states import ListSavedStates
from schedulemesh.client.agents import AgentCalls
from schedulemesh.client.arguments import parse_ids, public_calls
from schedulemesh.client.asking import listed_all, with_ids
from schedulemesh.client.cluster import ClusterCalls
from schedulemesh.client.drains import DrainCalls
from schedulemesh.client.exec_calls import ExecCalls
from schedulemesh.client.history import HistoryCalls
from schedulemesh.client.jobs import JobCalls
from schedulemesh.client.lease_calls import LeaseCalls
from schedulemesh.client.listings import SavedStatesResult
from schedulemesh.client.metrics import MetricCalls
from schedulemesh.client.pools import PoolCalls
from schedulemesh.client.preemption import PreemptionCalls
from schedulemesh.client.queue import QueueCalls
from schedulemesh.client.states import StateCalls
from schedulemesh.client.task_results import ResultCalls
from schedulemesh.client.tasks import TaskCalls
from schedulemesh.client.windows import WindowCalls


@public_calls
class SchedulerCalls(
    ClusterCalls,
    PoolCalls,
    AgentCalls,
    TaskCalls,
    QueueCalls,
    PreemptionCalls,
    DrainCalls,
    WindowCalls,
    JobCalls,
    ExecCalls,
    LeaseCalls,
    HistoryCalls,
    MetricCalls,
    ResultCalls,
    StateCalls,
):
    """The calls of one scheduler, over any connection to its supervisor.

    Every call returns a dict with ``success``. A refusal has ``success`` False, ``error`` (a sentence) and
    ``reason`` (a code), and changes nothing. A malformed request raises InvalidRequestError (a ValueError)
    before anything happens; SchedulerUnavailableError is raised where the supervisor does not answer. Times
    are in seconds, memory is in MB.
    """

    def list_saved_states(self, task_ids: str | Iterable[str] | None = None) -> SavedStatesResult:
        """Return ``saved_states``: every task with a stored state, and every task that was lost (or those of
        them with these ids), with ``status`` ("running", "preempted" or "lost") and ``state_saved``.
        """
        ids = None if task_ids is None else parse_ids(task_ids, "task_ids")
        requests = with_ids(ListSavedStates(), "task_ids", ids)
        return listed_all(self._connection, requests, "saved_states", SavedStatesResult)
