"""The calls that read: which request each makes, and of which type its answer is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from schedulemesh.api.agents import ListAgents
from schedulemesh.api.audit import MAX_ROWS, QueryAudit
from schedulemesh.api.call import Call
from schedulemesh.api.cluster import GetAbout, GetStats, ListOrphans, ListStrategies
from schedulemesh.api.jobs import ListJobs
from schedulemesh.api.metrics import GetAlerts, GetReportedMetrics
from schedulemesh.api.nodes import GetDrainStatus, ListExternalUsage, ListNodes
from schedulemesh.api.policies import GetPolicy, GetQueuePolicy
from schedulemesh.api.pools import GetGroupStats, ListCohorts, ListPools
from schedulemesh.api.preemption import MAX_PREEMPTIONS, GetPreemptionStats, ListPreemptions
from schedulemesh.api.queue import ListQueue
from schedulemesh.api.states import ListSavedStates
from schedulemesh.api.tasks import ExplainTask, ListTasks
from schedulemesh.api.tokens import ListTokens
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.reasons import Reason
from schedulemesh.protocol.cluster_rows import ExternalWork, NodeInfo, OrphanInfo, StrategyInfo
from schedulemesh.protocol.pool_rows import CohortInfo, PoolInfo
from schedulemesh.protocol.rows import AlertInfo, ChangeInfo, ReportedMetric
from schedulemesh.protocol.task_rows import (
    JobListing,
    PreemptionRecord,
    QueueListing,
    SavedStateInfo,
    TaskListing,
)
from schedulemesh.server import schemas


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """A call that lists rows, filtered, sorted and in pages."""

    path: str
    summary: str
    #: The type of a row.
    row: Any
    #: The fields that distinguish rows, by which they are sorted unless the caller says otherwise.
    key: tuple[str, ...]
    request: Call
    #: The code of the error where a row is asked for that does not exist; None: single rows are not offered.
    missing: Reason | None = None
    #: The name under which the supervisor makes the rows of one page only; empty: it makes all rows.
    paged: str = ""


class Single(msgspec.Struct, frozen=True, kw_only=True):
    """A call that reads one object."""

    path: str
    summary: str
    #: The type of the answer; None: an object whose fields the Python reference lists.
    answer: Any = None
    request: Callable[[Mapping[str, str]], Call]


LISTINGS = (
    Listing(
        path="/pools",
        summary="List the pools with their quota by use",
        row=PoolInfo,
        key=("name",),
        request=ListPools(),
        missing=Reason.POOL_NOT_FOUND,
    ),
    Listing(
        path="/cohorts",
        summary="List the cohorts",
        row=CohortInfo,
        key=("name",),
        request=ListCohorts(),
        missing=Reason.COHORT_NOT_FOUND,
    ),
    Listing(
        path="/agents",
        summary="List the agents",
        row=schemas.Agent,
        key=("name",),
        request=ListAgents(),
        missing=Reason.AGENT_NOT_FOUND,
        paged="agents",
    ),
    Listing(
        path="/tasks",
        summary="List the tasks that run or wait",
        row=TaskListing,
        key=("task_id",),
        request=ListTasks(),
        paged="tasks",
    ),
    Listing(
        path="/jobs",
        summary="List the jobs that run, wait, or have ended lately",
        row=JobListing,
        key=("task_id",),
        request=ListJobs(),
        missing=Reason.TASK_NOT_FOUND,
        paged="jobs",
    ),
    Listing(
        path="/queue",
        summary="List the tasks that wait in the queue, in the order of each pool",
        row=QueueListing,
        key=("pool_name", "position", "task_id"),
        request=ListQueue(),
        paged="queue",
    ),
    Listing(
        path="/nodes",
        summary="List the living nodes",
        row=NodeInfo,
        key=("node_id",),
        request=ListNodes(),
        missing=Reason.NODE_NOT_FOUND,
    ),
    Listing(
        path="/external_usage",
        summary="List the Ray jobs that hold or wait for something outside of the scheduler",
        row=ExternalWork,
        key=("job_id", "namespace"),
        request=ListExternalUsage(),
    ),
    Listing(
        path="/drains",
        summary="List the drains in progress",
        row=schemas.Drain,
        key=("started_at", "node_id", "pool_name"),
        request=GetDrainStatus(),
    ),
    Listing(
        path="/preemptions",
        summary="List the preemptions on record, those in progress included",
        row=PreemptionRecord,
        key=("decided_at", "task_id"),
        request=ListPreemptions(limit=MAX_PREEMPTIONS),
        paged="preemptions",
    ),
    Listing(
        path="/saved_states",
        summary="List the tasks whose state is stored, and those that were lost",
        row=SavedStateInfo,
        key=("task_id",),
        request=ListSavedStates(),
        paged="saved_states",
    ),
    Listing(
        path="/metrics/agents",
        summary="Aggregate the metrics that agents reported in the last minutes, by agent",
        row=ReportedMetric,
        key=("agent_name", "metric"),
        request=GetReportedMetrics(by="agent"),
    ),
    Listing(
        path="/metrics/pools",
        summary="Aggregate the metrics that agents reported in the last minutes, by pool",
        row=ReportedMetric,
        key=("pool_name", "metric"),
        request=GetReportedMetrics(by="pool"),
    ),
    Listing(
        path="/metrics/labels",
        summary="Aggregate the metrics that agents reported in the last minutes, by label",
        row=ReportedMetric,
        key=("label", "label_value", "metric"),
        request=GetReportedMetrics(by="label"),
    ),
    Listing(
        path="/orphans",
        summary="List actors and placement groups that the journal does not know",
        row=OrphanInfo,
        key=("name", "namespace", "kind"),
        request=ListOrphans(),
    ),
    Listing(
        path="/strategies",
        summary="List the scheduling strategies that were supplied",
        row=StrategyInfo,
        key=("name",),
        request=ListStrategies(),
    ),
    Listing(
        path="/alerts",
        summary="List the alerts that fire or are pending, and the last that were resolved",
        row=AlertInfo,
        key=("id",),
        request=GetAlerts(),
    ),
    Listing(
        path="/audit",
        summary="List the changes that were requested: by whom, from where, before and after",
        row=ChangeInfo,
        key=("number",),
        request=QueryAudit(limit=MAX_ROWS),
    ),
    Listing(
        path="/tokens",
        summary="List the tokens, without their secrets",
        row=schemas.Token,
        key=("name",),
        request=ListTokens(),
    ),
)

SINGLES = (
    Single(
        path="/status",
        summary="Describe the supervisor, its journal, and how much there is",
        answer=schemas.Status,
        request=lambda _: GetAbout(),
    ),
    Single(
        path="/stats",
        summary="Count preemptions, agents and nodes; the pools by name",
        request=lambda _: GetStats(),
    ),
    Single(
        path="/preemption_stats",
        summary="Count preemptions by kind, with the most recent ones",
        request=lambda _: GetPreemptionStats(),
    ),
    Single(
        path="/policy",
        summary="Read the preemption policy and its most recent changes",
        request=lambda _: GetPolicy(),
    ),
    Single(
        path="/queue_policy",
        summary="Read the policy of the queue",
        request=lambda _: GetQueuePolicy(),
    ),
    Single(
        path="/placement_groups",
        summary="Read the placement groups of all pools",
        request=lambda _: GetGroupStats(),
    ),
    Single(
        path="/pools/{name:path}/placement_groups",
        summary="Read the placement groups of a pool",
        request=lambda path: GetGroupStats(pool_name=parse_name(path["name"], "the pool's name")),
    ),
    Single(
        path="/tasks/{task_id:path}",
        summary="Explain a task: why it waits, where it runs, by whom it was evicted, how it ended",
        request=lambda path: ExplainTask(task_id=parse_name(path["task_id"], "task_id")),
    ),
)
