"""Runs a recorded period again, as it was or with other policies, pools or nodes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import msgspec

from schedulemesh.config.policy import changed_policy
from schedulemesh.config.queueing import changed_queue_policy
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim.policy import parse_policy
from schedulemesh.sim.rehearsal.decisions import Check, compared, decisions
from schedulemesh.sim.rehearsal.figures import PoolPeriod, TaskWait, periods, task_waits
from schedulemesh.sim.rehearsal.outside import Outside
from schedulemesh.sim.rehearsal.recording import Recording, Submission, submissions_of
from schedulemesh.sim.rehearsal.world import RehearsedWorld
from schedulemesh.sim.timing import Timing

_CLIENT = "rehearsal"


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What is other than in the history from the beginning of the period on."""

    #: What a policy file declares, as for ``schedulemesh apply``; what it leaves out stays as it was. Own
    #: strategies cannot be rehearsed.
    policy: Mapping[str, Any] = {}
    #: GPUs of pools by their names.
    pools: Mapping[str, float] = {}
    #: Nodes like the largest that are added; below 0: so many nodes less.
    nodes: int = 0

    @property
    def any(self) -> bool:
        """Whether anything is other than in the history."""
        return bool(self.policy or self.pools or self.nodes)


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """What a period was, and what it would have been."""

    #: In seconds since 1970.
    since: float
    until: float
    #: How far the rehearsal decides what was decided, under the policy that was in force.
    check: Check
    #: By pool; all of them under the empty name.
    recorded: dict[str, PoolPeriod]
    rehearsed: dict[str, PoolPeriod]
    #: How long each task waited, those that gain most first.
    waits: list[TaskWait]
    #: Submissions that the changes refuse.
    refused: int


def rehearse(
    recording: Recording,
    changes: Changes | None = None,
    since: float | None = None,
    timing: Timing | None = None,
    *,
    node_strategy: str = "bin_pack",
) -> Rehearsal:
    """Rehearse a recording with these changes from ``since`` on (seconds since 1970; None: its beginning).

    ``timing``: what actions take that the history has none of. Raises InvalidRequestError for changes that
    cannot be made, and for a period after the end of the recording.
    """
    timing, changes = timing or Timing(), changes or Changes()
    quotas = _checked(changes)
    since = _begin(recording, since)
    same = _Run(recording, timing, node_strategy)
    same.run(None, since)
    check = compared(
        decisions(recording.submissions, recording.node_ids, recording.until),
        decisions(same.submissions(), same.node_ids(), recording.until),
        same.outside.left_out,
        timing.tick_s,
    )
    changed = same
    if changes.any:
        changed = _Run(recording, timing, node_strategy)
        changed.run(changes, since, quotas)
    until = recording.until
    return Rehearsal(
        since=since,
        until=until,
        check=check,
        recorded=periods(recording.submissions, since, until),
        rehearsed=periods(changed.submissions(), since, until),
        waits=task_waits(recording.submissions, changed.submissions(), since, until),
        refused=changed.world.refused,
    )


def _checked(changes: Changes) -> dict[str, int]:
    """The units of GPU that pools get. Raises InvalidRequestError for changes that no history allows."""
    if changes.policy.get("strategies"):
        raise InvalidRequestError(
            "the new policy has own strategies, which a rehearsal does not ask; leave them out, or compare "
            "them on a trace of jobs with schedulemesh simulate"
        )
    return {
        name: parse_resources({"gpu": gpus}, f"pool {name!r}: resources").gpu
        for name, gpus in changes.pools.items()
    }


def _begin(recording: Recording, since: float | None) -> float:
    """When the period begins. Raises InvalidRequestError where the recording ends before."""
    begin = recording.events[0].at if recording.events else 0.0
    if since is not None and since > recording.until:
        raise InvalidRequestError(
            f"the history ends at {_time(recording.until)}, and the period is to begin after it, at "
            f"{_time(since)}; let it begin earlier"
        )
    return begin if since is None else max(since, begin)


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, tz=timezone.utc).astimezone().isoformat(" ", "seconds")


class _Run:
    """One run of a recording."""

    def __init__(self, recording: Recording, timing: Timing, node_strategy: str) -> None:
        self._recording = recording
        begin = recording.events[0].at if recording.events else 0.0
        engine = Engine(node_strategy=node_strategy)
        self.world = RehearsedWorld(engine, recording, timing, begin)
        self.outside = Outside(self.world, recording)

    def run(
        self, changes: Changes | None, since: float, quotas: Mapping[str, int] | None = None
    ) -> None:
        """Let the recorded time pass; the changes, with quotas in units of GPU, are made at ``since``."""
        self.outside.define()
        self.outside.plan()
        if changes is not None:
            self.world.recorded_at(since, 0, lambda: self._change(changes, quotas or {}))
        self.world.run_until(self._recording.until)

    def submissions(self) -> list[Submission]:
        """What became of each submission."""
        return submissions_of(self.world.fold.changed.values())

    def node_ids(self) -> dict[int, str]:
        """The names of nodes, by the numbers by which attempts refer to them."""
        return {node.id: node_id for node_id, node in self.world.fold.nodes.items()}

    def _change(self, changes: Changes, quotas: Mapping[str, int]) -> None:
        """Put the changes in force; definitions of the same that the history has later count no more."""
        state, overridden = self.world.engine.state, self.outside.overridden
        policy = parse_policy(changes.policy, "the new policy")
        given: Mapping[str, Any] = changes.policy.get("policy") or {}
        for cohort in policy.cohorts:
            overridden.add(("cohort_defined", cohort.name))
            self._request(s.CohortRequested(spec=cohort))
        for spec in policy.pools:
            overridden.add(("pool_defined", spec.name))
            self._request(s.PoolRequested(spec=spec))
        for name, units in quotas.items():
            account = state.ledger.accounts.get(name)
            if account is None:
                raise InvalidRequestError(f"there was no pool {name!r} at that time")
            overridden.add(("pool_defined", name))
            quota = msgspec.structs.replace(account.spec.resources, gpu=units)
            resized = msgspec.structs.replace(account.spec, resources=quota)
            self._request(s.PoolRequested(spec=resized))
        if given.get("preemption"):
            overridden.add(("policy_changed", ""))
            preemption = changed_policy(state.policy, given["preemption"])
            self._request(s.PolicyChangeRequested(policy=preemption, client=_CLIENT, changes=()))
        if given.get("queue"):
            overridden.add(("queue_policy_changed", ""))
            queue = changed_queue_policy(state.queue.policy, given["queue"])
            self._request(s.QueuePolicyChangeRequested(policy=queue, client=_CLIENT, changes=()))
        if changes.nodes:
            self._check_nodes(changes.nodes)
            self.outside.add_nodes(changes.nodes)
        self.world.deviate()

    def _check_nodes(self, more: int) -> None:
        there = len(self.world.engine.state.cluster.nodes)
        if there + more < 1:
            raise InvalidRequestError(
                f"there were {there} nodes at that time, and with {more:+} none would be left; at most "
                f"{max(0, there - 1)} can be taken away"
            )

    def _request(self, stimulus: s.AnyStimulus) -> None:
        outcome = self.world.handle(stimulus).outcome
        if isinstance(outcome, Refused):
            raise InvalidRequestError(outcome.error)
