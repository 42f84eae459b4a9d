"""Traces and tables of nodes are read as they are written."""

import gzip

import pytest

from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim import read_nodes, read_policy, read_trace
from schedulemesh.sim.cluster import reports
from schedulemesh.store.history.export import COLUMNS, WRITERS

SWF = """; a comment
1 10 5 300 4 -1 -1 8 600 -1 1 3 1 -1 2 -1 -1 -1
2 20 5 -1 4 -1 -1 -1 -1 -1 5 3 1 -1 2 -1 -1 -1
"""


def test_a_csv_trace_may_be_packed(tmp_path):
    path = tmp_path / "trace.csv.gz"
    text = (
        "job_id,submit_s,duration_s,gpus,cpus,group_or_vc,requested_s,savable,model\n"
        "b,20,5,1,,x,,0,bert\n"
        "a,10,7.5,8,4,y,60,1,gpt\n"
        "never,5,0,8,4,y,60,1,gpt\n"
    )
    path.write_bytes(gzip.compress(text.encode()))
    first, second = read_trace(path)
    assert (first.job_id, first.duration_s, first.gpus, first.cpus) == ("a", 7.5, 8, 4)
    assert (first.pool, first.estimate_s, first.savable) == ("y", 60, True)
    assert (second.job_id, second.estimate_s, second.savable) == ("b", None, False)


def test_the_standard_workload_format_is_read(tmp_path):
    path = tmp_path / "log.swf"
    path.write_text(SWF)
    (one,) = read_trace(path)
    assert (one.job_id, one.submit_s, one.duration_s, one.cpus) == ("1", 10, 300, 8)
    assert (one.user, one.pool, one.estimate_s) == ("u3", "q2", 600)


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "job_id,submit_s,duration_s\nx,soon,1\n"])
def test_what_is_no_trace_is_refused(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InvalidRequestError, match="is no trace"):
        read_trace(path)


def test_nodes_are_counted_in_the_order_of_the_table(tmp_path):
    path = tmp_path / "nodes.csv"
    path.write_text("name,count,cpu,gpu,labels\nbig,2,64,8,zone=a;disk=ssd\nsmall,,8,,\n")
    found = reports(read_nodes(path))
    assert [node.node_id for node in found] == ["0-big", "1-big", "2-small"]
    assert found[0].total.gpus == 8
    assert found[0].labels == {"zone": "a", "disk": "ssd"}
    assert found[2].total.gpu == 0


def test_an_unknown_column_of_nodes_is_refused(tmp_path):
    path = tmp_path / "nodes.csv"
    path.write_text("name,gpus\na,8\n")
    with pytest.raises(InvalidRequestError, match="unknown column 'gpus'"):
        read_nodes(path)


def test_a_policy_is_read_as_apply_reads_it(tmp_path):
    path = tmp_path / "lend.yaml"
    path.write_text(
        "cohorts: [{name: company}]\n"
        "pools: [{name: a, cohort: company, resources: {gpu: 8}, queueing: strict}]\n"
        "policy: {preemption: {min_runtime: 60}, queue: {order: fifo}}\n"
    )
    policy = read_policy(path)
    assert (policy.name, policy.queue.order, policy.preemption.min_runtime) == ("lend", "fifo", 60)
    assert policy.pools[0].resources.gpus == 8
    assert (policy.pools[0].cohort, policy.pools[0].queueing) == ("company", "strict")


def test_a_policy_with_an_unknown_field_is_refused(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("pools: [{name: a, quota: 8}]\n")
    with pytest.raises(InvalidRequestError, match="unknown field 'quota'"):
        read_policy(path)


ATTEMPTS = [
    {"attempt": 1, "start_s": 5.0, "duration_s": 10.0, "status": "preempted", "lost_s": 0.0},
    {"attempt": 2, "start_s": 20.0, "duration_s": 4.0, "status": "failed", "lost_s": None},
    {"attempt": 3, "start_s": 30.0, "duration_s": 21.0, "status": "completed", "lost_s": None},
]
COMMON = {"job_id": "a", "submit_s": 0.0, "gpus": 8.0, "group_or_vc": "x", "priority": 2.0}


def exported(tmp_path, kind, rows):
    path = tmp_path / f"jobs.{kind}"
    blank = dict.fromkeys(COLUMNS)
    WRITERS[kind](path, [{**blank, **COMMON, **row} for row in rows])
    return path


@pytest.mark.parametrize("kind", sorted(WRITERS))
def test_an_export_of_the_history_has_a_job_for_each_submission(kind, tmp_path):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    again = {
        "attempt": 1,
        "submit_s": 99.0,
        "duration_s": 6.0,
        "status": "preempted",
        "lost_s": 6.0,
    }
    waits = {"attempt": 1, "job_id": "b", "submit_s": 100.0, "status": "queued"}
    last = {**ATTEMPTS[2], "submit_s": 99.0, "attempt": 2}
    first, second = read_trace(exported(tmp_path, kind, [*ATTEMPTS, again, last, waits]))
    assert (first.job_id, first.duration_s, first.fails_at_s) == ("a", 21.0, (14.0,))
    assert (first.gpus, first.pool, first.priority, first.savable) == (8.0, "x", 2.0, True)
    assert (second.job_id, second.submit_s, second.duration_s) == ("a#2", 99.0, 21.0)
    assert not second.savable


@pytest.mark.parametrize("kind", sorted(WRITERS))
def test_a_damaged_export_is_refused(kind, tmp_path):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    path = exported(tmp_path, kind, ATTEMPTS)
    path.write_bytes(path.read_bytes()[:-25])
    if kind == "csv":
        path.write_bytes(path.read_bytes().replace(b"duration_s", b"dur\x00"))
    with pytest.raises(InvalidRequestError, match=r"is no trace|cannot be read"):
        read_trace(path)


def test_a_packed_trace_that_is_cut_off_is_refused(tmp_path):
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(b"job_id,submit_s,duration_s\n" * 99)[:-9])
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        read_trace(path)
