"""The codes that answers carry: why a request was refused, why a task was evicted, what a call changed.

Each member is a string, its code, and has its ``meaning``: the sentence that the API reference shows.
Codes are stored and are part of the public interface, so a code never changes its meaning.
"""

from __future__ import annotations

from enum import Enum

from typing_extensions import Self


class Code(str, Enum):
    """Base of the enumerations: a member equals its code, and prints as its code."""

    meaning: str

    def __new__(cls, code: str, meaning: str) -> Self:
        """A member, from its code and the sentence that explains it."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    def __str__(self) -> str:
        """The code."""
        return str.__str__(self)

    #: That of its code, which it equals.
    __hash__ = str.__hash__


class Reason(Code):
    """Why a request was refused, or why a running task is not evicted for another."""

    # There is no room.
    PREEMPTION_FAILED = (
        "preemption_failed",
        (
            "Short of resources, and no allowed eviction makes room. `short` and `holders` say of"
            " what, and who has it; `hint` says what would help."
        ),
    )
    INSUFFICIENT_QUOTA = (
        "insufficient_quota",
        (
            "The pool's quota is short, and nobody is evicted for it: this call evicts nobody "
            "(`create_agent`, `submit_with_pg_preemption`), or the task waits in the queue. Ask "
            "for less, or resize the pool."
        ),
    )
    GROUP_UNPLACEABLE = (
        "group_unplaceable",
        (
            "No placement group is free, none can be created, and no allowed eviction helps; or "
            "Ray did not place the group in time."
        ),
    )
    EXCEEDS_POOL_CAPACITY = (
        "exceeds_pool_capacity",
        (
            "The request asks for more than the whole quota of its pool. Ask for less, or resize the pool."
        ),
    )
    NO_FLAVOR = (
        "no_flavor",
        (
            "The task may run in no flavor of its pool: its `label_selector` excludes the nodes of each, or "
            "none covers all that it asks for. Change the selector, or the flavors of the pool."
        ),
    )
    CLUSTER_OUT_OF_RESOURCES = (
        "cluster_out_of_resources",
        (
            "No node could hold it even when idle, or only without the reserved placement groups of other "
            "pools, or work outside ScheduleMesh has taken the room. Ask for less, add a node, have those "
            "pools reserve less, or submit it again later."
        ),
    )
    EXTERNAL_DEMAND = (
        "external_demand",
        (
            "An eviction would make room, but Ray work that does not belong to the scheduler waits "
            "for it and would get it first. `error` names it; `evict_despite_external_demand` in "
            "the policy evicts all the same."
        ),
    )

    EXCEEDS_TIME_LIMIT = (
        "exceeds_time_limit",
        (
            "The task asks for a longer `max_run_s` than its pool allows, or than it has. Ask for less, or "
            "have an operator raise it."
        ),
    )

    INVALID_TOPOLOGY = (
        "invalid_topology",
        (
            "The task asks for a level that `topology_levels` of the policy does not declare, for levels in "
            "the wrong order, or for slices that do not divide its members; or it has no members, or its "
            "pool has only reserved groups."
        ),
    )

    # The request contradicts what exists.
    POOL_NOT_FOUND = ("pool_not_found", "There is no such pool. Create it with `ensure_pool`.")
    NO_MATCHING_POOL = (
        "no_matching_pool",
        "No pool matches `pool_selector` and could hold the task.",
    )
    NO_PG_POOL = (
        "no_pg_pool",
        (
            "The pool keeps no placement groups. Enable them with `pg_pool_config`, or submit "
            "without asking for one."
        ),
    )
    CONFLICTING_OPTIONS = (
        "conflicting_options",
        (
            "Both the Ray options and the placement group of the pool say where the agent runs. "
            "Leave out the options that `error` names."
        ),
    )
    POOL_EXISTS = (
        "pool_exists",
        "`create_pool`: the pool exists with another definition. `ensure_pool` changes it.",
    )
    POOL_IN_USE = (
        "pool_in_use",
        (
            "`delete_pool`: agents run in the pool, tasks wait in its queue, or others borrow its quota; "
            "`error` says which. Delete it with `drain=True`, or end them first."
        ),
    )
    POOL_ENDING = (
        "pool_ending",
        (
            "The pool is being deleted: nothing new starts in it, and what waits is cancelled. Use another "
            "pool; `undrain_pool` keeps this one."
        ),
    )
    DUPLICATE_TASK = (
        "duplicate_task",
        "A task of this id is running. Complete it first, or choose another id.",
    )
    DUPLICATE_AGENT = (
        "duplicate_agent",
        "An agent of this name exists. Delete it first, or choose another name.",
    )
    PRIORITY_NOT_PERMITTED = (
        "priority_not_permitted",
        "The pool permits other priorities only: `min_priority` and `max_priority` of `ensure_pool`.",
    )
    OWNER_LIMIT = (
        "owner_limit",
        (
            "The owner's tasks hold as much of the pool as `owner_limits` permits. It starts when some of "
            "them have ended; others do not wait for it."
        ),
    )
    BUDGET_SPENT = (
        "budget_spent",
        (
            "The `budget` of the pool, or that of the owner in it, is spent, so no task starts that asks for "
            "GPUs. It starts when the period turns, or the budget is raised."
        ),
    )
    BEHIND_OWNER = (
        "behind_owner",
        "Tasks of an owner come first who has used less of the pool, whose `owner_order` is `fair`.",
    )
    EXCEEDS_OWNER_LIMIT = (
        "exceeds_owner_limit",
        (
            "The task alone asks for more than `owner_limits` of the pool permits its owner. Ask for less, "
            "or have an operator raise it."
        ),
    )
    OWNER_QUEUE_FULL = (
        "owner_queue_full",
        (
            "As many of the owner's tasks wait in the pool as `queued` in its `owner_limits` permits. Submit "
            "it when one of them has started."
        ),
    )
    POOL_DRAINING = (
        "pool_draining",
        "The pool is drained: nothing new starts in it. `undrain_pool` ends that.",
    )
    NODE_DRAINING = (
        "node_draining",
        "The node is drained, so it cannot be opened. `undrain_node` ends that.",
    )
    DRAINED_BY_RAY = (
        "drained_by_ray",
        "Ray drains the node, because it is to be removed; only Ray ends that.",
    )
    WINDOW_NOT_FOUND = (
        "window_not_found",
        "There is no such maintenance window, or it is over; `list_windows` lists them.",
    )
    WINDOW_EXISTS = (
        "window_exists",
        "`create_window`: another window has this name. Replace or delete it, or choose another name.",
    )
    WINDOW_OVER = (
        "window_over",
        "`create_window`: the window would be over already. Give a start whose end is in the future.",
    )
    TOO_MANY_WINDOWS = (
        "too_many_windows",
        "`create_window`: there are as many maintenance windows as there may be. Delete some.",
    )
    COHORT_NOT_FOUND = (
        "cohort_not_found",
        "There is no such cohort, or none of the parent's name. Create it with `ensure_cohort`.",
    )
    COHORT_EXISTS = (
        "cohort_exists",
        "`create_cohort`, `rename_cohort`: there is a cohort of this name. Choose another name.",
    )
    COHORT_IN_USE = (
        "cohort_in_use",
        "`delete_cohort`: pools or cohorts are in it; `error` names them. Take them out of it first.",
    )
    COHORT_CYCLE = (
        "cohort_cycle",
        "`ensure_cohort`: the cohort would be above itself. Choose another parent.",
    )
    NODE_NOT_FOUND = ("node_not_found", "There is no such node; `error` lists the known ones.")
    AGENT_NOT_FOUND = ("agent_not_found", "There is no such agent.")
    TASK_NOT_FOUND = ("task_not_found", "No such task is running (or not on that agent).")
    TASK_NOT_ENDED = (
        "task_not_ended",
        "The task has no result yet; `state` says what it does. `wait` returns when it has ended.",
    )
    LEASE_ENDED = ("lease_ended", "The lease has ended, so it cannot be renewed; `error` says why.")
    TASK_CANCELLED = (
        "task_cancelled",
        "The task was cancelled, so it has no result; `error` says why.",
    )
    TASK_LOST = (
        "task_lost",
        "The task was lost with its agent's process, so it has no result.",
    )
    RESULT_EXPIRED = (
        "result_expired",
        "The result is no longer kept: it was too old, or results took too much space.",
    )
    STATE_NOT_FOUND = ("state_not_found", "No state of the task is stored.")

    # Tokens.
    NOT_ALLOWED = (
        "not_allowed",
        "The token's role or its limits do not allow it; `error` says which would.",
    )
    TOKEN_NOT_ACCEPTED = (
        "token_not_accepted",
        "Calls need a token, and there is none, or it is unknown, expired or revoked.",
    )
    TOKEN_EXISTS = ("token_exists", "A token of this name is valid. Rotate it, or revoke it first.")
    TOKEN_CONTRADICTION = (
        "token_contradiction",
        "The limits of the token would contradict its role. Change both together.",
    )
    TOKEN_NOT_FOUND = ("token_not_found", "There is no such token.")
    LAST_OPERATOR = (
        "last_operator",
        (
            "No other token of an operator lasts. Issue one before this one is revoked, or gets a "
            "lifetime or another role."
        ),
    )

    # The queue.
    HELD_FOR_QUEUE = (
        "held_for_queue",
        (
            "There is room, but tasks that wait in the queue come first, and it would delay "
            "their start. Submit it with `queue=True`, or with a higher priority."
        ),
    )
    NOT_QUEUED = ("not_queued", "The task does not wait in the queue: it runs, or has ended.")
    WAIT_TIMEOUT = (
        "wait_timeout",
        "The task did not start within the seconds that `wait` named, and was cancelled.",
    )
    IMPOSSIBLE = (
        "impossible",
        (
            "The task waited, could not have started even if nothing else ran for `impossible_after_s` "
            "seconds, and was cancelled because `on_impossible` is `cancel`; `error` says what it lacked."
        ),
    )
    CANCELLED = ("cancelled_by_request", "The task was cancelled by request.")

    DEPENDENCY_NOT_MET = (
        "dependency_not_met",
        (
            "A task that it was to start after (`after`) has ended otherwise, so it never starts "
            "(Slurm: DependencyNeverSatisfied); `error` names that task."
        ),
    )
    INVALID_DEPENDENCY = (
        "invalid_dependency",
        (
            "`after` names a task that is not on record or the task itself, or the task does not wait in the "
            "queue; `error` says which."
        ),
    )

    INVALID_ARRAY = (
        "invalid_array",
        ("It cannot be an array, or no member of the array has these indices; `error` says why."),
    )

    # Why a task waits in the queue.
    DEPENDENCY = (
        "dependency",
        (
            "Tasks that it starts after (`after`) have not ended yet (Slurm: Dependency); `error` says "
            "where each of them stands."
        ),
    )
    ARRAY_LIMIT = (
        "array_limit",
        (
            "As many members of its array run as may at once: `%N` behind the indices (Slurm: "
            "JobArrayTaskLimit)."
        ),
    )
    HELD_BY_USER = (
        "held_by_user",
        "It is held, and starts after `release_task` only (Slurm: JobHeldUser).",
    )
    BACK_OFF = (
        "back_off",
        (
            "It is tried again after a delay, because its last start found no room in Ray or its "
            "last run failed (Slurm: BeginTime)."
        ),
    )
    MEMBERS_ENDING = (
        "members_ending",
        "Members of its last attempt are still being saved or stopped; it starts when they have ended.",
    )
    BEHIND_QUEUE_HEAD = (
        "behind_queue_head",
        (
            "Tasks that come before it have to start first: a `strict` pool has no backfill, "
            "and others are evicted for the first task only (Slurm: Priority)."
        ),
    )
    INSUFFICIENT_RESOURCES = (
        "insufficient_resources",
        "Its pool has the quota, but no node has the room now (Slurm: Resources).",
    )
    NODES_CORDONED = (
        "nodes_cordoned",
        (
            "A node would have the room, but takes no new agents (Slurm: ReqNodeNotAvail). "
            "`cordon_node(node_id, cordoned=False)` opens it again."
        ),
    )
    MAINTENANCE_WINDOW = (
        "maintenance_window",
        (
            "A node would have the room, but is in a [maintenance window](../calendar.md), or one opens "
            "there before the task would be over (Slurm: ReqNodeNotAvail, Reserved for maintenance)."
        ),
    )
    NODE_RESERVED = (
        "node_reserved",
        (
            "A node would have the room, but a [window](../calendar.md) reserves it for others now, or "
            "before the task would be over (Slurm: ReqNodeNotAvail, Reserved)."
        ),
    )
    EXTERNAL_RAY_WORK = (
        "external_ray_work",
        "A node would have the room without the Ray work that does not belong to the scheduler.",
    )
    QUOTA_ON_HOLD = (
        "quota_on_hold",
        "Quota is held for others for a while, after a requested eviction or for a task that is tried again.",
    )
    QUOTA_ON_LOAN = ("quota_on_loan", "Agents of other pools hold quota of its pool as a loan.")
    COHORT_EXHAUSTED = (
        "cohort_exhausted",
        (
            "Its pool borrows from its cohort, but that has too little idle quota, or a "
            "`borrowing_limit` or `lending_limit` is reached."
        ),
    )
    CLASS_NOT_LOADED = (
        "class_not_loaded",
        "An eviction would make room, but before that its class has to load in a worker once.",
    )
    NEXT_SCHEDULING_PASS = (
        "next_scheduling_pass",
        "Nothing keeps it from starting: it starts when the queue is served next.",
    )

    # The agent or the task is in the wrong phase.
    AGENT_START_FAILED = (
        "agent_start_failed",
        (
            "The class could not be loaded or its object not built, or its process died; `detail` "
            "has the traceback, if there is one."
        ),
    )
    AGENT_START_TIMEOUT = (
        "agent_start_timeout",
        (
            "A phase of the start took longer than `start_limits` or `start_timeout` allows; its "
            "process was ended. `error` says which phase."
        ),
    )
    AGENT_DELETED = ("agent_deleted", "The agent was deleted before it started.")
    PARENT_ENDED = (
        "parent_ended",
        "The task that submits it has ended, or waits to run again; see `detached`.",
    )
    AGENT_ENDING = (
        "agent_ending",
        "A task cannot be registered on an agent that is being ended. Choose another agent.",
    )
    AGENT_NOT_RUNNING = ("agent_not_running", "Only a running agent is preempted.")
    TASK_NOT_RUNNING = (
        "task_not_running",
        (
            "Only a task that runs is preempted, completed or saved, and commands are started only in jobs "
            "that run, and in leases; `error` says what the task does."
        ),
    )
    COMMANDS_OFF = (
        "commands_off",
        "The policy allows no commands inside tasks and leases: `allow_exec` is False.",
    )
    TOO_MANY_COMMANDS = (
        "too_many_commands",
        "As many commands run in the job, or in all, as may at a time. End some, or try again later.",
    )
    ALREADY_BEING_PREEMPTED = (
        "already_being_preempted",
        "The task is being preempted or ended already, or is not running yet.",
    )
    NOT_CANCELLED = (
        "not_cancelled",
        (
            "`execute_preemption`: the class has no `cancel`, or it failed; the state is saved "
            "and the task runs on. `preempt_task` ends it with its agent."
        ),
    )

    BEYOND_TOKEN = (
        "beyond_token",
        "The token of the incoming task's submitter allows no evictions in this pool (`evict_pools`).",
    )
    TOO_MANY_TOKENS = (
        "too_many_tokens",
        "There are as many tokens as a scheduler may have. Revoke those that are not used.",
    )
    REQUEST_ID_REUSED = (
        "request_id_reused",
        "The same `Idempotency-Key` came with another request before; nothing was done. Give another key.",
    )

    # A state cannot be saved, or a task not be run again.
    SAVE_FAILED = (
        "save_failed",
        (
            "`save_task_state`: the preserver or `save_state` failed, or the agent died; the "
            "state saved before is kept."
        ),
    )
    STATE_TOO_LARGE = (
        "state_too_large",
        "The state has more bytes than `saved_state_bytes`; the one saved before is kept.",
    )
    RESTORE_FAILED = (
        "restore_failed",
        (
            "The pool's restorer raised an exception (`detail` has the traceback) or took too long; the "
            "state is kept."
        ),
    )
    NOT_RESTARTABLE = (
        "not_restartable",
        (
            "The agent was given object references within its arguments, so it cannot be created again."
        ),
    )
    NOT_RESUBMITTABLE = (
        "not_resubmittable",
        (
            "The task was only registered, and its pool has no restorer, so nothing can start it again."
        ),
    )

    # The scheduler cannot carry it out.
    STANDING_SCHEDULER = (
        "standing_scheduler",
        "`shutdown` without `force` on a standing scheduler that this object found, not made.",
    )
    JOURNAL_UNAVAILABLE = (
        "journal_unavailable",
        (
            "The journal cannot be written or read at present; nothing was changed. Try again when it can."
        ),
    )
    HISTORY_UNAVAILABLE = (
        "history_unavailable",
        (
            "The history cannot be read: it is switched off, or its database fails; `error` says "
            "why. Decisions do not depend on it."
        ),
    )
    INTERNAL_ERROR = (
        "internal_error",
        (
            "The scheduler failed at this request, and its log says why; other requests are not affected."
        ),
    )

    # Why a running task is not evicted.
    PROTECTED_POOL = ("protected_pool", "Its pool is protected.")
    DOMINATES_BY_LABEL = ("dominates_by_label", "It ranks above the incoming task by a label rule.")
    BELOW_SAME_POOL_THRESHOLD = (
        "below_same_pool_threshold",
        "The difference of priority is too small within the pool.",
    )
    CROSS_POOL_DISABLED = ("cross_pool_disabled", "`enable_cross_pool_preemption` is off.")
    BELOW_CROSS_POOL_THRESHOLD = (
        "below_cross_pool_threshold",
        "The difference of priority is too small across pools.",
    )
    OWN_QUOTA = (
        "own_quota",
        (
            "It runs at least in part on its own pool's quota, which its cohort and borrowers do not take by "
            "priority."
        ),
    )
    BELOW_MIN_PREEMPT_SCORE = ("below_min_preempt_score", "Its score is below `min_preempt_score`.")
    BELOW_MIN_RUNTIME = ("below_min_runtime", "It has not run for `min_runtime` seconds yet.")
    PREEMPTED_TOO_OFTEN = (
        "preempted_too_often",
        "It has been evicted as often as `max_preemptions` allows.",
    )
    IN_PREEMPTION_COOLDOWN = (
        "in_preemption_cooldown",
        "Tasks were evicted for the same pool less than `preemption_cooldown` seconds ago.",
    )
    EXCEEDS_LOST_WORK_BUDGET = (
        "exceeds_lost_work_budget",
        "Its eviction would lose more work than `lost_work_budget` leaves to its pool this hour.",
    )
    CAME_FIRST = (
        "came_first",
        "It started while the incoming task waited, because it came first in the order of the queue.",
    )
    VETOED_BY_STRATEGY = ("vetoed_by_strategy", "A [strategy](../plugins.md) keeps it.")
    WOULD_NOT_MAKE_ROOM = (
        "would_not_make_room",
        "It could be evicted, but the incoming task would not fit even so.",
    )
    NO_RUNNING_TASKS = ("no_running_tasks", "No task is running.")
    RESOURCES_AVAILABLE = ("resources_available", "There is room; nobody has to be evicted.")
    STARTS_CANCELLED = (
        "starts_cancelled",
        "No running task has to be evicted: tasks on borrowed quota that do not run yet wait again.",
    )


#: Refusals because of a shortage; all others are errors of the caller.
SHORTAGES = frozenset(
    {
        Reason.CLUSTER_OUT_OF_RESOURCES,
        Reason.GROUP_UNPLACEABLE,
        Reason.INSUFFICIENT_QUOTA,
        Reason.PREEMPTION_FAILED,
    }
)


class PreemptionReason(Code):
    """The rule that allowed an eviction; preemptions are counted by it."""

    LABEL = ("label_based_preemption", "A label rule ranks the incoming task above it.")
    SAME_POOL = (
        "same_pool_preemption",
        "The incoming task of the same pool has enough more priority.",
    )
    CROSS_POOL = (
        "cross_pool_preemption",
        "The incoming task of another pool has enough more priority.",
    )
    RECLAIM = (
        "reclaim",
        "It ran on borrowed quota, and the incoming task's pool took its own quota back.",
    )
    ATTAINED_SERVICE = (
        "attained_service",
        "It had used more GPU time, and was in a later level than the incoming task (`las_preempts`).",
    )
    MORE_LEFT = (
        "more_left",
        "It had more left to run, by the estimates, than the incoming task (`shortest_preempts`).",
    )
    DEFRAGMENTED = ("defragmented", "It was moved, so that a larger task had room on its node.")
    STRATEGY = (
        "strategy_preemption",
        "A [strategy](../plugins.md) allowed what the rules refused.",
    )
    DRAINED = ("drained", "Its node or its pool is drained.")
    WINDOW = (
        "for_window",
        "A [window](../calendar.md) of maintenance, or a reservation for others, begins on its node.",
    )
    TIME_LIMIT = ("time_limit", "It had run for as long as `max_run_s` allows.")
    IDLE_LIMIT = ("idle_limit", "Its GPUs were idle for twice as long as `idle_s` allows.")
    CALLED_BACK = (
        "called_back",
        (
            "It ran on borrowed quota that its owner has no more, because that pool was made smaller or is "
            "being deleted."
        ),
    )
    MANUAL = ("manual", "Evicted by request, without an evaluation before.")


#: What must be empty is emptied: such an eviction counts as no preemption.
DRAINS = frozenset({PreemptionReason.DRAINED, PreemptionReason.WINDOW})
#: Limits in time that a task has reached.
LIMITS = frozenset({PreemptionReason.TIME_LIMIT, PreemptionReason.IDLE_LIMIT})


class Change(Code):
    """What a request that was carried out changed, or why it changed nothing."""

    CREATED = ("created", "The pool or the window is new.")
    CHANGED = ("changed", "The pool or the window has another definition now.")
    UNCHANGED = ("unchanged", "The pool, the node or the window was like this already.")
    DELETED = ("deleted", "The pool, the cohort or the window exists no more.")
    ENDING = ("ending", "The pool is drained, and is deleted when nothing uses it any more.")
    ALREADY_REGISTERED = ("already_registered", "The same task is registered on the agent already.")
    AGENT_KEPT = (
        "agent_kept",
        "The task is complete; its agent runs other tasks, so it was not ended.",
    )
    ALREADY_ENDED = ("already_ended", "`cancel_task`: the task has ended before.")
    ALREADY_GONE = ("already_gone", "`delete_agent`: the agent has ended before.")
