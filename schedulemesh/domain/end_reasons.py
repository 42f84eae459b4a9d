"""The codes that say why an agent, or a task, has ended."""

from __future__ import annotations

from schedulemesh.domain.reasons import Code


class EndReason(Code):
    """Why an agent ends or ended."""

    COMPLETED = ("completed", "Its task was completed, and its end was asked for.")
    DELETED = ("deleted", "It was deleted.")
    PREEMPTED = ("preempted", "It was evicted.")
    LOST = ("lost", "Its process died although nobody ended it, or its placement group was lost.")
    OUT_OF_MEMORY = (
        "out_of_memory",
        "It was killed because its node was short of memory, and its task is not started again.",
    )
    OVER_CLAIM = ("over_claim", "It is a job that held more in Ray than it claimed.")
    RUN_FAILED = ("run_failed", "The run of its task raised, and the task is started again.")
    START_FAILED = ("start_failed", "It did not start.")


class ReturnReason(Code):
    """Why a task that was admitted gave its claim back before it ran, and waits in the queue again."""

    ROOM_LOST = (
        "room_lost",
        (
            "What was freed for it is gone, or was not enough: its node or its placement group was lost, or "
            "the cluster changed."
        ),
    )
    ROOM_TAKEN = (
        "room_taken",
        (
            "Ray had no room for it where the scheduler had counted some; other Ray work may have it."
        ),
    )
    DRAINED = ("drained", "Its node or its pool is drained, so nothing new starts there.")
    QUOTA_TAKEN_BACK = (
        "quota_taken_back",
        "It would have borrowed, and a task of the pool that owns the quota got it back.",
    )


class TaskEndReason(Code):
    """Why a task has ended without being completed."""

    RUN_RAISED = ("run_raised", "Its function or method raised; `result` raises the exception.")
    RESULT_TOO_LARGE = (
        "result_too_large",
        (
            "It ran to its end, but what it returned has more bytes than `result_bytes`. Write it "
            "to a file or an object store, and return the address."
        ),
    )
    RESULT_NOT_KEPT = (
        "result_not_kept",
        (
            "It ran to its end, but what it returned cannot be kept: it cannot be pickled, or "
            "holds object references, which would end with the agent."
        ),
    )
    OUT_OF_MEMORY = (
        "out_of_memory",
        (
            "Its process was killed because its node was short of memory, and `on_oom` is `fail`, or is "
            "`grow` and it may have no more. Ask for more memory."
        ),
    )
    NOT_RUN = (
        "not_run",
        "Its agent could not call what it is to run; `error` says why.",
    )
    NOT_STARTED = ("not_started", "Its agent could not be started; `error` says why.")
    CANCELLED = ("cancelled_by_request", "It was cancelled by request.")
    HOLDER_ENDED = ("holder_ended", "The Ray job that held the lease has ended.")
    EXPIRED = ("lease_expired", "The lease was not renewed within `ttl_s` seconds.")
    OVER_CLAIM = (
        "over_claim",
        (
            "The job held more in Ray than it claimed, for longer than `over_claim_s`, and "
            "`over_claim` is `end`. Ask for what it needs when it is submitted."
        ),
    )
    PREEMPTED = ("preempted", "It was evicted, and is not run again by itself.")
    TIME_LIMIT = (
        "time_limit",
        (
            "It had run for as long as `max_run_s` of it or of its pool allows. `on_time_limit='requeue'` "
            "has it start again by itself."
        ),
    )
    IDLE_LIMIT = (
        "idle_limit",
        (
            "Its GPUs were idle for twice as long as `idle_s` of it or of its pool allows; it was warned "
            "after the first half."
        ),
    )
    DELETED = ("deleted", "Its agent was deleted.")
    PARENT_ENDED = (
        "parent_ended",
        (
            "The task that started it was cancelled, evicted, failed or lost. An evicted one starts it "
            "again by itself; `detached` tasks do not end with it."
        ),
    )
    MEMBERS_NOT_COMPLETED = (
        "members_not_completed",
        "It is an array, and not all of its members were completed; `error` says how many have ended how.",
    )
    LOST = ("lost", "Its agent's process died although nobody ended it.")
