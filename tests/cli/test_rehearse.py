"""The command rehearse reads a state folder and prints what a period would have been."""

import json
import random
import shutil

import pytest

from schedulemesh.cli.texts import duration
from tests.sim.recorded_load import run_and_write


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    state = tmp_path_factory.mktemp("state")
    (state / "ns").mkdir()
    run_and_write(state / "ns" / "mesh.sqlite", seed=2, count=60)
    return state


def test_without_changes_every_decision_is_the_same(run, folder):
    done = run("rehearse", str(folder))
    assert done.exit_code == 0, done.output
    assert (
        "under the policy that was in force all 146 decisions are as in the history" in done.stderr
    )
    assert "nodes" not in done.stderr
    assert "0 tasks would have waited less, 0 more" in done.stderr


def test_pools_before_and_after_a_change(run, folder, tmp_path):
    (tmp_path / "new.yaml").write_text("policy: {queue: {order: shortest_remaining}}\n")
    given = ["rehearse", str(folder), "--policy", str(tmp_path / "new.yaml"), "--nodes", "+4"]
    done = run(*given, "--pool", "a=32", "-o", "json")
    assert done.exit_code == 0, done.output
    rows = {row["pool"]: row for row in json.loads(done.stdout)}
    assert set(rows) == {"(all)", "a", "b"}
    mean = {side: rows["(all)"][side]["waited_s"]["mean"] for side in ("recorded", "rehearsed")}
    assert mean["rehearsed"] < mean["recorded"]
    assert "tasks would have waited less" in done.stderr


@pytest.mark.parametrize(
    ("language", "nodes", "said"),
    [
        ("en", "+4", "4 nodes were added to those of the history, each with "),
        ("en", "+1", "1 node was added to those of the history, each with "),
        ("en", "-1", "1 node of the history, the last to join, is left out"),
        ("zh", "+4", "在历史节点之外增加了 4 个节点，每个节点有 "),
        ("zh", "-2", "去掉了历史中最后加入的 2 个节点"),
    ],
)
def test_nodes_that_are_added_or_left_out_are_said(run, folder, language, nodes, said):
    done = run("rehearse", str(folder), "--nodes", nodes, "--lang", language)
    assert done.exit_code == 0, done.output
    first = done.stderr.splitlines()[0]
    assert said in first
    if nodes.startswith("+"):
        assert first.endswith("gpu 8")


def test_a_pool_whose_submissions_are_refused_keeps_its_row(run, folder, tmp_path):
    (tmp_path / "new.yaml").write_text("pools: [{name: a, resources: {}, cohort: null}]\n")
    done = run("rehearse", str(folder), "--policy", str(tmp_path / "new.yaml"), "-o", "json")
    assert done.exit_code == 0, done.output
    rows = {row["pool"]: row["rehearsed"]["tasks"] for row in json.loads(done.stdout)}
    assert rows == {"(all)": rows["b"], "a": 0, "b": rows["b"]}
    assert (
        f"{60 - rows['b']} submissions would have been refused; the first is 'job-" in done.stderr
    )
    assert "asks for" in done.stderr


def test_every_task_is_listed(run, folder):
    done = run("rehearse", str(folder), "--tasks", "-o", "json")
    assert len(json.loads(done.stdout)) == 60


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--pool", "a", "research=64"),
        ("--nodes", "many", "+4"),
        ("--pool", "c=4", "no pool 'c' at that time; pools were a, b"),
        ("--node-strategy", "foo", "--node-strategy is 'foo'; allowed are bin_pack"),
        ("--pool", "a=-4", "must be at least 0"),
        ("--pool", "a=nan", "must be a finite number"),
        ("--pool", "a=inf", "must be at most"),
        ("--nodes", "-4", "there were 4 nodes"),
        ("--nodes", "-100", "there were 4 nodes"),
        ("--since", "2999-01-01", "the history ends at"),
    ],
)
def test_bad_options_are_refused(run, folder, option, value, said):
    done = run("rehearse", str(folder), option, value)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_a_period_that_begins_before_the_history_is_all_of_it(run, folder):
    done = run("rehearse", folder, "--since", "1971-01-01", "-o", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)[0]["recorded"]["tasks"] == 60


@pytest.mark.parametrize("given", ["{queue: 5}", "{preemption: [1]}", "{queue: {5: 1}}"])
def test_a_policy_without_fields_is_refused(run, folder, tmp_path, given):
    (tmp_path / "new.yaml").write_text(f"policy: {given}\n")
    done = run("rehearse", folder, "--policy", tmp_path / "new.yaml")
    assert done.exit_code == 2
    assert "must have fields" in done.stderr or "has no 5; it has order" in done.stderr


def test_another_name_than_that_of_the_file_is_refused(run, folder):
    path = folder / "ns" / "mesh.sqlite"
    assert run("rehearse", path, "--name", "mesh").exit_code == 0
    done = run("rehearse", path, "--name", "other")
    assert done.exit_code == 2
    assert "--name is 'other', and" in done.stderr
    assert "is the journal of 'mesh'" in done.stderr


def _random(path):
    path.write_bytes(random.Random(1).randbytes(20_000))


def _halved(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flipped(path):
    """Damage what the message of SQLite quotes, too."""
    content, draw = bytearray(path.read_bytes()), random.Random(1)
    for _ in range(200):
        content[draw.randrange(100, len(content))] = draw.randrange(256)
    path.write_bytes(content)


def _emptied(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("name", ["mesh.sqlite", "mesh.sqlite.history"])
@pytest.mark.parametrize("damage", [_random, _halved, _flipped, _emptied])
def test_a_damaged_file_is_refused_and_left_as_it_is(run, folder, tmp_path, damage, name):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "ns" / name
    damage(path)
    before = path.read_bytes()
    done = run("rehearse", tmp_path)
    assert done.exit_code == 1
    assert "cannot be read" in done.stderr
    assert "intact copies of mesh.sqlite and mesh.sqlite.history" in done.stderr
    assert done.stdout == ""
    assert path.read_bytes() == before


@pytest.mark.parametrize("options", [(), ("--tasks",)])
def test_a_table_of_80_columns_breaks_no_word(run, folder, options):
    table = run("rehearse", folder, "--nodes", "+1", *options).stdout
    first = "task" if options else "pool"
    words = {"pool", "owner", "waited"} if options else {"mean", "p95", "evicted", "lost", "GPU-h"}
    assert {first, *words} <= set(table.split())
    assert max(map(len, table.splitlines())) <= 80
    rows = 61 if options else 4  # with the headings; the pools are (all), a and b
    assert len(table.splitlines()) == rows


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_table_has_fewer_columns(run, folder, width):
    done = run("rehearse", folder, "--nodes", "+1", width=width)
    assert max(map(len, done.stdout.splitlines())) <= width
    means = [row["recorded"]["waited_s"]["mean"] for row in json.loads(_as_json(run, folder))]
    assert {duration(mean) for mean in means} <= set(done.stdout.split())
    assert "not shown, for the width of the terminal: lost GPU-h" in done.stderr


def _as_json(run, folder):
    return run("rehearse", folder, "--nodes", "+1", "-o", "json").stdout


def test_a_wide_table_has_every_column(run, folder):
    table = run("rehearse", folder, "-o", "wide", width=200).stdout
    assert {"started", "ended", "GPU-h"} <= set(table.split())
