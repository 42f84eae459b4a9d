"""Filters that no row can answer are refused, with what there is; names that are gone get a remark."""

from __future__ import annotations

import json

import pytest

from schedulemesh.cli.exits import ExitCode
from schedulemesh.protocol.portions import PortionTurns


@pytest.fixture
def filled(scheduler):
    scheduler.pool("train", cpu=2)
    scheduler.submit("one", "train", owner="ann", priority=3.0, labels={"team": "x"})
    scheduler.submit("two", "train", cpu=2, owner="ann", queue=True)
    return scheduler


NONSENSE = {
    "tasks -f priority=high": "priority is a number",
    "tasks -f prio!=high": "prio is a number",
    "tasks -f priority=nan": "priority is a number",
    "tasks -f kind=gange": "did you mean 'gang'?",
    "tasks -f state=runing": "did you mean 'running'?",
    "tasks -f resources=4": "name one, as resources.cpu",
    "tasks -f resources.gpuu=4": "did you mean 'gpu'?",
    "tasks -f position=first": "position is a whole number",
    "tasks -f node_id=nope": "there is no node 'nope'",
    "tasks -f node=nope": "there is no node 'nope'",
    "tasks -f pool=trian": "did you mean 'train'?",
    "tasks -f pool!=nope": "there is no pool 'nope'",
    "queue -f pool=nope": "there is no pool 'nope'",
    "queue -f held=maybe": "held is yes or no",
    "queue -f state=running": "it may be queued",
    "queue -f reason=quota": "the nearest of",
    "nodes -f cordoned=maybe": "cordoned is yes or no",
    "nodes -f node=nope": "there is no node 'nope'",
    "agents -f state=dead": "state is 'dead'",
    "agents -f pool=nope": "there is no pool 'nope'",
    "agents --pool nope": "there is no pool 'nope'",
    "pools -f pool=nope": "there is no pool 'nope'",
    "pools -f queueing=fifo": "it may be best_effort, strict, greedy",
    "pools -f cohort=nope": "there is no cohort 'nope'",
    "jobs -f state=done": "it may be queued",
    "audit -f outcome=failed": "it may be done, refused, open",
    "audit -f role=admin": "it may be viewer, submitter, pool_operator, operator",
    "alerts -f severity=high": "it may be info, warning, critical",
    "events -f kind=start": "kind is 'start'",
    "history -f rule=1 -f state=dead": "state is 'dead'",
    "history --pool nope": "there is no pool 'nope'",
    "events --pool nope": "there is no pool 'nope'",
    "preemptions --pool nope": "there is no pool 'nope'",
    "preemptions -f reason=nope": "it may be label_based_preemption",
    "tokens list -f role=root": "it may be viewer, submitter, pool_operator, operator",
    "external -f ended=perhaps": "ended is yes or no",
    "drains -f pool_name=nope": "there is no pool 'nope'",
}


@pytest.mark.parametrize("words", NONSENSE)
def test_a_value_that_cannot_be_is_refused_with_what_can(words, filled, run):
    done = run(*words.split())
    assert done.exit_code in (ExitCode.USAGE, ExitCode.NOT_FOUND), done.stdout
    assert NONSENSE[words] in done.stderr
    assert not done.stdout


@pytest.mark.parametrize(
    ("words", "remark"),
    [
        ("preemptions --owner nope", "there is no task of owner 'nope'"),
        ("preemptions --task nope", "there is no task 'nope'"),
        ("history --owner nope", "there is no task of owner 'nope'"),
        ("history nope", "there is no task 'nope'"),
        ("tasks -f owner=nope", "there is no task of owner 'nope'"),
        ("events --task nope", "there is no task 'nope'"),
    ],
)
def test_an_owner_or_task_that_nothing_knows_gets_a_remark(words, remark, filled, run):
    done = run(*words.split())
    assert done.exit_code == 0
    assert remark in done.stderr
    assert not done.stdout.strip()


def test_what_has_ended_is_pointed_out_with_its_past(filled, run):
    filled.calls.cancel_task("two")
    done = run("tasks", "-f", "task=two")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "task 'two' has ended; `schedulemesh history two` has its past" in done.stderr


@pytest.mark.parametrize(
    "words",
    ["prio=3", "priority!=3", "kind=agent", "resources.cpu=2", "owner=ann", "phase=RUNNING"],
)
def test_what_rows_have_is_found_as_it_is_and_as_it_is_shown(words, filled, run):
    done = run("tasks", "-f", words, "-o", "name")
    assert done.exit_code == 0, done.stderr
    assert done.stderr == ""


def test_a_code_out_of_many_gets_the_nearest_three(filled, run):
    done = run("queue", "-f", "reason=insuficient_quota")
    assert "insufficient_quota" in done.stderr
    assert len(done.stderr) < 250


def test_a_node_is_named_by_its_host_or_the_beginning_of_its_id(scheduler, run):
    from schedulemesh.domain.resources import parse_resources
    from schedulemesh.runtime.backend import NodeView

    service = scheduler.connection.service
    room = parse_resources({"cpu": 8})
    service.backend.free = [
        NodeView(node_id="a" * 56, total=room, free=room, labels={}, host="worker-7")
    ]
    service.do(service.running.monitor.observe())
    scheduler.pool("train")
    scheduler.submit("one", "train")
    for name in ("worker-7", "aaaa", "a" * 8):
        done = run("tasks", "-f", f"node={name}", "-o", "name")
        assert (done.stdout, done.stderr) == ("one\n", "")
        done = run("nodes", "-f", f"node={name}", "-o", "json")
        assert [row["host"] for row in json.loads(done.stdout)] == ["worker-7"], done.stdout
        assert json.loads(run("nodes", "-f", f"node!={name}", "-o", "json").stdout) == []
    done = run("nodes", "-f", "node=worker-8")
    assert (done.exit_code, done.stdout) == (ExitCode.NOT_FOUND, "")
    assert "did you mean 'worker-7'?" in done.stderr


@pytest.mark.parametrize("option", ["--pool", "--evict-pool"])
def test_a_token_for_a_pool_that_there_is_not_is_not_issued(option, filled, run):
    words = ("create", "t", "--role", "submitter", "--owner", "ann")
    done = run("tokens", *words, option, "trian")
    assert (done.exit_code, done.stdout) == (ExitCode.NOT_FOUND, "")
    assert "there is no pool 'trian' (did you mean 'train'?)" in done.stderr
    assert run("tokens", *words, option, "train").exit_code == 0


@pytest.mark.parametrize(
    "words", [["submit", "--pool", "train"], ["adopt", "01", "--pool", "train"]]
)
def test_an_empty_id_is_refused(words, filled, run):
    command = ["--", "true"] if words[0] == "submit" else []
    done = run(*words, "--id", "", *command)
    assert (done.exit_code, done.stdout) == (ExitCode.USAGE, "")
    assert "--id must be a text" in done.stderr


@pytest.fixture
def two_tasks(scheduler):
    """Task ``one`` runs, and ``two`` waits for it."""
    scheduler.pool("train", cpu=2)
    scheduler.submit("one", "train", owner="ann")
    scheduler.submit("two", "train", cpu=2, owner="ann", queue=True)
    return scheduler


@pytest.fixture
def looked_at(monkeypatch):
    """The items of the portions in which the supervisor makes rows."""
    items = []
    each = PortionTurns.each

    async def counted(turns, portion_items, work, **size):
        items.extend(portion_items)
        await each(turns, portion_items, work, **size)

    monkeypatch.setattr(PortionTurns, "each", counted)
    return items


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ("tasks -f task=two -o name", ["two"]),
        ("tasks -f task_id=one -f owner=ann -o name", ["one"]),
        ("tasks -f task=one -f task=two -o name", []),
        ("queue -f task=two -o name", ["two"]),
        ("queue -f task=one -o name", []),
        ("jobs -f task_id=one -o name", []),
        ("leases -f lease=one -o name", []),
        ("states -f task=one -o name", []),
        ("preemptions --task one -o name", []),
    ],
)
def test_an_id_that_a_filter_names_is_looked_up(words, ids, two_tasks, run, looked_at):
    done = run(*words.split())
    assert done.exit_code == 0, done.stderr
    assert done.stdout.split() == ids
    # Where nothing has it, it is looked for among the tasks before a remark says so.
    assert len(looked_at) <= (1 if ids else 3)


def test_agents_are_looked_up_by_their_names(two_tasks, run, looked_at):
    two_tasks.submit("three", "train")
    (name, _) = [agent["name"] for agent in two_tasks.calls.list_agents()["agents"]]
    looked_at.clear()
    assert run("agents", "-f", f"agent={name}", "-o", "name").stdout.split() == [name]
    assert len(looked_at) == 1


def test_filters_that_name_no_id_look_at_all_rows(two_tasks, run, looked_at):
    assert run("tasks", "-f", "task!=one", "-o", "name").stdout.split() == ["two"]
    assert len(looked_at) == 2
