"""The phases of an agent: what may follow what, and what each carries."""

from __future__ import annotations

import pytest

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.end_reasons import EndReason
from schedulemesh.domain.placement import InGroup, OnNode, Unplaced
from schedulemesh.domain.resources import NOTHING
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.state.agents import Agent, Ending, Running, Starting, Submission, Waiting
from schedulemesh.engine.state.transitions import ForbiddenTransitionError
from tests.engine.builders import Mesh, pool

SUBMISSION = Submission(request_id="r", task_id="t")
WAITING = Waiting(submission=SUBMISSION, for_agents=frozenset({"v"}))
STARTING = Starting(submission=SUBMISSION)
RUNNING = Running(started_at=1.0, pid=7)
ENDING = Ending(previous=RUNNING, reason=EndReason.DELETED)
PHASES = (WAITING, STARTING, RUNNING, ENDING)


def agent(phase, place=None):
    spec = AgentSpec(name="a", pool_name="p", resources=NOTHING)
    return Agent(spec=spec, incarnation=1, phase=phase, place=place or Unplaced(), admitted_at=0.0)


def ending_fact(**fields):
    return f.AgentEnding(agent_name="a", reason=EndReason.DELETED, at=2.0, **fields)


@pytest.mark.parametrize(
    ("old", "allowed"),
    [(WAITING, {STARTING}), (STARTING, {RUNNING, ENDING}), (RUNNING, {ENDING}), (ENDING, set())],
)
def test_a_forbidden_change_of_phase_raises_and_changes_nothing(old, allowed):
    for new in PHASES:
        changed = agent(old)
        if new in allowed:
            changed.enter(new)
            assert changed.phase is new
            continue
        with pytest.raises(
            ForbiddenTransitionError, match=f"'a' is {old.value} and cannot become {new.value}"
        ):
            changed.enter(new)
        assert changed.phase is old


def test_only_an_agent_that_waits_can_start_and_it_keeps_its_submission():
    started = agent(WAITING)
    started.start()
    assert started.phase == STARTING
    for other in (STARTING, RUNNING, ENDING):
        with pytest.raises(ForbiddenTransitionError):
            agent(other).start()


def test_only_an_agent_with_a_process_can_be_terminated_and_it_keeps_its_former_phase():
    for old in (STARTING, RUNNING):
        ended = agent(old)
        ended.end(ending_fact(hold_for="q"))
        assert ended.phase == Ending(previous=old, reason=EndReason.DELETED, hold_for="q")
        assert ended.committed is (old is RUNNING)
        assert ended.submission is (SUBMISSION if old is STARTING else None)
        assert ended.process is (RUNNING if old is RUNNING else None)
    for other in (WAITING, ENDING):
        with pytest.raises(ForbiddenTransitionError):
            agent(other).end(ending_fact())


def test_a_restart_is_counted_and_changes_the_process_id_also_while_it_is_terminated():
    for phase, pid in ((STARTING, None), (RUNNING, 8), (ENDING, 8)):
        restarted = agent(phase)
        restarted.note_restart(8)
        assert restarted.restarts == 1
        assert (restarted.process.pid if restarted.process else None) == pid
    with pytest.raises(ForbiddenTransitionError):
        agent(WAITING).note_restart(8)


def test_only_a_waiting_agent_stops_waiting_and_only_an_ending_one_changes_its_end():
    waiting = agent(WAITING)
    waiting.stop_waiting_for(agent="v")
    assert waiting.phase == Waiting(submission=SUBMISSION)
    ending = agent(ENDING)
    ending.amend_end(destroy_group=True)
    assert ending.phase == Ending(previous=RUNNING, reason=EndReason.DELETED, destroy_group=True)
    for other in (STARTING, RUNNING):
        with pytest.raises(ForbiddenTransitionError):
            agent(other).stop_waiting_for(group="g")
        with pytest.raises(ForbiddenTransitionError):
            agent(other).amend_end(leaves_for=None)


def test_a_place_says_where_resources_are_held():
    group = InGroup(group_id="g", node_id="n", path="reserved")
    for place, node_id, group_id, held_on_n in (
        (Unplaced(), None, None, False),
        (OnNode(node_id="n"), "n", None, True),
        (group, "n", "g", False),
    ):
        placed = agent(RUNNING, place)
        found = (placed.node_id, placed.group_id, placed.is_on("n"))
        assert found == (node_id, group_id, held_on_n)


@pytest.mark.parametrize(
    "fact",
    [
        f.AgentReady(agent_name="a", at=0.0),
        f.AgentStarted(agent_name="a", incarnation=1, at=0.0),
        f.EndingAgentDeleted(agent_name="a", destroy_group=True),
    ],
)
def test_a_fact_that_breaks_the_table_of_phases_raises(fact):
    mesh = Mesh(pool("p", cpu=1))
    mesh.run("a", cpu=1)
    with pytest.raises(ForbiddenTransitionError, match="agent 'a' is running and cannot become"):
        mesh.state.evolve(fact)


def test_a_claim_of_an_agent_in_no_place_cannot_grow_on_a_node():
    mesh = Mesh(pool("p", cpu=1))
    mesh.run("a", cpu=1)
    assert mesh.state.agents["a"].place == Unplaced()
    with pytest.raises(TypeError, match="'a'"):
        mesh.state.evolve(
            f.ClaimGrew(agent_name="a", at=1.0, held=mesh.state.agents["a"].spec.resources)
        )
