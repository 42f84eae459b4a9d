"""Where Chinese is asked for, no English words but names, codes and terms are printed."""

from __future__ import annotations

import json
import re

import pytest

from schedulemesh.domain.resources import parse_resources
from schedulemesh.runtime.backend import NodeView
from tests.cli.conftest import Worker

pytestmark = pytest.mark.usefixtures("cancels_at_once")

#: Words that are the same in both languages: names of products, units, signals and formats.
TERMS = frozenset(
    (
        "ScheduleMesh",
        "Ray",
        "ID",
        "CPU",
        "GPU",
        "GB",
        "GiB",
        "MB",
        "ms",
        "cpu",
        "gpu",
        "memory",
        "Agent",
        "Actor",
        "WARNING",
        "HTTP",
        "UTC",
        "API",
    )
)
#: Lists and records. Of each, the words of its JSON are names and codes.
LOOKS = (
    "status",
    "pools",
    "pools get train",
    "pools get lab",
    "cohorts",
    "shares",
    "budgets",
    "agents",
    "nodes",
    "tasks",
    "tasks get one",
    "tasks get two",
    "tasks get gone",
    "tasks --array many",
    "queue",
    "queue --limit 1",
    "jobs",
    "leases",
    "groups",
    "states",
    "preemptions",
    "evaluate --pool train --cpus 1 --priority 9",
    "evaluate --pool train --cpus 1 --priority 1",
    "history",
    "history one",
    "history --limit 1",
    "history --pool lab",
    "usage",
    "usage --by owner",
    "events",
    "events --task gone",
    "drains",
    "windows",
    "external",
    "metrics",
    "policy get",
    "policy diff",
    "policy history",
    "tokens list",
    "audit",
    "audit --who nobody",
    "alerts",
    "plugins",
    "top --count 1",
    "health",
    "tasks -f task=gone",
    "tasks -f owner=eve",
    "jobs -f owner=ada",
    "wait two --timeout 0.1 --until running",
    "submit --pool train --cpus 1 --dry-run -- true",
    "submit --pool lab --cpus 2 --dry-run -- true",
    "submit --pool train --gpus 1 --dry-run -- true",
)
#: One after the other.
CHANGES = (
    "save one",
    "hold two",
    "release two",
    "priority two 3",
    "front two",
    "limit two 4h",
    "limit two none",
    "cordon host-a",
    "uncordon host-a",
    "drain host-a",
    "undrain host-a",
    "undrain host-a",
    "pools set lab weight=2",
    "pools create new resources.cpu=1",
    "pools rename new newer",
    "pools delete newer",
    "cancel two nope",
    "preempt one",
    "restore one",
    "complete one",
)
WORD = re.compile(r"[A-Za-z]{2,}")
#: Where a word is one of what it is written in: a command, an option, a call, an assignment, an id.
KEPT = re.compile(
    r"`[^`]*`|'[^']*'|--?[a-z][\w-]*( requeue)?|\w+_\w+|\S+=\S*|\d+[dhms]\w*|\S+/\S+|[\w.]*\d[\w.]*"
)


@pytest.fixture
def filled(scheduler):
    """A scheduler with something in every list."""
    service, calls = scheduler.connection.service, scheduler.calls
    size = parse_resources({"cpu": 8, "memory": 65_536, "gpu": 2})
    service.backend.free = [
        NodeView(node_id=one * 56, total=size, free=size, labels={}, host=f"host-{one}")
        for one in "ab"
    ]
    service.do(service.running.monitor.observe())
    calls.ensure_cohort("all")
    budget = {"gpu_hours": 100.0, "period": "month", "then": "hold"}
    calls.ensure_pool(
        "train",
        resources={"cpu": 2, "gpu@any": 1},
        cohort="all",
        budget=budget,
        owner_limits={"ada": {"gpu": 4, "queued": 9}},
        owner_budgets={"ada": budget},
        max_run_s=7200.0,
        default_max_run_s=3600.0,
        flavors=[{"name": "any", "label_selector": {"zone": "a"}, "kinds": ["gpu"]}],
    )
    calls.ensure_pool("lab", resources={"cpu": 1}, cohort="all", lending_limit=0)
    submit = calls.submit_task_with_preemption
    assert submit("gone", "train", Worker, {"cpu": 1}, owner="ada")["success"]
    assert calls.complete_task("gone", end_agent=True)["success"]
    # A drain with a deadline leaves it until its end.
    declared = {"estimated_duration": 3600.0}
    one = submit("one", "train", Worker, {"cpu": 2}, owner="ada", priority=5.0, **declared)
    assert one["success"]
    assert submit("two", "train", Worker, {"cpu": 2}, owner="ada", priority=4.0, queue=True)[
        "success"
    ]
    assert submit("three", "train", Worker, {"cpu": 2}, priority=4.0, queue=True)["success"]
    assert calls.submit_job("many", ["true"], "train", {"cpu": 2}, array="0-3", queue=True)[
        "success"
    ]
    calls.create_window("move", "2030-01-01T00:00+00:00", 3600.0, all_nodes=True)
    return scheduler


def words_of(data):
    """All words in the keys and the one-word values of an answer."""
    if isinstance(data, dict):
        yield from data
        for value in data.values():
            yield from words_of(value)
    elif isinstance(data, list):
        for value in data:
            yield from words_of(value)
    elif isinstance(data, str) and " " not in data:
        yield from WORD.findall(data)


def english_in(output, names):
    """The English words of an output that are neither terms nor among these names."""
    return [word for word in WORD.findall(KEPT.sub(" ", output)) if word not in TERMS | names]


#: The names of what there is, and of what is asked for.
NAMES = frozenset(
    (
        "one",
        "two",
        "three",
        "gone",
        "nope",
        "many",
        "ada",
        "eve",
        "nobody",
        "train",
        "lab",
        "all",
        "new",
        "newer",
        "mesh",
        "space",
        "host",
        "move",
        "any",
        "zone",
        "running",
    )
)


def in_chinese(run, look, *more):
    words = look.split()
    place = words.index("--") if "--" in words else len(words)
    return run(*words[:place], *(more or ("--lang", "zh")), *words[place:], width=400)


def test_lists_and_records_have_no_english_but_names_codes_and_terms(filled, run):
    wrong = {}
    for look in LOOKS:
        done = in_chinese(run, look)
        assert done.exit_code in (0, 4, 6, 124), (look, done.output)
        data = in_chinese(run, look, "-o", "json") if "--dry-run" not in look else None
        names = {*words_of(json.loads(data.stdout))} if data and data.stdout else set()
        if english := english_in(done.output, NAMES | names):
            wrong[look] = english, done.output
    assert not wrong, "\n".join(f"{look}: {what[0]}\n{what[1]}" for look, what in wrong.items())


def test_what_has_changed_is_said_without_english_but_names_codes_and_terms(filled, run):
    wrong = {}
    for change in CHANGES:
        done = in_chinese(run, change)
        if english := english_in(done.output, NAMES):
            wrong[change] = english, done.output
    assert not wrong, "\n".join(f"{look}: {what[0]}\n{what[1]}" for look, what in wrong.items())


#: Changes that are made, with a warning about each.
WARNED = (
    (
        "pools set train resources.cpu=1000",
        "资源池 'train' 的配额是 cpu 1000, gpu@any 1，而所有节点合计",
    ),
    ("pools set train resources.cpu=1", "资源池 'train' 中，cpu 已用 14，超出新配额 13：随着任务"),
    ("pools set lab lending_limit.cpu=0 borrowing_limit=0", ""),
    ("policy set protected_pools=[nope,lab]", "protected_pools 里的 'nope' 目前不存在"),
    ("pools delete lab", "策略的 protected_pools 仍然指向资源池 'lab'"),
    ("pools delete train --drain --deadline 12h", ""),
    ("pools set train weight=3", "用 `schedulemesh undrain --pool train` 保留它"),
)


def test_warnings_about_a_change_are_in_chinese(filled, run):
    for change, warning in WARNED:
        done = in_chinese(run, change)
        assert done.exit_code == 0, (change, done.output)
        assert warning in done.stderr, (change, done.stderr)
        assert not english_in(done.stderr, NAMES | {"explain"}), (change, done.stderr)


def test_warnings_of_a_file_that_is_applied_are_printed_too(filled, run):
    file = (
        "cohorts: [{name: other}]\n"
        "pools: [{name: train, resources: {cpu: 999}}]\n"
        "policy: {preemption: {protected_pools: [nope]}}\n"
    )
    done = run("apply", "-f", "-", "--lang", "zh", input=file, width=400)
    assert done.exit_code == 0, done.stderr
    assert "所有节点合计" in done.stderr
    assert "protected_pools 里的 'nope' 目前不存在" in done.stderr
