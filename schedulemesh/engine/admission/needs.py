"""What a submission asks for: resources, and what of its pool's placement groups."""

from __future__ import annotations

from schedulemesh.domain.resources import Resources
from schedulemesh.domain.task import DEFAULT_PRIORITY
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.placement.group_choice import FOR_GANGS, GroupRequest, group_request_of
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.state.queue import QueuedTask


def need_of(state: MeshState, task: QueuedTask) -> Resources:
    """The resources that a queued task asks for."""
    submission = task.submission
    if submission.default_resources:
        return state.ledger.accounts[task.pool_name].spec.default_agent()
    return submission.agent.resources


def groups_asked(
    state: MeshState, submission: TaskSubmitted, pool_name: str, need: Resources
) -> GroupRequest | None:
    """What a submission to this pool asks of placement groups; None: it runs without one."""
    agent, task = submission.agent, submission.task
    spec = state.ledger.accounts[pool_name].spec.groups
    if spec is None and agent.gang is not None:
        spec = FOR_GANGS
    if spec is None:
        return None
    return group_request_of(
        state,
        pool_name,
        spec,
        agent.bundles or (need,),
        DEFAULT_PRIORITY if task is None else task.priority,
        agent.labels if task is None else task.labels,
        agent.gang,
    )
