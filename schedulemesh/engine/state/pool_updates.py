"""What the facts about pools change in the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from schedulemesh.engine.messages.fact import Fact
from schedulemesh.engine.messages.facts import PoolEnsured
from schedulemesh.engine.messages.pool_facts import PoolDeleted, PoolRenamed
from schedulemesh.engine.state.cohort_updates import loans_within_trees, note_separated
from schedulemesh.engine.state.pool_rename import PoolRename

if TYPE_CHECKING:
    from schedulemesh.engine.state.group_updates import GroupFacts
    from schedulemesh.engine.state.mesh_state import MeshState


class PoolFacts:
    """Applies them."""

    def __init__(self, state: MeshState, groups: GroupFacts) -> None:
        self._state, self._groups = state, groups

    @property
    def updates(self) -> Mapping[type[Fact], Callable[..., None]]:
        """What applies each fact."""
        return {
            PoolEnsured: self._ensured,
            PoolDeleted: self._deleted,
            PoolRenamed: self._renamed,
        }

    def _ensured(self, fact: PoolEnsured) -> None:
        state, name = self._state, fact.spec.name
        if name not in state.ledger.accounts:
            state.pool_names.note_created(name)
        before = loans_within_trees(state.ledger)
        state.ledger.ensure(fact.spec)
        note_separated(state.ledger, state.agents, before)
        state.agents_of.setdefault(name, set())
        self._groups.ensured(fact.spec)
        # A pool gives its tasks a size where they ask for none.
        state.queue.kinds.seen = -1

    def _deleted(self, fact: PoolDeleted) -> None:
        state, name = self._state, fact.pool_name
        state.ledger.remove(name)
        del state.agents_of[name]
        state.groups.forget(name)
        state.drains.forget_pool(name)
        state.handlers.pop(name, None)
        state.evictions.last_for.pop(name, None)
        state.evictions.lost_work.pop(name, None)
        state.queue.kinds.seen = -1

    def _renamed(self, fact: PoolRenamed) -> None:
        state = self._state
        PoolRename(fact.pool_name, fact.new_name).apply_to(state)
        state.pool_names.note_renamed(fact.pool_name, fact.new_name)
