"""Traces and tables of nodes are read as they are written."""

import gzip
import sys

import pytest

from schedulemesh.api.history import AttemptInfo
from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim import Job, NodeKind, read_nodes, read_policy, read_trace, simulate
from schedulemesh.sim.cluster import reports
from schedulemesh.sim.exported import jobs_of
from schedulemesh.sim.policy import read_policies
from schedulemesh.sim.traces import read_counted
from schedulemesh.store.history.export import COLUMNS, WRITERS, export

#: The second did not run, the third has no known processors; the fourth is a part of the first.
SWF = """; a comment
1 10 5 300 4 -1 -1 8 600 -1 1 3 1 -1 2 -1 -1 -1
2 20 5 -1 4 -1 -1 -1 -1 -1 5 3 1 -1 2 -1 -1 -1
3 20 5 100 -1 -1 -1 -1 -1 -1 5 3 1 -1 2 -1 -1 -1
1 10 5 100 4 -1 -1 8 600 -1 2 3 1 -1 2 -1 -1 -1
4 90 5 100 4 -1 -1 0 0 -1 1 -1 1 -1 -1 -1 -1 -1
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
    (one, other), not_run = read_counted(path)
    assert (one.job_id, one.submit_s, one.duration_s, one.cpus) == ("1", 10, 300, 8)
    assert (one.user, one.pool, one.estimate_s) == ("u3", "q2", 600)
    assert (other.cpus, other.user, other.pool, other.estimate_s) == (4, "", "", None)
    assert not_run == 2
    path.write_text(SWF.replace("10 5 300", "-7 5 300"))
    with pytest.raises(InvalidRequestError, match=r"log\.swf, line 2: submit_s is -7"):
        read_trace(path)
    path.write_text("1 2 3\n")
    with pytest.raises(InvalidRequestError, match=r"line 1 has 3 fields; a job .* has 18"):
        read_trace(path)


HEADER = "job_id,submit_s,duration_s,gpus,priority,requested_s,savable\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "line 2 is no row of a trace: it has a, b, and not job_id"),
        (f"{HEADER}x,soon,1\n", "line 2: submit_s is 'soon'; it must be a number"),
        (f"{HEADER}x,,1\n", "line 2: submit_s is empty"),
        (f"{HEADER}x,nan,1\n", "line 2: submit_s must be a finite number, not nan"),
        (f"{HEADER}x,-50,1\n", "line 2: submit_s is -50.0; it must be at least 0"),
        (f"{HEADER}x,1e300,1\n", "line 2: submit_s is 1e\\+300; it must be at most 1e10"),
        (f"{HEADER}x,0,inf\n", "line 2: duration_s is inf; it must be at most 1e10"),
        (f"{HEADER}x,0,-1\n", "line 2: duration_s is -1.0; it must be at least 0"),
        (f"{HEADER}x,0,1,-8\n", "line 2: gpus is -8.0; it must be at least 0"),
        (f"{HEADER}x,0,1,nan\n", "line 2: gpus must be a finite number, not nan"),
        (f"{HEADER}x,0,1,1e300\n", "line 2: gpus is 1e\\+300; it must be at most 1e6"),
        (f"{HEADER}x,0,1,1,nan\n", "line 2: priority must be a finite number, not nan"),
        (f"{HEADER}x,0,1,1,,-5\n", "line 2: requested_s is -5.0; it must be at least 0"),
        (f"{HEADER}x,0,1,1,,,maybe\n", "line 2: savable is 'maybe'; it must be 1, true or yes"),
        (f"{HEADER}\n,0,1\n", "line 3: job_id is empty"),
        (f"{HEADER}a,0,1\nb,0,1\na,9,1\n", "line 4: the job_id 'a' is also that of .*line 2"),
        (f"{HEADER}x,0,1,8,0,5,1,left over\n", "line 2 has 8 cells, and .* names 7 columns"),
        (f"{HEADER}{'x' * 140_000},0,1\n", "line 2: field larger than field limit"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(tmp_path, text, said):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InvalidRequestError, match=rf"trace\.csv, {said}"):
        read_trace(path)


def test_a_trace_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(InvalidRequestError, match=r"^\S*none\.csv cannot be read: .*No such file"):
        read_trace(tmp_path / "none.csv")


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_a_table_with_a_byte_order_mark_and_any_ends_of_lines_is_read(tmp_path, end):
    path = tmp_path / "table.csv"
    path.write_bytes(end.join(["job_id,submit_s,duration_s", "a,0,5", ""]).encode("utf-8-sig"))
    assert [job.job_id for job in read_trace(path)] == ["a"]
    path.write_bytes(end.join(["name,count,gpu", "n,2,8", ""]).encode("utf-8-sig"))
    assert len(reports(read_nodes(path))) == 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"priority": 0.0}, {"priority": 0}),
        ({"priority": None}, {"priority": 5}),
        ({"requested_s": float("nan")}, {"estimate_s": None}),
        ({"job_id": 7, "user": 3, "group_or_vc": 8.0}, {"job_id": "7", "user": "3", "pool": "8"}),
        ({"savable": "false"}, {"savable": False}),
        ({"savable": "No"}, {"savable": False}),
        ({"savable": "0.0"}, {"savable": False}),
        ({"savable": False}, {"savable": False}),
        ({"savable": 1.0}, {"savable": True}),
        ({"savable": None}, {"savable": True}),
    ],
)
def test_values_of_other_types_are_taken_for_what_they_are(fields, said):
    row = {"job_id": "a", "submit_s": 0, "duration_s": 10, **fields}
    (job,) = jobs_of([("row 1", row)])
    assert {name: getattr(job, name) for name in said} == said


def test_numbers_in_a_parquet_file_may_be_ids(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"job_id": 1, "submit_s": 0, "duration_s": 10, "priority": 0.0}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "trace.parquet")
    (job,) = read_trace(tmp_path / "trace.parquet")
    assert (job.job_id, job.priority) == ("1", 0)
    pq.write_table(pa.Table.from_pylist(rows * 2), tmp_path / "trace.parquet")
    with pytest.raises(InvalidRequestError, match=r"row 2: the job_id '1' is also that of .*row 1"):
        read_trace(tmp_path / "trace.parquet")


def test_without_pyarrow_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidRequestError, match=r"^Parquet needs pyarrow: pip install"):
        read_trace(tmp_path / "trace.parquet")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"job_id": 1}, "job_id must be a text, not 1"),
        ({"gpus": -8}, "gpus is -8; it must be at least 0"),
        ({"submit_s": float("nan")}, "submit_s must be a finite number"),
        ({"priority": 1e300}, "priority is 1e\\+300; it must be at most 1e9"),
        ({"estimate_s": -5}, "estimate_s is -5; it must be at least 0"),
        ({"fails_at_s": (-1.0,)}, "each of fails_at_s is -1.0"),
    ],
)
def test_a_job_cannot_be_made_wrong(fields, said):
    with pytest.raises(InvalidRequestError, match=said):
        Job(**{"job_id": "a", "submit_s": 0.0, "duration_s": 1.0, **fields})


def test_nodes_are_counted_in_the_order_of_the_table(tmp_path):
    path = tmp_path / "nodes.csv"
    path.write_text("name,count,cpu,gpu,labels\nbig,2,64,8,zone=a;disk=ssd\nsmall,,8,,\n")
    found = reports(read_nodes(path))
    assert [node.node_id for node in found] == ["0-big", "1-big", "2-small"]
    assert found[0].total.gpus == 8
    assert found[0].labels == {"zone": "a", "disk": "ssd"}
    assert found[2].total.gpu == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,gpus\na,8\n", " has the unknown column 'gpus'"),
        ("count,gpu\n-1,8\n", ", line 2: count must be a whole number of at least 0"),
        ("count,gpu\n1.5,8\n", ", line 2: count is '1.5'; it must be a whole number"),
        ("count,gpu\n1,-8\n", r", line 2: resources\['gpu'\] is -8.0; it must be at least 0"),
        ("count,gpu\n1,x\n", ", line 2: gpu is 'x'; it must be a number"),
        ("gpu,labels\n8,zone\n", ", line 2: labels is 'zone'; write labels as KEY=VALUE"),
        ("gpu,labels\n8,zone=\n", ", line 2: labels must map texts to texts"),
        ("count,gpu\n1,8,9\n", ", line 2 has 3 cells, and the first line names 2 columns"),
    ],
)
def test_a_wrong_table_of_nodes_is_refused(tmp_path, text, said):
    path = tmp_path / "nodes.csv"
    path.write_text(text)
    with pytest.raises(InvalidRequestError, match=rf"nodes\.csv{said}"):
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{queue: 5}", "queue must have fields, not 5"),
        ("{queue: [1]}", r"queue must have fields, not \[1\]"),
        ("{preemption: [1]}", r"preemption must have fields, not \[1\]"),
        ("{queue: {5: 1}}", "the policy of the queue has no 5; it has order"),
        ("[1]", r"policy must have fields, not \[1\]"),
    ],
)
def test_a_policy_without_fields_is_refused(tmp_path, given, said):
    (tmp_path / "policy.yaml").write_text(f"policy: {given}\n")
    with pytest.raises(InvalidRequestError, match=said):
        read_policy(tmp_path / "policy.yaml")


def test_policies_of_the_same_name_are_named_apart_by_their_folders(tmp_path):
    paths = [tmp_path / name for name in ("a/x.yaml", "b/x.yaml", "y.yaml")]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    assert [policy.name for policy in read_policies(paths)] == ["a/x", "b/x", "y"]
    with pytest.raises(InvalidRequestError, match=r"two policies are \S+/a/x; give each file once"):
        read_policies([paths[0], paths[0]])


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
def test_an_exported_history_keeps_the_time_limits_and_nodes_of_tasks(kind, tmp_path):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    attempt = {
        **dict.fromkeys(AttemptInfo.__annotations__),
        "cursor": 1,
        "task_id": "a",
        "attempt": 1,
        "labels": {},
        "node_ids": [],
        "submitted_at": 100.0,
        "started_at": 100.0,
        "ended_at": 700.0,
        "state": "completed",
        "cpu": 1.0,
        "gpu": 0.0,
        "memory_mb": 0.0,
        "waited_s": 0.0,
        "gpu_s": 0.0,
        "cpu_s": 600.0,
        "max_run_s": 600.0,
        "on_time_limit": "requeue",
        "label_selector": {"model": "in(H100,A100)", "zone": "!b"},
        "alternative": 2,
        "after": ["ok:a"],
    }
    path = tmp_path / f"history.{kind}"
    export(lambda after, _most: {"attempts": [attempt], "more": False}, path, None)
    (job,) = read_trace(path)
    assert (job.max_run_s, job.requeued_at_limit) == (600.0, True)
    assert job.node_labels == {"model": "in(H100,A100)", "zone": "!b"}


def test_jobs_of_an_export_start_after_those_that_they_waited_for(tmp_path):
    ran = {"attempt": 1, "duration_s": 10.0, "status": "completed"}
    rows = [
        {**ran, "job_id": "gone", "duration_s": None, "status": "cancelled"},
        {**ran, "job_id": "a,b"},
        {**ran, "job_id": "again"},
        {**ran, "job_id": "again", "submit_s": 5.0},
        {**ran, "job_id": "last", "submit_s": 6.0, "after": '["ok:a,b","fail:again","any:older"]'},
        {**ran, "job_id": "all", "submit_s": 7.0, "after": '["ok:sweep","ok:gone","ok:later"]'},
        {**ran, "job_id": "sweep[1]", "submit_s": 2.0},
        {**ran, "job_id": "sweep[3]", "submit_s": 2.0},
        {**ran, "job_id": "later", "submit_s": 8.0, "after": '["any:later"]'},
    ]
    jobs = {job.job_id: job.after for job in read_trace(exported(tmp_path, "csv", rows))}
    assert jobs["last"] == ("any:a,b", "any:again#2")
    assert jobs["all"] == ("any:sweep[1]", "any:sweep[3]")
    assert jobs["later"] == ()
    nodes = [NodeKind(name="n", gpu=64)]
    result = simulate(read_trace(tmp_path / "jobs.csv"), nodes)
    starts = {run.job.job_id: run.first_start - result.begin for run in result.runs}
    assert starts["last"] == 15.0
    assert starts["all"] == 12.0


def test_what_a_job_of_an_export_starts_after_must_be_json(tmp_path):
    row = {**ATTEMPTS[2], "after": "[a"}
    with pytest.raises(InvalidRequestError, match="line 2: after is '\\[a', which is no JSON"):
        read_trace(exported(tmp_path, "csv", [row]))


@pytest.mark.parametrize("kind", sorted(WRITERS))
def test_a_damaged_export_is_refused(kind, tmp_path):
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    path = exported(tmp_path, kind, ATTEMPTS)
    path.write_bytes(path.read_bytes()[:-25])
    if kind == "csv":
        path.write_bytes(path.read_bytes().replace(b"duration_s", b"dur\x00"))
    with pytest.raises(
        InvalidRequestError, match=r"is no row of a trace|is no object|cannot be read"
    ):
        read_trace(path)


def test_what_was_submitted_before_an_export_begins_is_submitted_at_its_begin(tmp_path):
    (job,) = read_trace(exported(tmp_path, "csv", [{**ATTEMPTS[2], "submit_s": -40.0}]))
    assert (job.submit_s, job.duration_s) == (0, 21)


def test_a_packed_trace_that_is_cut_off_is_refused(tmp_path):
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(b"job_id,submit_s,duration_s\n" * 99)[:-9])
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        read_trace(path)


def test_jobs_run_on_the_nodes_whose_labels_they_ask_for(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(
        "job_id,submit_s,duration_s,gpus,node_labels\n"
        "first,0,100,8,model=H100\nsecond,1,100,8,model=H100\nother,2,100,8,model=!H100\n"
    )
    nodes = [NodeKind(name="a", gpu=8, labels={"model": "A100"})]
    nodes.append(NodeKind(name="h", gpu=8, labels={"model": "H100"}))
    runs = {run.job.job_id: run.first_start for run in simulate(read_trace(path), nodes).runs}
    begun = runs["first"]
    assert runs["second"] - begun >= 100.0, "it waits for the first, and the A100s are free"
    assert runs["other"] - begun < 10.0


def test_conditions_that_are_none_are_refused_with_their_line(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("job_id,submit_s,duration_s,node_labels\nj,0,1,zone=in(a\n")
    with pytest.raises(InvalidRequestError, match=r"line 2: node_labels\['zone'\] is 'in\(a'"):
        read_trace(path)


def test_jobs_run_in_the_first_of_their_alternatives_that_is_free(tmp_path):
    path = tmp_path / "trace.csv"
    wanted = "model=H100,model=A100|model=L40S;gpus=16"
    path.write_text(
        "job_id,submit_s,duration_s,gpus,node_labels,alternatives\n"
        + "".join(f"j{number},{number},100,8,{wanted}\n" for number in range(4))
    )
    nodes = [
        NodeKind(name=name, gpu=8, count=count, labels={"model": model})
        for name, model, count in (("a", "A100", 1), ("h", "H100", 1), ("l", "L40S", 2))
    ]
    result = simulate(read_trace(path), nodes)
    starts = {run.job.job_id: run.first_start - result.begin for run in result.runs}
    assert [starts[f"j{number}"] for number in range(3)] == [0.0, 1.0, 2.0]
    assert starts["j3"] == 100.0, "it waits for the first of the three that ends"


def test_an_alternative_that_is_none_is_refused_with_its_line(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("job_id,submit_s,duration_s,alternatives\nj,0,1,zone=b|gpus=many\n")
    with pytest.raises(InvalidRequestError, match="line 2: gpus"):
        read_trace(path)
