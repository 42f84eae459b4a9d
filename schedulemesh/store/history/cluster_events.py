"""The events of a history that belong to no task: definitions, nodes, groups, supervisors, observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, get_args

import msgspec

from schedulemesh.engine.codec import encode_facts
from schedulemesh.engine.messages import drain_facts as d
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import queue_facts as q
from schedulemesh.engine.messages.cohort_facts import CohortDeleted, CohortEnsured, CohortRenamed
from schedulemesh.engine.messages.demand_facts import AnyDemandFact
from schedulemesh.engine.messages.fact import Fact
from schedulemesh.engine.messages.measurement_facts import AnyMeasurement
from schedulemesh.engine.messages.pool_facts import BudgetLevelChanged, PoolDeleted, PoolRenamed
from schedulemesh.engine.messages.window_facts import (
    WindowCreated,
    WindowEnded,
    WindowNodesChosen,
)
from schedulemesh.store.history.events import OBSERVED, SeenNode

#: What was seen of external work, or measured of agents, and changes decisions.
_OBSERVATIONS = (*get_args(AnyDemandFact), *get_args(AnyMeasurement))


class Notes(Protocol):
    """What notes them; see ``fold.Fold``."""

    #: The ids of the nodes that are to be written.
    changed_nodes: set[str]

    def node(self, node_id: str) -> SeenNode:
        """A node, by which attempts refer to it."""

    def event(
        self, kind: str, attempt: None, subject: str, fact: f.AnyFact | None, **detail: object
    ) -> None:
        """Note an event now."""

    def rename_pool(self, name: str, new_name: str) -> None:
        """Have the open attempts of a pool be of its new name."""

    def step(self, kind: str, **fields: str) -> None:
        """Note a step now that is no event."""


class ClusterEvents:
    """Notes the events that facts lead to."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    @property
    def updates(self) -> dict[type[Fact], Callable[[Any], None]]:
        """What each of these facts leads to."""
        return {
            f.PoolEnsured: lambda fact: self._define("pool_defined", fact.spec.name, fact),
            PoolRenamed: self._pool_renamed,
            PoolDeleted: lambda fact: self._define("pool_deleted", fact.pool_name, fact),
            BudgetLevelChanged: self._budget_level_changed,
            CohortRenamed: lambda fact: self._notes.event(
                "cohort_renamed", None, fact.name, fact, new_name=fact.new_name
            ),
            CohortDeleted: lambda fact: self._define("cohort_deleted", fact.name, fact),
            CohortEnsured: lambda fact: self._define("cohort_defined", fact.spec.name, fact),
            q.QueuePolicyChanged: self._policy_changed,
            f.PolicyChanged: self._policy_changed,
            f.NodeSeen: self._node_seen,
            f.NodeLost: self._node_lost,
            f.NodeCordoned: self._node_cordoned,
            d.DrainStarted: self._drain_started,
            d.DrainEnded: lambda fact: self._note("drain_ended", _drained(fact)),
            WindowCreated: lambda fact: self._notes.event(
                "window_created", None, fact.window.name, fact, by_client=fact.client
            ),
            WindowEnded: lambda fact: self._notes.event(
                "window_ended", None, fact.name, fact, by_client=fact.client or None
            ),
            WindowNodesChosen: lambda fact: self._note(
                "window_nodes_chosen", fact.name, nodes=list(fact.node_ids)
            ),
            f.GroupReady: lambda fact: self._note("group_created", fact.group_id),
            f.GroupEnded: lambda fact: self._note("group_removed", fact.group_id, error=fact.error),
            f.EpochBegun: self._epoch_begun,
            q.Ticked: self._ticked,
            q.ClassLoaded: lambda fact: self._notes.step("class_loaded", subject=fact.class_key),
            **dict.fromkeys(_OBSERVATIONS, self._observed),
        }

    def _note(self, kind: str, subject: str = "", **detail: object) -> None:
        self._notes.event(kind, None, subject, None, **detail)

    def _define(self, kind: str, subject: str, fact: f.AnyFact) -> None:
        self._notes.event(kind, None, subject, fact)

    def _pool_renamed(self, fact: PoolRenamed) -> None:
        """What is open is of the pool as it is called now; what has ended keeps the old name."""
        self._notes.rename_pool(fact.pool_name, fact.new_name)
        self._notes.event("pool_renamed", None, fact.pool_name, fact, new_name=fact.new_name)

    def _budget_level_changed(self, fact: BudgetLevelChanged) -> None:
        """A part of a budget was used, or there is room in it again."""
        self._note(
            "budget_reached" if fact.level else "budget_renewed",
            fact.pool_name,
            of_owner=fact.owner,
            percent=fact.level or None,
            used=round(fact.used, 3),
            gpu_hours=fact.gpu_hours,
            until=fact.until,
        )

    def _policy_changed(self, fact: f.PolicyChanged | q.QueuePolicyChanged) -> None:
        kind = "policy_changed" if isinstance(fact, f.PolicyChanged) else "queue_policy_changed"
        shown = fact.policy.public()
        # A fact from before a field was renamed lists it as the stored policy calls it.
        names = {field.encode_name: field.name for field in msgspec.structs.fields(fact.policy)}
        renamed = [names.get(name, name) for name in fact.changes]
        changes = {name: shown[name] for name in renamed if name in shown}
        self._notes.event(kind, None, "", fact, by_client=fact.client, changes=changes)

    def _node_seen(self, fact: f.NodeSeen) -> None:
        node = self._notes.node(fact.report.node_id)
        if not node.present:
            node.present = True
            self._notes.changed_nodes.add(fact.report.node_id)
            self._define("node_joined", fact.report.node_id, fact)
        else:
            self._define("node_changed", fact.report.node_id, fact)

    def _node_lost(self, fact: f.NodeLost) -> None:
        self._notes.node(fact.node_id).present = False
        self._notes.changed_nodes.add(fact.node_id)
        self._note("node_lost", fact.node_id)

    def _node_cordoned(self, fact: f.NodeCordoned) -> None:
        self._note("node_cordoned" if fact.cordoned else "node_uncordoned", fact.node_id)

    def _drain_started(self, fact: d.DrainStarted) -> None:
        self._note(
            "drain_started",
            _drained(fact),
            deadline=fact.deadline,
            by_client=fact.client,
            window=fact.window or None,
            deletes=fact.deletes or None,
        )

    def _epoch_begun(self, fact: f.EpochBegun) -> None:
        self._note("supervisor_started", epoch=fact.epoch, gap=fact.gap or None)

    def _ticked(self, fact: q.Ticked) -> None:
        if fact.recovered:
            self._note("supervisor_recovered")
        elif fact.served:
            self._observed(fact)
        else:
            self._notes.step("ticked")

    def _observed(self, fact: f.AnyFact) -> None:
        self._notes.step(OBSERVED, fact=encode_facts((fact,)).decode())


def _drained(fact: d.DrainStarted | d.DrainEnded) -> str:
    """The node or pool that it is about."""
    return fact.node_id or fact.pool_name or ""
