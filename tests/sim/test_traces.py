"""Traces and tables of nodes are read as they are written."""

import gzip

import pytest

from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim import read_nodes, read_policy, read_trace
from schedulemesh.sim.cluster import reports

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
