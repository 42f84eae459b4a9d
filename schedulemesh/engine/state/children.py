"""Which tasks were started by which: a child ends with its parent, unless that is completed."""

from __future__ import annotations

from schedulemesh.domain.task import TaskSpec


class Children:
    """The children of each task that has any."""

    def __init__(self) -> None:
        #: The ids of the children by that of their parent, which runs. A child runs or waits in the queue.
        self.by_parent: dict[str, dict[str, None]] = {}
        #: Children whose parent has ended or is being terminated; they end in the same step, so that after
        #: it there are none.
        self.orphans: dict[str, None] = {}

    def add(self, spec: TaskSpec) -> None:
        """Add a task with a parent that runs or waits from now on."""
        self.by_parent.setdefault(spec.parent, {})[spec.task_id] = None

    def remove(self, spec: TaskSpec) -> None:
        """Remove a task that neither runs nor waits any more."""
        self.orphans.pop(spec.task_id, None)
        siblings = self.by_parent.get(spec.parent, {})
        siblings.pop(spec.task_id, None)
        if not siblings:
            self.by_parent.pop(spec.parent, None)

    def leave(self, spec: TaskSpec) -> None:
        """Remove a task that does not run any more, and have its own children end."""
        self.remove(spec)
        self.orphan(spec.task_id)

    def orphan(self, parent_id: str) -> None:
        """Have the children of a task end, because it does."""
        # In an order that does not depend on whether the state was restored.
        self.orphans.update(dict.fromkeys(sorted(self.by_parent.pop(parent_id, {}))))

    def release(self, parent_id: str) -> tuple[str, ...]:
        """The children of a task that is completed, which have no parent from now on."""
        return tuple(self.by_parent.pop(parent_id, ()))
