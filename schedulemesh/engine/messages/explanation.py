"""The explanation of one task: why it waits, where it runs, by whom it was evicted, how it ended."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.domain.sentences import InEnglish, Text
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.outcomes import Holder


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of an explanation and its parts."""


class Finding(
    _Part, frozen=True, kw_only=True, rename={"error_text": "error", "hint_text": "hint"}
):
    """One reason why a task waits."""

    reason: Reason
    #: One sentence for people; nothing may depend on its text.
    error_text: Text
    #: What the caller can do; empty: nothing but wait.
    hint_text: Text = ""

    #: The sentence in English.
    error = InEnglish("error_text")
    #: What the caller can do, in English.
    hint = InEnglish("hint_text")


class ExternalJob(_Part, frozen=True, kw_only=True):
    """What a Ray job that does not belong to the scheduler holds of a node, or a job of the scheduler's holds
    beyond its claim.
    """

    job_id: str
    #: Of the scheduler's job; empty: it is none.
    task_id: str = ""
    namespace: str
    #: The command of its driver; empty: not known.
    entrypoint: str
    resources: Resources


class ExternalUsage(_Part, frozen=True, kw_only=True):
    """What Ray work that does not belong to the scheduler uses of a node that a task could run on."""

    node_id: str
    resources: Resources
    #: The jobs that hold it, where that was looked up.
    jobs: tuple[ExternalJob, ...] = ()


class Considered(_Part, frozen=True, kw_only=True):
    """The search for tasks that could be evicted for a task."""

    #: How many running tasks were considered.
    tasks: int
    #: Whether it was examined after which evictions there would be room. With very many agents it is not,
    #: because that takes long; the queue does it for the first task of each pool.
    searched: bool = True
    #: How many tasks the rules allow to evict; None: ``searched``.
    evictable: int | None = None
    #: The tasks whose eviction would make room; empty: there are none.
    victims: tuple[str, ...] = ()
    #: Where nobody can be evicted: how many tasks each rule spares, most first.
    turned_away: dict[Reason, int] = {}
    #: The lowest priority that would be sufficient; None: there is none, or it is unknown.
    sufficient_priority: float | None = None


class AlternativeFinding(
    _Part,
    frozen=True,
    kw_only=True,
    rename={"alternative_text": "alternative", "error_text": "error"},
):
    """Why a task that waits does not start in one of the ways in which it may run."""

    #: Such as ``gpu 1 on nodes with ray.io/accelerator-type=H100``.
    alternative_text: Text
    #: The number of the alternative, from 1; 0: the task has one alone.
    number: int = 0
    #: The flavor of its pool; empty: none.
    flavor: str = ""
    reason: Reason
    #: One sentence for people; nothing may depend on its text.
    error_text: Text
    #: What its pool's quota lacks.
    short_quota: Resources = NOTHING
    #: What the closest node lacks.
    short_node: Resources = NOTHING
    #: The tasks whose eviction would make room; empty: there are none.
    victims: tuple[str, ...] = ()

    #: The way in English.
    alternative = InEnglish("alternative_text")
    #: The sentence in English.
    error = InEnglish("error_text")


class DurationEstimate(_Part, frozen=True, kw_only=True):
    """How long a task runs in all by earlier runs that were alike, in seconds."""

    task_id: str
    #: The median of the runs that took longer than it has run yet; see ``state.estimates``.
    seconds: float
    #: Their quartiles.
    low_s: float
    high_s: float
    #: How many runs are known.
    runs: int
    #: What the runs have in common with it: the owner, the pool, the pattern of the name (empty: it may
    #: differ), the GPUs, or the CPUs of runs without GPUs (None: they may differ).
    owner: str = ""
    pool_name: str = ""
    pattern: str = ""
    gpus: float | None = None
    cpus: float | None = None


class EvictionSummary(_Part, frozen=True, kw_only=True):
    """The last eviction of a task, or the one in progress. Times are seconds since 1970."""

    #: When it was decided or, where that is not recorded, carried out.
    at: float
    #: The rule that allowed it: a code of PreemptionReason.
    rule: str
    score: float | None = None
    #: Its agent then.
    agent_name: str = ""
    #: The task that it was evicted for; empty: none, or it is not recorded.
    by_task: str = ""
    by_agent: str = ""
    by_pool: str = ""
    by_owner: str = ""
    #: The client that requested it, as host:pid; empty: nobody did.
    by_client: str = ""
    #: Whether its state is stored.
    state_saved: bool = False
    #: When the state was saved that it continues from; None: not known, or nothing was saved.
    saved_at: float | None = None
    save_error: str = ""
    #: Seconds of work that were lost; None: not recorded.
    lost_s: float | None = None
    #: When its resources were free; None: not yet, or not recorded.
    freed_at: float | None = None
    #: Whether the task that it was evicted for started on what was freed; None: not known yet.
    used: bool | None = None
    #: When it ran again; None: it has not.
    ran_again_at: float | None = None
    #: Since when its GPUs were idle, for which it came first among the victims; None: they were not.
    idle_since: float | None = None


class OrderFactor(_Part, frozen=True, kw_only=True, rename={"detail_text": "detail"}):
    """Something by which tasks are compared in the queue, and what counts of one."""

    factor: str
    #: None: not known.
    value: float | None = None
    #: What it is, for people.
    detail_text: Text = ""

    #: What it is, in English.
    detail = InEnglish("detail_text")


class Explanation(
    _Part,
    frozen=True,
    kw_only=True,
    rename={
        "error_text": "error",
        "hint_text": "hint",
        "detail_text": "detail",
        "no_estimate_text": "no_estimate",
    },
):
    """What is known of a task. Times are seconds since 1970."""

    task: TaskSpec
    #: What it runs: ``agent``, ``gang``, ``job`` or ``lease``.
    kind: str
    #: ``queued``, ``starting``, ``running``, ``preempting``, ``ending``, or how it ended: ``completed``,
    #: ``failed``, ``cancelled``, ``lost``.
    state: str
    #: The priority class of the policy that it has; empty: none of these.
    own_class: str = ""
    #: Why it is in this state where that is not what was asked for: a code; empty: it is.
    reason: str = ""
    #: One sentence about that; empty where ``reason`` is.
    error_text: Text = ""
    #: What the caller can do; empty: nothing, or nothing is needed.
    hint_text: Text = ""
    #: One sentence about a task that starts or runs, or was completed.
    detail_text: Text = ""
    #: Further reasons why it waits, the most important first.
    others: tuple[Finding, ...] = ()
    #: Of a task that waits and may run in several ways: why it does not start in each of them, the preferred
    #: one first.
    alternatives: tuple[AlternativeFinding, ...] = ()
    #: Of a task that runs, or has a reserved start, the number of the way that was taken, from 1; 0: there is
    #: one alone, or none is taken.
    alternative: int = 0
    #: Of a task that runs, or has a reserved start, the flavor of its pool that was taken; empty: none.
    flavor: str = ""
    agent_name: str = ""
    #: Its nodes, where it has any.
    node_ids: tuple[str, ...] = ()
    #: Pages about it elsewhere, by name.
    links: dict[str, str] = {}
    #: Since when it is in this state.
    since: float | None = None
    #: When it ends by the progress that it reports (``end_measured``), or its estimated duration is over.
    ends_at: float | None = None
    end_measured: bool = False
    #: How long it runs in all by earlier runs, of a task that waits or runs and declares no duration; None:
    #: too few runs are known.
    expected_duration: DurationEstimate | None = None
    #: Since when its GPUs are idle; None: they are not, or the policy does not ask.
    idle_since: float | None = None
    #: Seconds that its attempt may run, or its next one where it waits; None: no limit.
    run_limit_s: float | None = None
    #: Of a task that runs: when it has done so.
    limit_at: float | None = None
    #: Seconds for which its GPUs may be idle before a warning, and again before its end; None: no limit.
    idle_limit_s: float | None = None
    #: When it ends if its GPUs, of which it was warned, stay idle; None: it was not warned.
    idle_ends_at: float | None = None
    #: Whether its GPUs are measured, without which that limit never ends it; None: it runs not, or has none.
    gpus_measured: bool | None = None
    #: When its state was last saved: in its present attempt, else in the one that was evicted last.
    saved_at: float | None = None
    #: Of a task that starts: the tasks that are being evicted for it, and the groups that it waits for.
    waits_for: tuple[str, ...] = ()
    #: How many tasks of its pool come before it in the queue, plus one; 0: it does not wait there.
    position: int = 0
    #: How many tasks of its pool wait.
    queue_length: int = 0
    #: The first of those that come before it.
    before: tuple[str, ...] = ()
    #: By what it is compared with other tasks that wait, the first to be compared first.
    order: tuple[OrderFactor, ...] = ()
    #: By which factor its pool weighs more where pools are compared by their shares, because the pool's first
    #: task has waited for so long; 1.0: it does not.
    weight_raised_by: float = 1.0
    #: What its pool's quota lacks.
    short_quota: Resources = NOTHING
    #: What the closest node lacks.
    short_node: Resources = NOTHING
    #: The agents that hold most of what is short, largest first.
    holders: tuple[Holder, ...] = ()
    external: tuple[ExternalUsage, ...] = ()
    #: None: no eviction was considered, because nothing is short or nobody may be evicted for it.
    considered: Considered | None = None
    #: When it starts at the earliest if the tasks that run end when they are estimated to; None: not known.
    earliest_start: float | None = None
    #: The running task whose end it waits for, and how long that runs by earlier runs; None: the earliest
    #: start rests on declared durations alone, or is not known.
    start_rests_on: DurationEstimate | None = None
    #: Whether it waits for tasks that run for longer than they declared, so that their ends are guessed.
    start_waits_for_overdue: bool = False
    #: The running task for whose time limit it waits; empty: its start does not rest on one.
    start_waits_for_limit: str = ""
    #: Why that is not known.
    no_estimate_text: Text = ""
    #: How often it was evicted.
    preemptions: int = 0
    #: How often its run failed.
    failures: int = 0
    #: Its last eviction.
    eviction: EvictionSummary | None = None

    #: The sentence about ``reason`` in English.
    error = InEnglish("error_text")
    #: What the caller can do, in English.
    hint = InEnglish("hint_text")

    #: The sentence about its state in English.
    detail = InEnglish("detail_text")
    #: Why its earliest start is not known, in English.
    no_estimate = InEnglish("no_estimate_text")
