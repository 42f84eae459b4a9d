"""What single calls return, whichever way they are made: refusals, evaluations and explanations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from schedulemesh.api.nodes import ExternalJobInfo
from schedulemesh.api.tasks import TaskInfo
from schedulemesh.domain.resources import Amounts


class HolderInfo(TypedDict, total=False):
    """An agent that holds resources which a refused request lacked."""

    agent_name: str
    pool_name: str
    resources: Amounts
    task_ids: list[str]


class SentenceInfo(TypedDict, total=False):
    """A sentence of the scheduler's, from which it can be written in another language than English."""

    code: str
    #: By name: strings, numbers, and sentences within it; several of these as a list.
    parameters: dict[str, Any]


class Result(TypedDict, total=False):
    """What every call answers: ``success``, and for a refusal ``error`` (a sentence), ``reason`` (a code) and
    what explains it.
    """

    success: bool
    error: str
    reason: str
    #: What the caller can do next.
    hint: str
    detail: str
    #: The codes and parameters of sentences, by the fields that have them; of ``warnings`` a list of them.
    sentences: Mapping[str, SentenceInfo | list[SentenceInfo]]
    #: What the caller may not have meant, in sentences.
    warnings: list[str]
    #: Of a refusal: the amounts that the quota and the best node lacked.
    short: dict[str, Amounts]
    #: Of a refusal: who holds most of what was short.
    holders: list[HolderInfo]
    #: Of a refusal: how many running tasks each rule turned away as victims.
    turned_away: dict[str, int]
    #: Of a refusal: the lowest priority with which it would have been accepted, where there is one.
    sufficient_priority: float
    #: Of a refused dry run: when it could start at the earliest if it waited, in seconds since 1970.
    earliest_start: float | None
    #: Of a refused dry run with ``queue``: its place in the queue, from 1; absent where it would not wait.
    position: int
    #: Of a start that failed: victims that run again, those that wait in the queue, and those that ended.
    restarted: list[str]
    requeued: list[str]
    not_restarted: list[str]


class CandidateInfo(TaskInfo, total=False):
    """A task that may be, or was, evicted. One that was says in ``state_saved`` whether something of its
    attempt was saved, and in ``save_error`` why its state could not be saved for the eviction.
    """

    agent_name: str
    preempt_score: float
    priority_delta: float
    effective_delta: float
    remaining_time: float
    reason: str
    state_saved: bool
    save_error: str


class EvaluationResult(TypedDict, total=False):
    """The answer of ``evaluate_preemption``."""

    success: bool
    should_preempt: bool
    candidates: list[CandidateInfo]
    victims: list[str]
    #: Tasks on borrowed quota that do not run yet, whose start a submission would cancel; they wait again.
    cancelled_starts: list[str]
    reason: str | None
    error: str
    turned_away: dict[str, int]


class ReasonInfo(TypedDict, total=False):
    """One more reason why a task waits: a code, a sentence, and the next step."""

    reason: str
    error: str
    hint: str
    sentences: dict[str, SentenceInfo]


class AlternativeInfo(TypedDict, total=False):
    """Why a task that waits does not start in one of the ways in which it may run."""

    #: As a text, such as ``gpu 1 on nodes with ray.io/accelerator-type=H100``.
    alternative: str
    #: The number of the alternative, from 1; 0: the task has one alone.
    number: int
    #: The flavor of its pool; empty: none.
    flavor: str
    reason: str
    error: str
    sentences: dict[str, SentenceInfo]
    #: What its pool's ``quota`` lacks, and the closest ``node``.
    short: dict[str, Amounts]
    #: The tasks whose eviction would make room; empty: there are none.
    victims: list[str]


class ExternalUsageInfo(TypedDict, total=False):
    """What Ray work that does not belong to the scheduler uses of a node."""

    node_id: str
    resources: Amounts
    #: The jobs that hold it; plain tasks, of which Ray keeps no record, are in none.
    jobs: list[ExternalJobInfo]


class ConsideredInfo(TypedDict, total=False):
    """The search for tasks that could be evicted."""

    #: How many running tasks were considered.
    tasks: int
    #: Whether it was examined after which evictions there would be room; with very many agents it
    #: is not.
    searched: bool
    #: Where it was not: how many tasks the rules allow to evict.
    evictable: int | None
    #: The tasks whose eviction would make room.
    victims: list[str]
    #: How many tasks each rule spares.
    turned_away: dict[str, int]
    #: None: no priority would be sufficient, or it is unknown.
    sufficient_priority: float | None


class EvictionInfo(TypedDict, total=False):
    """The last eviction of a task, or the one in progress; times are in seconds since 1970."""

    at: float
    #: The rule that allowed it.
    rule: str
    score: float | None
    agent_name: str
    #: The task that it was evicted for, its agent, pool and owner; empty: by request.
    by_task: str
    by_agent: str
    by_pool: str
    by_owner: str
    #: The client that requested it.
    by_client: str
    state_saved: bool
    saved_at: float | None
    save_error: str
    #: Seconds of work that were lost.
    lost_s: float | None
    freed_at: float | None
    #: Whether the task that it was evicted for started on what was freed; None: not known yet.
    used: bool | None
    ran_again_at: float | None
    #: Since when its GPUs were idle, for which it came first among the victims; None: they were not.
    idle_since: float | None


class DurationInfo(TypedDict, total=False):
    """How long a task runs in all by earlier runs that were alike; durations in seconds."""

    task_id: str
    #: The median of the runs that took longer than it has run yet, and their quartiles.
    seconds: float
    low_s: float
    high_s: float
    #: How many runs are known.
    runs: int
    #: What they have in common with the task; empty or None: it may differ.
    owner: str
    pool_name: str
    pattern: str
    gpus: float | None
    cpus: float | None


class OrderFactorInfo(TypedDict, total=False):
    """Something by which tasks are compared in the queue, and what counts of one."""

    factor: str
    #: None: not known.
    value: float | None
    detail: str
    sentences: dict[str, SentenceInfo]


class ExplainResult(Result, TaskInfo, total=False):
    """The answer of ``explain``; times are in seconds since 1970."""

    #: "agent", "gang", "job" or "lease".
    kind: str
    #: "queued", "starting", "running", "preempting", "ending", "completed", "failed", "cancelled" or "lost".
    state: str
    #: Further reasons, the most important first.
    others: list[ReasonInfo]
    #: Of a task that waits and may run in several ways: each of them, the preferred one first.
    alternatives: list[AlternativeInfo]
    #: The number of the way that it runs in, or in which its start is reserved, from 1; 0: it has one alone,
    #: or none is taken.
    alternative: int
    #: The flavor of its pool that it runs in, or in which its start is reserved; empty: none.
    flavor: str
    agent_name: str
    node_ids: list[str]
    #: Pages about it elsewhere, by name, as the policy says.
    links: dict[str, str]
    #: Since when it is in this state.
    since: float | None
    #: When it ends by the progress that it reports (``end_measured``), or its estimated duration is over.
    ends_at: float | None
    end_measured: bool
    #: How long it runs by earlier runs, where it waits or runs and declares no duration; None: not known.
    expected_duration: DurationInfo | None
    #: Since when its GPUs are idle; None: they are not.
    idle_since: float | None
    #: Seconds that its attempt may run, or its next one where it waits; None: no limit. Of one that runs:
    #: when it has done so.
    run_limit_s: float | None
    limit_at: float | None
    #: Seconds for which its GPUs may be idle before a warning, and again before its end; None: no limit.
    idle_limit_s: float | None
    #: When it ends if its GPUs, of which it was warned, stay idle; None: it was not warned.
    idle_ends_at: float | None
    #: Whether its GPUs are measured, without which that limit never ends it; None: it does not run, or has no
    #: such limit.
    gpus_measured: bool | None
    #: When its state was last saved.
    saved_at: float | None
    #: Of a task that starts: what it waits for.
    waits_for: list[str]
    #: How many tasks of its pool come before it, plus one; 0: it does not wait in the queue.
    position: int
    queue_length: int
    #: The first of the tasks that come before it.
    before: list[str]
    #: By what it is compared with other tasks that wait, the first to be compared first.
    order: list[OrderFactorInfo]
    #: By which factor its pool weighs more where pools are compared by their shares, because the pool's first
    #: task has waited for so long; 1.0: it does not.
    weight_raised_by: float
    external_usage: list[ExternalUsageInfo]
    #: None: nobody has to be evicted, or may be.
    considered: ConsideredInfo | None
    #: When it starts at the earliest if estimates hold; None: not known.
    earliest_start: float | None
    #: The running task whose end it waits for, and how long that runs by earlier runs; None: the earliest
    #: start rests on declared durations alone.
    start_rests_on: DurationInfo | None
    #: Whether it waits for tasks that run for longer than they declared, so that their ends are guessed.
    start_waits_for_overdue: bool
    #: The running task for whose time limit it waits; empty: its start does not rest on one.
    start_waits_for_limit: str
    #: Why that is not known.
    no_estimate: str
    #: How often it was evicted, and how often its run failed.
    preemptions: int
    failures: int
    eviction: EvictionInfo | None
