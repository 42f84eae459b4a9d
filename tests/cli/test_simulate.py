"""The command simulate needs no scheduler: it reads files and prints figures."""

import json

TRACE = (
    "job_id,submit_s,duration_s,gpus,group_or_vc\n"
    "long,0,1000,16,a\n"
    "own,100,50,8,b\n"
    "other,100,50,8,c\n"
)
POLICY = (
    "pools:\n"
    "  - {name: a, cohort: all, resources: {gpu: 8}}\n"
    "  - {name: b, cohort: all, resources: {gpu: 8}}\n"
)


def files(folder, **contents):
    for name, text in contents.items():
        (folder / name.replace("_", ".")).write_text(text)


def test_two_policies_are_compared(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files(tmp_path, trace_csv=TRACE.replace("8,c", "8,b"), nodes_csv="count,gpu\n2,8\n")
    files(tmp_path, lend_yaml=POLICY, walls_yaml=POLICY.replace("cohort: all, ", ""))
    (tmp_path / "trace.csv").write_text("\n".join(TRACE.splitlines()[:3]).replace("16,a", "8,a"))
    given = ["simulate", "trace.csv", "--cluster", "nodes.csv", "--policy", "lend.yaml"]
    done = run(*given, "--compare", "walls.yaml", "-o", "json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [(row["policy"], row["pool"]) for row in rows] == [
        ("lend", "(all)"),
        ("lend", "a"),
        ("lend", "b"),
        ("walls", "(all)"),
        ("walls", "a"),
        ("walls", "b"),
    ]
    assert rows[0]["delay_s"]["mean"] == 0


def test_saving_and_restoring_take_as_long_as_is_said(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files(tmp_path, trace_csv="\n".join(TRACE.splitlines()[:3]), nodes_csv="count,gpu\n2,8\n")
    files(tmp_path, lend_yaml=POLICY)
    given = ["simulate", "trace.csv", "--cluster", "nodes.csv", "--policy", "lend.yaml"]
    done = run(*given, "--save-s", "10", "--restore-s", "20", "-o", "json")
    of_pool = {row["pool"]: row for row in json.loads(done.stdout)}
    assert of_pool["b"]["delay_s"]["mean"] == 10
    assert of_pool["a"]["delay_s"]["mean"] == 60 + 20
    assert of_pool["a"]["preemptions"] == 1


def test_copies_of_the_trace_give_a_deviation(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files(tmp_path, trace_csv="\n".join(TRACE.splitlines()[:3]), nodes_csv="count,gpu\n2,8\n")
    files(tmp_path, lend_yaml=POLICY)
    given = [
        "simulate",
        "trace.csv",
        "--cluster",
        "nodes.csv",
        "--policy",
        "lend.yaml",
        "-o",
        "json",
    ]
    once = json.loads(run(*given).stdout)[0]
    assert once["delay_deviation_s"] == 0
    several = [json.loads(run(*given, "--copies", "5", *more).stdout)[0] for more in ((), ())]
    assert several[0] == several[1]
    assert several[0]["delay_deviation_s"] > 0
    assert several[0]["delay_worst_s"] > several[0]["delay_s"]["mean"]
    other = json.loads(run(*given, "--copies", "5", "--seed", "9").stdout)[0]
    assert other["utilisation"] != several[0]["utilisation"]


def test_a_job_of_a_pool_that_is_not_declared_is_named(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files(tmp_path, trace_csv=TRACE, nodes_csv="count,gpu\n2,8\n", lend_yaml=POLICY)
    given = ["simulate", "trace.csv", "--cluster", "nodes.csv", "--policy", "lend.yaml"]
    done = run(*given)
    assert done.exit_code != 0
    assert "job 'other' is for pool 'c'" in done.stderr
    assert run(*given, "--only", "a").exit_code == 0
