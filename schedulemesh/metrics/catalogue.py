"""The catalogue: every metric once, with its name, kind, unit, labels and help text.

The exposition, the page ``docs/metrics.md`` and its test are made from it. Two names end in ``_count`` or
``_ms`` although Prometheus recommends otherwise: they are part of the public interface.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class Kind(str, Enum):
    """What a metric's values mean, by the name that the text format has for it."""

    #: Never decreases while the supervisor's process runs.
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """A metric."""

    name: str
    kind: Kind
    #: What one means: "seconds", "tasks"; the text after a "1/" is the denominator.
    unit: str
    labels: tuple[str, ...] = ()
    help: str
    #: Of a histogram: the upper bounds of its buckets, ascending.
    buckets: tuple[float, ...] = ()


#: Every metric by its name, in the order of the exposition.
CATALOGUE: dict[str, Metric] = {}


def _defined(metric: Metric) -> Metric:
    if metric.name in CATALOGUE:
        raise ValueError(f"metric {metric.name!r} is defined twice")
    CATALOGUE[metric.name] = metric
    return metric


def _counter(name: str, unit: str, labels: str, text: str) -> Metric:
    metric = Metric(
        name=f"schedulemesh_{name}",
        kind=Kind.COUNTER,
        unit=unit,
        labels=tuple(labels.split()),
        help=text,
    )
    return _defined(metric)


def _gauge(name: str, unit: str, labels: str, text: str) -> Metric:
    metric = Metric(
        name=f"schedulemesh_{name}",
        kind=Kind.GAUGE,
        unit=unit,
        labels=tuple(labels.split()),
        help=text,
    )
    return _defined(metric)


def _histogram(name: str, unit: str, labels: str, text: str, buckets: tuple[float, ...]) -> Metric:
    metric = Metric(
        name=f"schedulemesh_{name}",
        kind=Kind.HISTOGRAM,
        unit=unit,
        labels=tuple(labels.split()),
        help=text,
        buckets=buckets,
    )
    return _defined(metric)


_MS = (1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1e3, 2e3, 5e3, 10e3, 30e3, 60e3, 300e3, 1800e3)
_WAIT_S = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
_FAST_S = (50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 0.1, 0.5, 2.5)

PREEMPTIONS = _counter(
    "preemption_count",
    "tasks",
    "pool reason",
    "Tasks that were preempted, by the pool of the evicted task and the rule that allowed it. Counted since "
    "the scheduler was created, restarts of the supervisor included.",
)
PREEMPTION_MS = _histogram(
    "preemption_execution_latency_ms",
    "milliseconds",
    "pool reason",
    "From the decision to evict a task until what it held can be used: until the incoming agent has all "
    "its resources, its placement group included; for an eviction by request, until the task's agent has "
    "ended, or the task if its agent stays.",
    _MS,
)
SCHEDULE_MS = _histogram(
    "task_schedule_latency_ms",
    "milliseconds",
    "pool",
    "From the submission of a task until it runs on its agent, the time in the queue included; after an "
    "eviction or a failure, from its return to the queue.",
    _MS,
)
SUBMISSIONS = _counter(
    "submissions_total",
    "submissions",
    "pool outcome reason",
    "Submissions by outcome: admitted, queued or refused, with the code of the refusal. Dry runs and "
    "repeated requests are not counted. The pool is empty where it is not known.",
)
SUCCESS = _gauge(
    "submission_success_ratio",
    "ratio",
    "",
    "The part of the submissions of the last 5 minutes that was not refused; 1 without any.",
)
QUEUE_DEPTH = _gauge("queue_depth", "tasks", "pool", "Tasks that wait in the queue.")
QUEUE_OLDEST = _gauge(
    "queue_oldest_wait_seconds",
    "seconds",
    "pool",
    "How long the task has waited that joined the pool's queue first; 0 without any.",
)
QUEUE_WAIT = _histogram(
    "queue_wait_seconds",
    "seconds",
    "pool",
    "How long tasks waited in the queue that were admitted from it.",
    _WAIT_S,
)
TASKS = _gauge(
    "tasks",
    "tasks",
    "pool state",
    "Tasks by state: queued, starting, running, preempting or ending.",
)
ENDED = _counter(
    "tasks_ended_total",
    "runs",
    "pool state reason",
    "Runs of tasks that have ended: completed, failed, cancelled, lost or preempted, with the code of the "
    "reason. A task that is run again counts each time; one that gave its claim back before it ran and waits "
    "again counts as returned.",
)
THROUGHPUT = _gauge(
    "throughput_tasks_per_minute",
    "tasks/minute",
    "",
    "Tasks completed per minute, the mean of the last 5 minutes.",
)
LOST_WORK = _counter(
    "lost_work_gpu_seconds_total",
    "GPU-seconds",
    "pool cause",
    "Work that was lost: GPUs times the time since the start or the last saved state of tasks that were "
    "preempted, or lost with their agents.",
)
SAVED_WORK = _counter(
    "saved_work_gpu_seconds_total",
    "GPU-seconds",
    "pool cause",
    "Work of the same tasks that was not lost, because their state had been saved.",
)
LOST_TIME = _counter(
    "lost_work_seconds_total",
    "seconds",
    "pool cause",
    "As schedulemesh_lost_work_gpu_seconds_total, without the factor of GPUs.",
)
POOL_QUOTA = _gauge(
    "pool_quota",
    "CPUs, MB, GPUs",
    "pool resource",
    "The quota of the pool: CPUs, MB of memory, GPUs and custom resources.",
)
POOL_USED = _gauge(
    "pool_quota_used",
    "CPUs, MB, GPUs",
    "pool resource",
    "What running agents hold of the pool's quota, loans to other pools included.",
)
POOL_RESERVED = _gauge(
    "pool_quota_reserved",
    "CPUs, MB, GPUs",
    "pool resource",
    "What agents that do not run yet, and holds, have reserved of the pool's quota.",
)
POOL_LENT = _gauge(
    "pool_quota_lent",
    "CPUs, MB, GPUs",
    "pool resource",
    "What claims of other pools hold of the pool's quota; part of used and reserved.",
)
POOL_BORROWED = _gauge(
    "pool_quota_borrowed",
    "CPUs, MB, GPUs",
    "pool resource",
    "What the pool's claims hold of the quota of other pools.",
)
POOL_MEASURED = _gauge(
    "pool_measured_usage",
    "CPUs, MB, GPUs",
    "pool resource",
    "What the processes of the pool's agents really use: CPUs, MB of memory, GPUs (those held times their "
    "utilisation) and MB of GPU memory, as far as it is measured.",
)
AGENT_MEASURED = _gauge(
    "agent_measured_usage",
    "CPUs, MB, GPUs",
    "pool agent resource",
    "As schedulemesh_pool_measured_usage, by agent; only where it is asked for, with /metrics?agents=true.",
)
GPUS_IDLE = _gauge(
    "gpus_idle",
    "GPUs",
    "pool",
    "GPUs of the pool's agents that have been used less than idle_gpu_percent for idle_gpu_s, of the policy.",
)
POOL_BUDGET = _gauge(
    "pool_budget_gpu_hours", "GPU-hours", "pool", "The budget of a pool for its present period."
)
POOL_BUDGET_USED = _gauge(
    "pool_budget_used_gpu_hours", "GPU-hours", "pool", "What was used of it in the period."
)
OWNER_BUDGET = _gauge(
    "owner_budget_gpu_hours",
    "GPU-hours",
    "pool owner",
    "The budget of an owner in a pool for its present period, if it is named or has used something.",
)
OWNER_BUDGET_USED = _gauge(
    "owner_budget_used_gpu_hours", "GPU-hours", "pool owner", "What was used of it in the period."
)
AGENTS = _gauge(
    "agents", "agents", "pool state", "Agents by state: waiting, starting, running or ending."
)
AGENTS_STARTED = _counter("agents_started_total", "agents", "pool", "Agents that have started.")
WARM_STARTS = _counter(
    "warm_starts_total",
    "agents",
    "pool",
    "Those of them that a host started which had loaded the class before.",
)
AGENTS_ENDED = _counter(
    "agents_ended_total",
    "agents",
    "pool reason",
    "Agents that have ended, by the code of the reason.",
)
HEARTBEAT = _gauge(
    "agent_heartbeat_age_seconds",
    "seconds",
    "pool agent",
    "The time since the process of an agent last contacted the supervisor. Each polls at least every 113 s, "
    "except while it carries out a command, such as a save, that has time left; then it is 0.",
)
GROUPS = _gauge(
    "placement_groups",
    "groups",
    "pool kind state",
    "Placement groups by kind (reserved or dynamic) and state: planned, creating, free, in_use or ending.",
)
GROUPS_CREATED = _counter(
    "placement_groups_created_total", "groups", "pool", "Placement groups that were created."
)
GROUPS_REUSED = _counter(
    "placement_groups_reused_total",
    "agents",
    "pool",
    "Agents that were assigned to a placement group which had been used before.",
)
GROUPS_DESTROYED = _counter(
    "placement_groups_destroyed_total", "groups", "pool", "Placement groups that were removed."
)
GROUP_ASSIGNMENTS = _counter(
    "placement_group_assignments_total",
    "agents",
    "pool",
    "Agents that were assigned to a placement group.",
)
GROUP_WAIT = _counter(
    "placement_group_wait_seconds_total",
    "seconds",
    "pool",
    "How long those agents waited for their placement groups, altogether.",
)
JOBS_BEYOND = _gauge(
    "jobs_beyond_claim",
    "CPUs, MB, GPUs",
    "pool resource",
    "What the drivers of the pool's jobs hold in Ray beyond the claims of these jobs.",
)
NODES = _gauge("nodes", "nodes", "state", "Alive nodes by state: open, cordoned or draining.")
NODE_TOTAL = _gauge("node_resources", "CPUs, MB, GPUs", "node resource", "The resources of a node.")
NODE_FREE = _gauge(
    "node_resources_free",
    "CPUs, MB, GPUs",
    "node resource",
    "The part of a node's resources that neither agents nor other Ray work hold.",
)
NODE_EXTERNAL = _gauge(
    "node_external_usage",
    "CPUs, MB, GPUs",
    "node resource",
    "What Ray work that does not belong to the scheduler uses of a node.",
)
REPORTED_DROPPED = _counter(
    "reported_values_dropped_total",
    "values",
    "",
    "Values reported by agents that were not aggregated, because there were too many metrics.",
)
ORPHANS = _gauge(
    "orphans",
    "actors and groups",
    "kind",
    "Actors and placement groups with the scheduler's mark that its journal does not know.",
)
DECISION = _histogram(
    "decision_seconds",
    "seconds",
    "",
    "How long the engine took for one decision, the journal not included.",
    _FAST_S,
)
JOURNAL_WRITE = _histogram(
    "journal_write_seconds",
    "seconds",
    "",
    "How long it took after a decision until its facts were durable in the journal.",
    _FAST_S,
)
JOURNAL_ERRORS = _counter(
    "journal_errors_total", "errors", "", "How often the journal could not be written."
)
JOURNAL_WRITABLE = _gauge(
    "journal_writable", "flag", "", "1 while the journal can be written, else 0."
)
PLUGIN_CALLS = _counter("plugin_calls_total", "calls", "plugin", "Calls of a scheduling strategy.")
PLUGIN_FAILURES = _counter(
    "plugin_failures_total", "calls", "plugin", "Calls of a scheduling strategy that raised."
)
PLUGIN_SLOW = _counter(
    "plugin_slow_calls_total",
    "calls",
    "plugin",
    "Calls of a scheduling strategy that took too long.",
)
PLUGIN_DISABLED = _gauge(
    "plugin_disabled", "flag", "plugin", "1 where a scheduling strategy is disabled, else 0."
)
EPOCH = _gauge(
    "supervisor_epoch", "number", "", "How often a supervisor has taken over this scheduler."
)
AUTHENTICATION_FAILURES = _counter(
    "authentication_failures_total",
    "calls",
    "way",
    "Calls without a token that is accepted, by the way on which they came: ray or http.",
)
STARTED_AT = _gauge(
    "supervisor_start_time_seconds",
    "seconds since 1970",
    "",
    "When the supervisor's process took over.",
)
LOOP_FAILURES = _counter(
    "loop_failures_total",
    "rounds",
    "loop",
    "Rounds of a loop of the supervisor that failed, such as looks of the cluster monitor or health checks.",
)
LOOP_OVERDUE = _gauge(
    "loop_overdue_seconds",
    "seconds",
    "loop",
    "For how long a loop of the supervisor has completed no round that was due; 0 while it works.",
)
RESTART_AGE = _gauge(
    "supervisor_restart_age_seconds",
    "seconds",
    "",
    "The time since a supervisor took over from an earlier process of this scheduler; absent while the first "
    "one runs.",
)
RECENT_PREEMPTIONS = _gauge(
    "recent_preemptions",
    "tasks",
    "pool",
    "Tasks of the pool that were preempted in the last 5 minutes (`recent_s` of the alert settings); at most "
    "1,000 of all pools are counted.",
)
PREEMPTION_OLDEST = _gauge(
    "preemption_oldest_seconds",
    "seconds",
    "pool",
    "How long ago the preemption was decided that is in progress for the longest time, by the pool of the "
    "evicted task; 0 without any.",
)
ADMISSION_OLDEST = _gauge(
    "admission_oldest_seconds",
    "seconds",
    "pool",
    "How long ago the agent was admitted that has been waiting for its resources or starting for the longest "
    "time; 0 without any.",
)
RECENT_LOST_STATES = _gauge(
    "recent_lost_states",
    "tasks",
    "pool",
    "Tasks of the last 5 minutes (`recent_s` of the alert settings) whose work was lost because saving "
    "their state failed when they were "
    "preempted, or because they were lost with their agents without a saved state.",
)
RECENT_JOURNAL_ERRORS = _gauge(
    "recent_journal_errors",
    "errors",
    "",
    "How often the journal could not be written in the last 5 minutes.",
)
ALERTS = _gauge(
    "alerts", "alerts", "rule severity state", "Alerts by rule and state: pending or firing."
)
ALERT_DELIVERIES = _counter(
    "alert_deliveries_total",
    "alerts",
    "receiver outcome",
    "Deliveries of alerts to a receiver by outcome: delivered, failed (an attempt that is repeated) "
    "or given_up.",
)
ALERT_DELIVERIES_WAITING = _gauge(
    "alert_deliveries_waiting",
    "alerts",
    "receiver",
    "Deliveries of alerts that the receiver has not accepted yet.",
)
