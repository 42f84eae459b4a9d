"""Capacity is free when the processes are gone: on this node, on others, and where a node is lost."""

from __future__ import annotations

import asyncio
import logging

import pytest
from ray.exceptions import RayActorError

from schedulemesh.core.agent.process_marks import mark_of
from schedulemesh.core.backend.ray_backend import NodeView
from schedulemesh.domain.resources import NOTHING
from schedulemesh.runtime import process_cleanup
from schedulemesh.runtime.process_cleanup import Place, ProcessCleanup
from tests.core.fake_ray import FakeRay

MARK = mark_of("session_of_the_fake", "space", "actor")


class Stage:
    """A cleanup on a made-up Ray of some nodes; what is ended on the own node is remembered."""

    def __init__(self, monkeypatch, *nodes):
        self.ray = FakeRay()
        self.own = []
        self.left = []
        self.live(*nodes)
        self.cleanup = ProcessCleanup(self.ray)
        monkeypatch.setattr(process_cleanup, "terminate", self.terminate)
        monkeypatch.setattr(process_cleanup, "_RETRY_S", 0.001)

    def live(self, *nodes):
        self.ray.free = [
            NodeView(node_id=node, total=NOTHING, free=NOTHING, labels={}) for node in nodes
        ]

    async def terminate(self, mark):
        self.own.append(mark)
        return self.left.pop(0) if self.left else ()

    def run(self, node_id):
        place = Place(namespace="space", actor_name="actor", node_id=node_id)
        asyncio.run(asyncio.wait_for(self.cleanup.terminate(place, "a"), 10.0))


def test_on_its_own_node_the_supervisor_ends_them_itself(monkeypatch):
    stage = Stage(monkeypatch, "own")
    stage.cleanup.prepare("own")
    stage.run("own")
    assert (stage.own, stage.ray.helpers) == ([MARK], [])


def test_on_another_node_its_cleaner_does_and_is_made_once(monkeypatch):
    stage = Stage(monkeypatch, "own", "n")
    stage.cleanup.prepare("n")
    stage.run("n")
    (cleaner,) = stage.ray.helpers
    assert (cleaner.node_id, cleaner.calls) == ("n", [("terminate", (MARK,))])
    assert stage.own == []


def test_where_the_node_is_not_known_all_are_searched(monkeypatch):
    stage = Stage(monkeypatch, "own", "n", "m")
    stage.run(None)
    assert sorted(cleaner.node_id for cleaner in stage.ray.helpers) == ["m", "n"]
    assert stage.own == [MARK]


def test_what_does_not_end_keeps_its_capacity_and_is_named(monkeypatch, caplog):
    stage = Stage(monkeypatch, "own")
    stage.left = [(77, 78), (77,)]
    with caplog.at_level(logging.WARNING):
        stage.run("own")
    assert stage.own == [MARK] * 3
    told = [record.getMessage() for record in caplog.records]
    assert "processes 77, 78 of agent a on node own do not end" in told[0]
    assert "processes 77 of agent a" in told[1]


def test_a_cleaner_that_died_is_replaced(monkeypatch):
    stage = Stage(monkeypatch, "own", "n")
    stage.cleanup.prepare("n")
    stage.ray.helpers[0].raises = RayActorError()
    stage.run("n")
    first, second = stage.ray.helpers
    assert not first.alive
    assert second.calls == [("terminate", (MARK,))]


def test_a_lost_node_is_told_of(monkeypatch, caplog):
    stage = Stage(monkeypatch, "own", "n")
    stage.cleanup.prepare("n")
    stage.ray.helpers[0].raises = RayActorError()
    stage.live("own")
    with caplog.at_level(logging.WARNING):
        stage.run("n")
    assert "node n is lost: whether the processes of agent a there have ended cannot be known" in (
        caplog.text
    )


@pytest.mark.parametrize("answers", [[()], [(5,), ()]])
def test_only_an_empty_answer_is_the_end(monkeypatch, answers):
    stage = Stage(monkeypatch, "own", "n")
    stage.cleanup.prepare("n")
    (cleaner,) = stage.ray.helpers
    count, cleaner.answers = len(answers), answers
    stage.run("n")
    assert len(cleaner.calls) == count
