"""What the state holds of agents: those that live, those that were preempted, those that were lost."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.agent import AgentPhase, AgentSpec
from schedulemesh.domain.reasons import EndReason
from schedulemesh.domain.resources import NOTHING, Resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages.outcomes import Candidate, RequestOutcome


class Agent(msgspec.Struct, kw_only=True, gc=False):
    """An agent on the book, from its admission until its process is known gone."""

    spec: AgentSpec
    incarnation: int
    phase: AgentPhase
    admitted_at: float
    #: Who pays for what is reserved or used of its claim.
    shares: tuple[f.Share, ...] = ()
    #: Whether its shares are used (True) or only reserved.
    committed: bool = False
    #: The task that it was submitted with.
    task_id: str | None = None
    node_id: str | None = None
    #: The GPUs that it reported, by their names on its node.
    gpu_ids: tuple[str, ...] = ()
    evicting: tuple[Candidate, ...] = ()
    #: Agents that still have to leave before it can start.
    waits_for: frozenset[str] = frozenset()
    #: Groups that still have to leave, or to be made, before it can start.
    waits_for_groups: frozenset[str] = frozenset()
    #: The placement group that it lives in, and how it came to it; None: it stands on the node itself.
    group_id: str | None = None
    group_path: str = ""
    #: Whether its group goes with it; None: what the pool's definition says.
    destroy_group: bool | None = None
    request_id: str | None = None
    state_key: str | None = None
    state_restored: bool | None = None
    pid: int = 0
    actor_name: str = ""
    actor_namespace: str = ""
    started_at: float | None = None
    #: How often Ray restarted its process by itself.
    restarts: int = 0
    #: Why it is being ended; None while it is not.
    ending: EndReason | None = None
    #: The agent that it leaves for, if it is a victim of a submission.
    leaves_for: str | None = None
    #: Once it is gone, its quota is held for this pool, or for this client.
    hold_for: str | None = None
    hold_for_client: str | None = None
    #: Which request its end answers.
    ended_by: str | None = None
    #: Which control methods its class has.
    capabilities: tuple[str, ...] = ()

    @property
    def paid(self) -> Resources:
        """The sum of its shares."""
        total = NOTHING
        for share in self.shares:
            total = total + share.amount
        return total


class Preempted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A past preemption; with the specs, enough to run the task again."""

    fact: f.TaskPreempted
    #: The key of the state saved for it; None: none was.
    state_key: str | None = None
    #: Whether its task has run again since: nothing is left to restore, and its state is kept no longer.
    ran_again: bool = False


class LostAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent whose process died without our doing, with what is needed to make it again."""

    spec: AgentSpec
    at: float
    #: Each of its tasks with the key of its last saved state, if any.
    tasks: tuple[tuple[TaskSpec, str | None], ...] = ()
    #: Whether somebody was told that it cannot be rebuilt.
    reported: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A remembered answer."""

    at: float
    outcome: RequestOutcome
