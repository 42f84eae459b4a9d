"""What many tasks of a listing have in common is found out once, and each row is what it would be alone."""

from __future__ import annotations

import pytest

from schedulemesh.engine.admission.admit import Request
from schedulemesh.runtime.services import queue_rows
from schedulemesh.runtime.services.queue_rows import QueueRows, positioned
from tests.engine.builders import Mesh, node, pool
from tests.engine.mixed_worlds import World


def rows_of(mesh):
    """The rows of all that wait, of one listing."""
    rows = new_rows(mesh)
    return [rows.row(task, position) for position, task in all_waiting(mesh.state)]


def new_rows(mesh):
    return QueueRows(mesh.state, mesh.engine.wait_causes(mesh.now), mesh.now)


def all_waiting(state):
    return [each for name in sorted(state.queue.pools) for each in positioned(state, name)]


class ListedWorld(World):
    """A random world whose queue is listed after each submission."""

    def __init__(self, seed):
        super().__init__(seed, steps=60)
        self.listed = self.as_their_class = 0

    def submit(self):
        super().submit()
        waiting = all_waiting(self.mesh.state)
        alone = [new_rows(self.mesh).row(task, position) for position, task in waiting]
        assert rows_of(self.mesh) == alone
        self.listed += len(alone)
        for _, task in waiting:
            self.check_cause(task)

    def check_cause(self, task):
        """Nothing of its own keeps a task waiting of which a listing does not look for such a cause."""
        causes = self.mesh.engine.wait_causes(self.mesh.now)
        request = causes._request(causes.kind_of(task), task)
        if isinstance(request, Request) and causes._waits_as_its_class(task):
            assert causes._own_cause(task, request) is None
            self.as_their_class += 1


@pytest.mark.parametrize("seed", range(12))
def test_each_row_of_a_listing_is_what_it_would_be_alone(seed):
    world = ListedWorld(seed)
    world.run()
    assert world.listed


def test_some_of_these_worlds_have_tasks_that_wait_as_their_class_does():
    worlds = [ListedWorld(seed) for seed in range(8)]
    for world in worlds:
        world.run()
    assert any(world.as_their_class for world in worlds)


def test_what_tasks_of_a_class_have_in_common_is_found_out_once(monkeypatch):
    mesh = Mesh(pool("p", cpu=4), nodes=[node("n1", cpu=8)])
    mesh.run("a", cpu=4)
    for number in range(50):
        mesh.queue(f"t{number}", cpu=2)
    mesh.queue("another", cpu=3)
    asked = []

    def counted(state, task):
        asked.append(task.task_id)
        return why_ruled_out(state, task)

    why_ruled_out = queue_rows.why_ruled_out
    monkeypatch.setattr(queue_rows, "why_ruled_out", counted)
    rows = rows_of(mesh)
    assert len(rows) == 51
    assert sorted(asked) == ["another", "t0"]
