"""Capacity is free when the processes are gone: on this node, on others, and where a node is lost."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from schedulemesh.api.logs import ReadTaskLog, TaskKey
from schedulemesh.core.agent.job_folders import LogWriter, job_folder
from schedulemesh.domain.resources import NOTHING
from schedulemesh.runtime.agents import process_cleanup
from schedulemesh.runtime.agents.process_cleanup import ActorLocation, ProcessCleanup
from schedulemesh.runtime.backend import BackendError, NodeView
from tests.runtime import virtual_time
from tests.runtime.fake_backend import FakeBackend, HeldCalls

KEY = TaskKey(root="/r", namespace="n", scheduler="s", task_id="t", agent_name="a")
MARK = FakeBackend().process_mark("space", "actor")


class Stage:
    """A cleanup on a fake backend of some nodes."""

    def __init__(self, monkeypatch, *nodes):
        self.backend = FakeBackend()
        self.live(*nodes)
        self.cleanup = ProcessCleanup(self.backend)
        monkeypatch.setattr(process_cleanup, "pauses", lambda: itertools.repeat(0.001))

    def live(self, *nodes):
        self.backend.free = [
            NodeView(node_id=node, total=NOTHING, free=NOTHING, labels={}) for node in nodes
        ]

    def run(self, node_id):
        place = ActorLocation(namespace="space", actor_name="actor", node_id=node_id)
        asyncio.run(asyncio.wait_for(self.cleanup.terminate(place, "a"), 10.0))


def test_the_nodes_cleaner_ends_them_and_is_made_once(monkeypatch):
    stage = Stage(monkeypatch, "own", "n")
    stage.cleanup.prepare("n")
    stage.run("n")
    stage.run("n")
    (cleaner,) = stage.backend.cleaners
    assert (cleaner.node_id, cleaner.calls) == ("n", [("terminate", MARK)] * 2)


def test_where_the_node_is_not_known_all_are_searched(monkeypatch):
    stage = Stage(monkeypatch, "own", "n", "m")
    stage.run(None)
    assert sorted(cleaner.node_id for cleaner in stage.backend.cleaners) == ["m", "n", "own"]
    assert all(cleaner.calls == [("terminate", MARK)] for cleaner in stage.backend.cleaners)


def test_what_does_not_end_keeps_its_capacity_and_is_named(monkeypatch, caplog):
    stage = Stage(monkeypatch, "own")
    stage.cleanup.prepare("own")
    (cleaner,) = stage.backend.cleaners
    cleaner.answers = [(77, 78), (77,)]
    with caplog.at_level(logging.WARNING):
        stage.run("own")
    assert cleaner.calls == [("terminate", MARK)] * 3
    told = [record.getMessage() for record in caplog.records]
    assert "processes 77, 78 of agent a on node own do not end" in told[0]
    assert "processes 77 of agent a" in told[1]


def test_a_cleaner_that_died_is_replaced(monkeypatch):
    stage = Stage(monkeypatch, "own", "n")
    stage.cleanup.prepare("n")
    stage.backend.cleaners[0].raises = BackendError("it died")
    stage.run("n")
    first, second = stage.backend.cleaners
    assert first.closed
    assert second.calls == [("terminate", MARK)]


def test_a_cleaner_that_died_keeps_no_log_from_being_read(monkeypatch, tmp_path):
    stage = Stage(monkeypatch, "own", "n")
    key = TaskKey(root=str(tmp_path), namespace="n", scheduler="s", task_id="t", agent_name="a")
    job_folder(key).mkdir(parents=True)
    log = LogWriter(job_folder(key), 1)
    log.write(b"text")
    log.close()
    stage.cleanup.prepare("n")
    stage.backend.cleaners[0].raises = BackendError("it died")
    piece = asyncio.run(stage.cleanup.read_log("n", key, ReadTaskLog(task_id="t")))
    assert piece is not None
    assert piece.data == b"text"
    assert stage.backend.cleaners[0].closed


def test_a_lost_node_is_logged(monkeypatch, caplog):
    stage = Stage(monkeypatch, "own", "n")
    stage.cleanup.prepare("n")
    stage.backend.cleaners[0].raises = BackendError("it died")
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
    (cleaner,) = stage.backend.cleaners
    count, cleaner.answers = len(answers), answers
    stage.run("n")
    assert len(cleaner.calls) == count


@pytest.mark.parametrize(
    ("ask", "within_s"),
    [
        (lambda cleanup: cleanup.kill("own", []), 2.0),
        (lambda cleanup: cleanup.environment_line("own"), 2.0),
        (lambda cleanup: cleanup.write_log("own", KEY, 1, "why it did not start", None), 60.0),
    ],
)
def test_a_cleaner_that_does_not_answer_is_waited_for_a_limited_time(monkeypatch, ask, within_s):
    stage = Stage(monkeypatch, "own")

    async def story():
        stage.backend.control = HeldCalls()
        return await ask(stage.cleanup)

    assert not virtual_time.run(story(), within_s)


def lost_among(stage, *node_ids):
    """Which of these nodes are lost, and the virtual seconds that it took to find out."""

    async def ask():
        began = asyncio.get_running_loop().time()
        lost = await stage.cleanup.lost_among(node_ids)
        return set(lost), asyncio.get_running_loop().time() - began

    return virtual_time.run(ask())


def test_nodes_whose_cleaners_answer_live(monkeypatch):
    stage = Stage(monkeypatch, "own", "n")
    assert lost_among(stage, "own", "n") == (set(), 0.0)


def silent(backend, node_id, error):
    """The cleaners of a node fail from now on."""
    cleaner = backend.node_cleaner(node_id)
    cleaner.raises = error
    backend.node_cleaner = lambda _: cleaner


def test_the_loss_of_a_node_whose_cleaner_does_not_answer_is_waited_for(monkeypatch):
    stage = Stage(monkeypatch, "own", "n")
    silent(stage.backend, "n", BackendError("dead"))

    async def ask():
        asyncio.get_running_loop().call_later(15.0, stage.live, "own")
        return await stage.cleanup.lost_among(["n"])

    assert virtual_time.run(ask()) == {"n"}


def test_a_node_that_stands_still_counts_as_alive_in_the_end(monkeypatch):
    stage = Stage(monkeypatch, "own", "n")
    silent(stage.backend, "n", BackendError("dead"))
    lost, took_s = lost_among(stage, "n")
    assert lost == set()
    assert took_s == pytest.approx(process_cleanup.DEATH_S, abs=2.0)


def test_a_cleaner_that_has_died_alone_is_replaced(monkeypatch):
    stage = Stage(monkeypatch, "own", "n")
    stage.cleanup.prepare("n")
    stage.backend.cleaners[0].raises = BackendError("dead")
    lost, _ = lost_among(stage, "n")
    assert lost == set()
    assert [cleaner.closed for cleaner in stage.backend.cleaners] == [True, False]
