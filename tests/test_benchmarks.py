"""Every benchmark that needs no Ray runs, at a tiny size; times are not checked."""

import json
import subprocess
import sys

import pytest

from benchmarks.__main__ import _groups
from benchmarks.decision import decision
from benchmarks.dispatch import dispatch
from benchmarks.estimates import estimates
from benchmarks.floor import commits
from benchmarks.groups import groups
from benchmarks.history import history
from benchmarks.journal import recovery
from benchmarks.lending import lending
from benchmarks.many_tensors import many_tensors
from benchmarks.metrics import metrics
from benchmarks.observing import observing
from benchmarks.openb_models import openb_models
from benchmarks.queue_snapshots import queue_snapshots
from benchmarks.queueing import queueing
from benchmarks.rows import at_least, at_most, note, print_table
from benchmarks.scaling import scaling
from benchmarks.streams import streams
from benchmarks.task_arrays import task_arrays
from benchmarks.throughput import engine_alone, through_journal
from benchmarks.victims import victims
from benchmarks.waiting_gangs import waiting_gangs

TINY = [
    lambda: decision(small=700, large=2_000, queries=4, loops=2),
    lambda: victims(nodes=4, searches=2, churn=3),
    lambda: lending(nodes=8, decisions=2, few=10, many=20, ends=5),
    lambda: groups(number=8, rounds=3, nodes=2),
    lambda: engine_alone(nodes=20, running=50, pairs=20, rounds=2),
    lambda: through_journal(nodes=20, running=50, pairs=20, rounds=2, in_flight=8),
    lambda: recovery(submissions=700, facts=200, in_flight=4),
    lambda: queue_snapshots(restored=2_000, queued=500),
    lambda: openb_models(pods=100),
    lambda: queueing(tasks=900, waiting=2_000, classes=60, nodes=5, rounds=1),
    lambda: waiting_gangs(nodes=5, gangs=3, ends=3, ticks=3),
    lambda: metrics(running=60, pools=4, reports=50, decisions=40),
    lambda: history(tasks=200, questions=2, running=20, recoveries=2),
    lambda: observing(running=20, slices=2, pairs=20, rounds=2, long=50),
    lambda: streams(clients=2, lives=20, rounds=2),
    lambda: dispatch(moves=1, ranks=[8]),
    lambda: many_tensors(tensors=4),
    lambda: scaling(nodes=(5, 10), turnovers=20),
    lambda: estimates(jobs=60),
    lambda: task_arrays(members=50, rounds=2),
]


@pytest.mark.parametrize(
    "measure",
    TINY,
    ids=[
        "decision",
        "victims",
        "lending",
        "groups",
        "engine",
        "journal",
        "recovery",
        "queue-snapshots",
        "openb-models",
        "queue",
        "gangs",
        "metrics",
        "history",
        "observing",
        "streams",
        "dispatch",
        "many-tensors",
        "scaling",
        "estimates",
        "arrays",
    ],
)
def test_a_benchmark_gives_rows(measure):
    rows = measure()
    assert any(row["target"] for row in rows)
    for row in rows:
        assert set(row) == {"what", "target", "measured", "met"}
        assert (row["met"] is None) == (row["target"] == "")
        assert row["measured"]


def test_a_row_says_whether_its_target_is_met(capsys):
    rows = [
        at_most("time", 0.5, 1.0, " ms"),
        at_least("rate", 1234.0, 2_000, " pairs/s"),
        note("size", "7 B"),
    ]
    assert [row["met"] for row in rows] == [True, False, None]
    print_table(rows)
    assert capsys.readouterr().out.splitlines() == [
        "time  ≤ 1 ms           0.5 ms         met",
        "rate  ≥ 2,000 pairs/s  1,234 pairs/s  MISSED",
        "size                   7 B",
    ]


def test_rows_of_ratios_are_a_table_of_a_page(capsys):
    row = commits(rounds=2, count=3)
    assert (row["met"], row["target"], row["peer"]) == (None, "", "")
    missed = {**row, "what": "a / b", "target": "≤ 0.5", "measured": "0.7", "met": False}
    print_table([row, missed])
    head, rule, first, second = capsys.readouterr().out.splitlines()
    assert head == "| what | floor | peer | ours | ratio | mark | |"
    assert {line.count("|") for line in (head, rule, first, second)} == {8}
    assert first.startswith("| durable commit of a submission")
    assert second == f"| a / b | {row['floor']} |  | {row['ours']} | 0.7 | ≤ 0.5 | **missed** |"


def test_an_unknown_group_is_refused():
    command = [sys.executable, "-m", "benchmarks", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"groups are {', '.join(_groups())}" in done.stderr


def test_rows_are_plain_data():
    assert json.loads(json.dumps(note("size", "7 B")))["met"] is None
