"""The command simulate needs no scheduler: it reads files and prints figures."""

import csv
import json
import sys

import pytest

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
    done = run(*given, "--only", "d")
    assert done.exit_code == 2
    assert "--only is 'd'; the pools of the trace are 'a', 'b', 'c'" in done.stderr


def lent(folder, monkeypatch):
    """A job of pool a holds all; after 100 s one of b comes, which runs when the other is saved, at 160 s."""
    monkeypatch.chdir(folder)
    files(folder, trace_csv="\n".join(TRACE.splitlines()[:3]), nodes_csv="count,gpu\n2,8\n")
    files(folder, lend_yaml=POLICY)
    return ["simulate", "trace.csv", "--cluster", "nodes.csv", "--policy", "lend.yaml"]


def test_jobs_that_are_worse_off_than_alone_are_counted_on_request(run, tmp_path, monkeypatch):
    given = lent(tmp_path, monkeypatch)
    assert "alone" not in json.loads(run(*given, "-o", "json").stdout)[0]
    rows = json.loads(run(*given, "--alone", "-o", "json").stdout)
    of_pool = {row["pool"]: row["alone"] for row in rows}
    assert of_pool["b"]["worse_off"] == of_pool["(all)"]["worse_off"] == 1
    assert of_pool["b"]["worse_off_by_s"]["max"] == 60
    # Alone, the gang of 16 GPUs is larger than the quota.
    assert of_pool["a"]["worse_off"] == 0
    assert "worse off" in run(*given, "--alone", "-o", "wide").stdout
    assert "alone.worse_off" in run(*given, "--alone", "-o", "csv").stdout


def test_waiting_and_utilisation_are_listed_over_time(run, tmp_path, monkeypatch):
    given = lent(tmp_path, monkeypatch)
    rows = json.loads(run(*given, "--every-s", "50", "-o", "json").stdout)
    assert {row["policy"] for row in rows} == {"lend"}
    assert [row["pool"] for row in rows[:2]] == ["(all)", "(all)"]
    of_a = [row for row in rows if row["pool"] == "a"]
    assert [row["time_s"] for row in of_a[:5]] == [0, 50, 100, 150, 200]
    assert [row["utilisation"] for row in of_a[:3]] == [2, 2, 2]
    of_b = [row for row in rows if row["pool"] == "b"]
    assert [row["waiting"] for row in of_b[:4]] == [0, 0, 1, 0.2]
    lines = run(*given, "--every-s", "50", "-o", "csv").stdout.splitlines()
    header = ["policy", "pool", "time_s", "waiting", "held_gpus", "utilisation"]
    assert next(csv.reader(lines)) == header
    assert len(lines) == 1 + len(rows)
    done = run(*given, "--every-s", "0.001")
    assert done.exit_code != 0
    assert "choose 1 s or more" in done.stderr


def test_every_figure_of_json_is_a_column_of_csv(run, tmp_path, monkeypatch):
    given = [*lent(tmp_path, monkeypatch), "--alone"]
    row = json.loads(run(*given, "-o", "json").stdout)[0]
    header = next(csv.reader(run(*given, "-o", "csv").stdout.splitlines()))
    for name in ("queue_s", "delay_s", "jct_s", "bounded_slowdown"):
        assert {f"{name}.{part}" for part in row[name]} <= set(header)
    single = {name for name, value in row.items() if not isinstance(value, dict)}
    assert single <= set(header)
    assert row["overhead_gpu_s"] == 16 * 180
    assert row["preemptions_per_job"]["mean"] == 0.5


def test_a_picture_is_drawn_beside_the_table(run, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    given = lent(tmp_path, monkeypatch)
    done = run(*given, "--picture", "waiting.svg", "-o", "json")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)) == 3
    assert "</svg>" in (tmp_path / "waiting.svg").read_text(encoding="utf-8")


def test_several_saving_costs_are_rows_of_one_table(run, tmp_path, monkeypatch):
    given = [*lent(tmp_path, monkeypatch), "--save-s", "10,20", "--restore-s", "5,40", "-o"]
    rows = json.loads(run(*given, "json").stdout)
    of_a = [row for row in rows if row["pool"] == "a"]
    assert [(row["save_s"], row["restore_s"]) for row in of_a] == [(10, 5), (20, 40)]
    assert [row["delay_s"]["mean"] for row in of_a] == [50 + 10 + 5, 50 + 20 + 40]
    assert "restore_s" in run(*given, "csv").stdout.splitlines()[0]
    refused = run(*given[:-1], "--save-s", "10,20,30")
    assert refused.exit_code != 0
    assert "--restore-s has 2 values and --save-s 3" in refused.stderr
    refused = run(*given[:-1], "--save-s", "10;20")
    assert refused.exit_code != 0
    assert "such as 0,60,300" in refused.stderr


def test_the_frontier_is_drawn_with_a_line_for_each_policy(run, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    given = lent(tmp_path, monkeypatch)
    files(tmp_path, walls_yaml=POLICY.replace("cohort: all, ", ""))
    (tmp_path / "trace.csv").write_text((tmp_path / "trace.csv").read_text().replace("16,a", "8,a"))
    more = ("--compare", "walls.yaml", "--save-s", "0,60", "--frontier", "frontier.svg")
    done = run(*given, *more, "-o", "json")
    assert done.exit_code == 0, done.output
    drawn = (tmp_path / "frontier.svg").read_text(encoding="utf-8")
    assert "<!-- walls -->" in drawn
    assert "<!-- save 60 s, restore 120 s -->" in drawn


def test_a_share_of_the_jobs_is_savable(run, tmp_path, monkeypatch):
    given = [*lent(tmp_path, monkeypatch), "-o", "json", "--savable"]
    kept, lost = (json.loads(run(*given, share).stdout)[0] for share in ("1", "0"))
    assert kept["lost_gpu_s"] == 0
    assert lost["lost_gpu_s"] == 16 * 100
    refused = run(*given, "2")
    assert refused.exit_code != 0
    assert "the savable share is 2" in refused.stderr


def test_a_higher_load_brings_submissions_sooner(run, tmp_path, monkeypatch):
    given = [*lent(tmp_path, monkeypatch), "--every-s", "50", "-o", "json", "--load", "2"]
    of_b = [row for row in json.loads(run(*given).stdout) if row["pool"] == "b"]
    assert [row["waiting"] for row in of_b[:3]] == [0, 1, 0.2]


def test_without_matplotlib_a_picture_is_refused_before_the_simulation(run, tmp_path, monkeypatch):
    given = lent(tmp_path, monkeypatch)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = run(*given, "--picture", "waiting.svg")
    assert done.exit_code != 0
    assert "schedulemesh-core[simulate]" in done.stderr
    assert done.stdout == ""
    assert run(*given).exit_code == 0


def test_nodes_die_at_the_given_times(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files(tmp_path, trace_csv="\n".join(TRACE.splitlines()[:2]), nodes_csv="count,gpu\n2,8\n")
    files(tmp_path, changes_csv="at_s,node,event\n100,0-node,lost\n500,0-node,joined\n")
    given = ["simulate", "trace.csv", "--cluster", "nodes.csv", "--node-changes", "changes.csv"]
    done = run(*given, "-o", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)[0]["delay_s"]["mean"] == 500
    files(tmp_path, changes_csv="at_s,node,event\n100,9-node,lost\n")
    refused = run(*given)
    assert refused.exit_code != 0
    assert "there is no node '9-node'; nodes are 0-node, 1-node" in refused.output


@pytest.mark.parametrize("options", [(), ("--copies", "1"), ("--alone",)])
def test_a_table_of_80_columns_breaks_no_heading_within_a_word(run, tmp_path, monkeypatch, options):
    monkeypatch.setenv("COLUMNS", "80")
    table = run(*lent(tmp_path, monkeypatch), *options).stdout
    assert {"policy", "pool", "delay", "evicted", "lost", "unmet"} <= set(table.split())
    assert max(map(len, table.splitlines())) <= 80


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize("options", [(), ("--alone", "--copies", "2", "--save-s", "0,60")])
def test_a_narrow_table_has_fewer_columns_and_whole_figures(
    run, tmp_path, monkeypatch, options, width
):
    given = lent(tmp_path, monkeypatch)
    (tmp_path / "lend.yaml").rename(tmp_path / "lend_without_moves.yaml")
    given[-1] = "lend_without_moves.yaml"
    (tmp_path / "trace.csv").write_text(
        "job_id,submit_s,duration_s,gpus,group_or_vc\nlong,0,9e7,16,a\nown,100,6e7,16,b\n"
    )
    done = run(*given, *options, width=width)
    assert max(map(len, done.stdout.splitlines())) <= width
    words = done.stdout.split()
    assert {"policy", "pool", "delay"} <= set(words)
    every = json.loads(run(*given, *options, "-o", "json").stdout)
    means = [f"{row['delay_s']['mean']:,.0f}" for row in every]
    assert all(words.count(mean) >= means.count(mean) for mean in means)
    assert ("lend_without_moves" in words) == (width > 40 or not options)
    if options or width < 80:
        assert "not shown, for the width of the terminal: " in done.stderr


def test_jobs_that_are_refused_are_reported_with_the_reason(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files(tmp_path, nodes_csv="count,gpu\n2,8\n")
    files(tmp_path, trace_csv="job_id,submit_s,duration_s,gpus\na,0,10,17\nb,0,10,1\nc,0,,1\n")
    for more in ((), ("-o", "json"), ("--every-s", "5")):
        said = run("simulate", "trace.csv", "--cluster", "nodes.csv", *more).stderr
        assert "policy: 1 job was refused, and 1 ran; the first is 'a': the task asks for" in said
        assert "1 jobs of trace.csv did not run, and are left out" in said


def test_policies_of_the_same_name_are_told_apart(run, tmp_path, monkeypatch):
    given = lent(tmp_path, monkeypatch)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lend.yaml").write_text(POLICY)
    given[-1] = "one/lend.yaml"
    rows = json.loads(run(*given, "--compare", "two/lend.yaml", "-o", "json").stdout)
    assert list(dict.fromkeys(row["policy"] for row in rows)) == ["one/lend", "two/lend"]
    done = run(*given, "--compare", "one/lend.yaml")
    assert done.exit_code == 2
    assert "give each file once" in done.stderr


def test_a_trace_without_pools_has_none_to_choose(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files(tmp_path, nodes_csv="count,gpu\n2,8\n")
    files(tmp_path, trace_csv="job_id,submit_s,duration_s\na,0,10\n")
    done = run("simulate", "trace.csv", "--cluster", "nodes.csv", "--only", "x")
    assert done.exit_code == 2
    assert "no job of the trace has a pool (column group_or_vc); leave it out" in done.stderr
