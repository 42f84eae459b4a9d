"""Every listing fits 80 columns, whatever the names: long, Chinese (of double width) or hexadecimal."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len

from schedulemesh.domain.resources import parse_resources
from schedulemesh.runtime.backend import NodeView
from tests.cli.conftest import Worker

NAMES = {
    "long": "pretraining-of-the-large-language-model-with-experts-v2",
    "chinese": "大语言模型预训练第二阶段实验组长上下文强化学习",
    "hexadecimal": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15",
    "short": "p",
}
LOOKS = (
    ["status"],
    ["pools"],
    ["pools", "get", "{pool}"],
    ["cohorts"],
    ["agents"],
    ["nodes"],
    ["tasks"],
    ["queue"],
    ["jobs"],
    ["explain", "{task}-1"],
    ["explain", "{task}-2"],
    ["preemptions"],
    ["history"],
    ["usage", "--by", "owner"],
    ["usage"],
    ["events"],
    ["drains"],
    ["external"],
    ["metrics"],
    ["policy", "get"],
    ["policy", "history"],
    ["policy", "diff"],
    ["tokens", "list"],
    ["audit"],
    ["alerts"],
    ["plugins"],
    ["top", "--count", "1"],
)


@pytest.fixture(params=NAMES)
def filled(request, scheduler):
    name = NAMES[request.param]
    service = scheduler.connection.service
    room = parse_resources({"cpu": 8, "memory": 1_048_576, "gpu": 8})
    addresses = {"a": "10.0.0.7", "b": "fd00:1234:5678:9abc:def0:1234:5678:9abc"}
    service.backend.free = [
        NodeView(
            node_id=digit * 56,
            total=room,
            free=room,
            labels={},
            host=f"{name}-{digit}",
            address=address,
        )
        for digit, address in addresses.items()
    ]
    service.do(service.running.monitor.observe())
    calls = scheduler.calls
    calls.ensure_cohort(f"{name}-cohort")
    quota = {"cpu": 4, "memory": 524_288, "gpu": 4}
    calls.ensure_pool(name, resources=quota, cohort=f"{name}-cohort", labels={"team": name})
    claim = {"cpu": 3, "memory": 400_000, "gpu": 4}
    for number, more in ((1, {}), (2, {"queue": True}), (3, {"queue": True})):
        more |= {"owner": name[:40], "labels": {"team": name}, "priority": 5.0 + number / 3}
        answer = calls.submit_task_with_preemption(f"{name}-{number}", name, Worker, claim, **more)
        assert answer["success"], answer
    calls.drain_node("b" * 56)
    return name


def test_no_line_is_wider_than_80_columns_and_no_code_is_broken(filled, run):
    wrong = []
    broken = re.compile(r"insufficient_\s*$|insufficien\b|aaaaaaaaa", re.MULTILINE)
    for words in LOOKS:
        done = run(*(word.format(pool=filled, task=filled) for word in words))
        if done.exit_code != 0:
            wrong.append((words, done.exit_code, done.stderr))
        if filled != NAMES["hexadecimal"] and broken.search(done.stdout):
            wrong.append((words, done.stdout))
        wrong += [
            (words, cell_len(line), line)
            for line in done.stdout.splitlines()
            if cell_len(line) > 80
        ]
    assert not wrong, wrong
