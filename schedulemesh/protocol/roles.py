"""Roles, and which requests each of them may make: one table, for every way by which requests come in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from schedulemesh.domain.tokens import Role
from schedulemesh.protocol import queue_requests as q
from schedulemesh.protocol import requests as r
from schedulemesh.protocol import state_requests
from schedulemesh.protocol import task_requests as t
from schedulemesh.protocol.audit_requests import QueryAudit
from schedulemesh.protocol.job_logs import ReadJobLog
from schedulemesh.protocol.lease_requests import ReleaseLease, RenewLease, SaveLease, WatchLease
from schedulemesh.protocol.token_requests import (
    GetTokenHashes,
    ListTokens,
)

_RANKS = {role: rank for rank, role in enumerate(Role)}

#: Requests about a submitter's own tasks.
_OWN_TASKS = (
    r.SubmitTask,
    q.SubmitMany,
    q.ChangeQueuedTask,
    q.CancelTasks,
    t.CancelTask,
    t.GetResult,
    ReadJobLog,
    WatchLease,
    RenewLease,
    SaveLease,
    ReleaseLease,
    r.RegisterTask,
    r.CompleteTask,
    state_requests.SaveTaskState,
    state_requests.GetSavedState,
    state_requests.RestoreTask,
)
#: Queries about who calls the scheduler.
_ABOUT_CALLERS = (ListTokens, GetTokenHashes, QueryAudit)

#: The lowest role that may make a request of each class: changes are for operators unless they are about a
#: submitter's own tasks, and queries for every role.
LEAST_ROLE: Mapping[type, Role] = {
    **dict.fromkeys(get_args(r.AnyQuery), Role.VIEWER),
    **dict.fromkeys((*r.CHANGES, *_ABOUT_CALLERS), Role.OPERATOR),
    **dict.fromkeys(_OWN_TASKS, Role.SUBMITTER),
}


def allows(role: Role, request: type) -> bool:
    """Whether a role may make requests of this class. A submitter's are restricted further."""
    return _RANKS[role] >= _RANKS[LEAST_ROLE[request]]
