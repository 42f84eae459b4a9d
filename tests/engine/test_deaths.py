"""How processes died that nobody has ended: what records say, and what becomes of tasks out of memory."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.agent import Death
from schedulemesh.domain.end_reasons import EndReason, TaskEndReason
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import UNIT
from schedulemesh.domain.sentences import in_words
from schedulemesh.domain.task import EndState, TaskSpec, check_task, parse_task
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import AgentEnded
from schedulemesh.errors import InvalidRequestError
from tests.engine.builders import Mesh, differences, node, pool

EXITED = Death(how="exited with code 3")
OOM = Death(
    how="was killed because its node was short of memory", out_of_memory=True, memory_mb=700.0
)


def running(quota=8000, **how):
    """A task ``t`` of 1000 MB that runs in a pool with this much memory on a larger node."""
    mesh = Mesh(pool("p", cpu=4, memory=quota), nodes=[node("a", cpu=4, memory=64000)])
    mesh.handle(s.ClassProbed(class_key="c"))
    given = {"cpu": 1, "memory": 1000, "class_key": "c", "run": "train"}
    mesh.submit("t", **{**given, **how})
    mesh.report("t")
    return mesh


def die(mesh, death, name="t"):
    incarnation = mesh.state.agents[name].incarnation
    mesh.handle(s.AgentGone(agent_name=name, incarnation=incarnation, death=death))
    assert differences(mesh.state, mesh.refolded()) == []


def memory_of(mesh, name="t"):
    """MB of the task that waits or is started again."""
    waiting = mesh.state.queue.by_id.get(name)
    spec = mesh.state.agents[name].spec if waiting is None else waiting.submission.agent
    return spec.resources.memory / UNIT


def test_the_record_of_a_task_says_how_its_process_died():
    mesh = running()
    die(mesh, EXITED)
    ended = mesh.state.ended["t"]
    assert (ended.state, ended.reason) == (EndState.LOST, TaskEndReason.LOST)
    assert str(ended.error) == "the process of agent 't' exited with code 3"
    assert "exited with code 3" in mesh.engine.explain("t", mesh.now).error
    fact = next(f for f in reversed(mesh.facts) if isinstance(f, AgentEnded))
    assert fact.death == EXITED


def test_what_is_not_known_of_a_death_is_not_invented():
    mesh = running()
    die(mesh, None)
    assert str(mesh.state.ended["t"].error) == (
        "the process of agent 't' died although nobody ended it"
    )


def test_a_lost_node_is_the_reason_whatever_its_processes_say():
    mesh = running()
    mesh.handle(s.ClusterObserved(nodes=(node("b", cpu=4),)))
    die(mesh, EXITED)
    assert str(mesh.state.ended["t"].error) == "node a was lost, on which agent 't' ran"


def test_a_lost_node_is_named_by_its_host_where_that_is_known():
    mesh = running()
    mesh.handle(s.ClusterObserved(nodes=(node("b", cpu=4),)))
    incarnation = mesh.state.agents["t"].incarnation
    hosts = {"a": "gpu-17"}
    mesh.handle(s.AgentGone(agent_name="t", incarnation=incarnation, hosts=hosts))
    assert str(mesh.state.ended["t"].error) == "node gpu-17 (a) was lost, on which agent 't' ran"
    explained = mesh.engine.explain("t", mesh.now)
    assert "丢失了 1 个节点（gpu-17 (a)）" in in_words(explained.error_text, "zh")


def test_who_waits_for_a_group_on_a_lost_node_is_told_its_host():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=2), node("b", cpu=2)])
    spread = GangPayload(strategy="STRICT_SPREAD")
    submitted = mesh.submission("g", bundles=[{"cpu": 1}] * 2, payload=spread)
    mesh.handle(msgspec.structs.replace(submitted, request_id="r"))
    mesh.handle(s.ClusterObserved(nodes=(node("b", cpu=2),), hosts={"a": "10.0.0.7"}))
    assert "node 10.0.0.7 (a) died" in mesh.state.answers["r"].outcome.error


def test_a_death_while_there_was_no_supervisor_is_recorded_when_it_is_back():
    mesh = running()
    mesh.handle(s.RecoveryObserved(living=frozenset(), deaths={"t": EXITED}))
    assert str(mesh.state.ended["t"].error) == "the process of agent 't' exited with code 3"


def test_a_gang_says_which_of_its_members_died():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    mesh.submit("g", bundles=[{"cpu": 1}] * 2, payload=GangPayload(), class_key="c")
    group_id = mesh.state.agents["g"].group_id
    mesh.handle(s.GroupCreated(group_id=group_id))
    mesh.report("g")
    die(mesh, Death(how="exited with code 3", rank=1), "g")
    assert str(mesh.state.ended["g"].error) == "rank 1 of gang 'g' exited with code 3"


def test_a_start_says_how_its_process_died():
    mesh = Mesh(pool("p", cpu=4), nodes=[node("a", cpu=4)])
    mesh.submit("t", cpu=1, class_key="c")
    incarnation = mesh.state.agents["t"].incarnation
    outcome = mesh.handle(
        s.AgentGone(agent_name="t", incarnation=incarnation, death=EXITED)
    ).outcome
    assert (outcome.reason, outcome.error) == (
        Reason.AGENT_START_FAILED,
        "the agent's process exited with code 3",
    )


def test_a_task_killed_for_memory_is_retried_as_any_other():
    mesh = running(retries=1)
    die(mesh, OOM)
    assert memory_of(mesh) == 1000
    mesh.report("t")
    die(mesh, OOM)
    assert mesh.state.ended["t"].state is EndState.LOST


def test_a_task_that_is_to_fail_out_of_memory_is_not_retried():
    mesh = running(retries=5, on_oom="fail")
    die(mesh, OOM)
    ended = mesh.state.ended["t"]
    assert (ended.state, ended.reason) == (EndState.FAILED, TaskEndReason.OUT_OF_MEMORY)
    assert "on_oom is 'fail'" in str(ended.error)
    assert "t" not in mesh.state.lost
    fact = next(f for f in reversed(mesh.facts) if isinstance(f, AgentEnded))
    assert fact.reason is EndReason.OUT_OF_MEMORY


def test_it_is_retried_after_any_other_death():
    mesh = running(retries=5, on_oom="fail")
    die(mesh, EXITED)
    assert "t" in mesh.starts


def test_a_growing_task_has_twice_the_memory_each_time_up_to_the_quota_of_its_pool():
    mesh = running(quota=3000, retries=9, on_oom="grow")
    die(mesh, OOM)
    assert memory_of(mesh) == 2000
    mesh.report("t")
    die(mesh, OOM)
    assert memory_of(mesh) == 3000
    mesh.tick(10.0)
    mesh.report("t")
    die(mesh, OOM)
    ended = mesh.state.ended["t"]
    assert (ended.state, ended.reason) == (EndState.FAILED, TaskEndReason.OUT_OF_MEMORY)
    assert "it had 3000 MB, and its pool's quota allows no more" in str(ended.error)
    assert mesh.state.ledger.accounts["p"].used.memory == 0


def test_a_growing_task_grows_no_further_than_it_says():
    mesh = running(retries=9, on_oom="grow", oom_max_memory=1500.0)
    die(mesh, OOM)
    assert memory_of(mesh) == 1500


def test_other_deaths_and_evictions_do_not_grow_a_task():
    mesh = running(retries=9, on_oom="grow")
    die(mesh, EXITED)
    assert memory_of(mesh) == 1000


def test_a_growing_task_without_memory_gets_twice_what_it_had_used():
    mesh = running(retries=9, on_oom="grow", memory=0)
    die(mesh, OOM)
    assert memory_of(mesh) == 1400


def test_a_start_that_is_killed_for_memory_grows_too():
    mesh = running(retries=9, on_oom="grow")
    die(mesh, OOM)
    die(mesh, OOM)
    assert memory_of(mesh) == 4000


def test_all_members_of_a_gang_grow():
    mesh = Mesh(pool("p", cpu=4, memory=8000), nodes=[node("a", cpu=4, memory=64000)])
    mesh.handle(s.ClassProbed(class_key="c"))
    bundles = [{"cpu": 1, "memory": 1000}] * 2
    how = {"class_key": "c", "retries": 2, "on_oom": "grow", "run": "r"}
    mesh.submit("g", bundles=bundles, payload=GangPayload(), **how)
    mesh.handle(s.GroupCreated(group_id=mesh.state.agents["g"].group_id))
    mesh.report("g")
    die(mesh, Death(how="was killed", out_of_memory=True, rank=0), "g")
    spec = mesh.state.agents["g"].spec
    assert [part.memory / UNIT for part in spec.bundles] == [2000, 2000]
    assert spec.resources.memory / UNIT == 4000


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"on_oom": "more"}, "allowed are retry, grow, fail"),
        ({"on_oom": "grow"}, "say max_retries"),
        ({"oom_max_memory": 5.0}, "on_oom='grow'"),
        ({"on_oom": "fail", "oom_max_memory": 5.0, "max_retries": 1}, "on_oom='grow'"),
        ({"on_oom": "grow", "oom_max_memory": 0, "max_retries": 1}, "above 0"),
        ({"on_oom": "grow", "oom_max_memory": float("nan"), "max_retries": 1}, "finite"),
        ({"on_oom": "grow", "oom_max_memory": 2.0**40, "max_retries": 1}, "at most"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(fields, said):
    with pytest.raises(InvalidRequestError, match=said):
        parse_task({"task_id": "t", **fields})


def test_it_is_refused_from_any_client():
    with pytest.raises(InvalidRequestError, match="say max_retries"):
        check_task(TaskSpec(task_id="t", on_oom="grow"))
