"""Runs a recorded period again, as it was or with other policies, pools or nodes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import msgspec

from schedulemesh.domain.resources import NOTHING, Resources, parse_resources
from schedulemesh.domain.sentences import Text
from schedulemesh.engine.engine import Engine
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim.rehearsal.decisions import Check, compared, decisions
from schedulemesh.sim.rehearsal.declared import Declared
from schedulemesh.sim.rehearsal.figures import PoolPeriod, TaskWait, periods, task_waits
from schedulemesh.sim.rehearsal.outside import Outside
from schedulemesh.sim.rehearsal.recording import RecordedSubmission, Recording, submissions_of
from schedulemesh.sim.rehearsal.world import RehearsedWorld
from schedulemesh.sim.strategies import parse_node_strategy
from schedulemesh.sim.timing import Timing


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
    #: Which of them was the first, and why; empty: none is.
    first_refusal: Text = ""
    #: The nodes that were added, or left out where it is below 0.
    nodes: int = 0
    #: What each of those has that were added.
    each_node: Resources = NOTHING


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
    node_strategy = parse_node_strategy(node_strategy)
    declared = _checked(changes)
    since = _begin(recording, since)
    same = _Run(recording, timing, node_strategy)
    same.run()
    check = compared(
        decisions(recording.submissions, recording.node_ids, recording.until),
        decisions(same.submissions(), same.node_ids(), recording.until),
        same.outside.left_out,
        timing.tick_s,
    )
    changed = same
    if changes.any:
        changed = _Run(recording, timing, node_strategy)
        changed.run(declared, since, changes.nodes)
    until = recording.until
    recorded = periods(recording.submissions, since, until)
    return Rehearsal(
        since=since,
        until=until,
        check=check,
        recorded=recorded,
        rehearsed=periods(changed.submissions(), since, until, recorded),
        waits=task_waits(recording.submissions, changed.submissions(), since, until),
        refused=changed.world.refused,
        first_refusal=changed.world.first_refusal,
        nodes=changes.nodes,
        each_node=changed.outside.each_added,
    )


def _checked(changes: Changes) -> Declared:
    """What the changes declare. Raises InvalidRequestError for those that no history allows."""
    if changes.policy.get("strategies"):
        raise InvalidRequestError(
            "the new policy has own strategies, which a rehearsal does not ask; leave them out, or compare "
            "them on a trace of jobs with schedulemesh simulate"
        )
    quotas = {
        name: parse_resources({"gpu": gpus}, f"pool {name!r}: resources").gpu
        for name, gpus in changes.pools.items()
    }
    return Declared(changes.policy, quotas)


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

    def run(self, declared: Declared | None = None, since: float = 0.0, nodes: int = 0) -> None:
        """Let the recorded time pass. What is declared comes into force at ``since``, and so many nodes more
        are there from then on.
        """
        self.outside.define()
        self.outside.plan()
        if declared is not None:
            self.world.recorded_at(since, 0, lambda: self._change(declared, nodes))
        self.world.run_until(self._recording.until)

    def submissions(self) -> list[RecordedSubmission]:
        """What became of each submission."""
        return submissions_of(self.world.fold.changed.values())

    def node_ids(self) -> dict[int, str]:
        """The names of nodes, by the numbers by which attempts refer to them."""
        return {node.id: node_id for node_id, node in self.world.fold.nodes.items()}

    def _change(self, declared: Declared, nodes: int) -> None:
        """Put the changes in force; they also count for what the history defines later."""
        self.outside.declared = declared
        for request in declared.requests(self.world.engine.state):
            outcome = self.world.handle(request).outcome
            if isinstance(outcome, Refused):
                raise InvalidRequestError(outcome.error)
        if nodes:
            self._check_nodes(nodes)
            self.outside.add_nodes(nodes)
        self.world.deviate()

    def _check_nodes(self, more: int) -> None:
        there = len(self.world.engine.state.cluster.nodes)
        if there + more < 1:
            raise InvalidRequestError(
                f"there were {there} nodes at that time, and with {more:+} none would be left; at most "
                f"{max(0, there - 1)} can be taken away"
            )
