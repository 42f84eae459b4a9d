"""Pools and policies: one at a time, and as files that are applied, compared and exported."""

from __future__ import annotations

import json

import pytest
import yaml

FILE = """
cohorts:
  - {name: 模型部, parent: 公司}
  - {name: 公司}
pools:
  - name: 研究
    resources: {cpu: 8, gpu: 4, custom: {加速器: 2}}
    labels: {团队: 语言}
    cohort: 模型部
    lending_limit: {gpu: 2}
    queueing: strict
    target_agents: 2
    pg_pool_config: {enable: true, max_dynamic_pgs: 1}
  - name: prod
    resources: {cpu: 2}
    borrowing_limit: 0
policy:
  preemption: {min_runtime: 60, label_preemption_rules: {stage: {rlhf: [sft]}}}
  queue: {order: fifo}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "调度.yaml"
    path.write_text(FILE, encoding="utf-8")
    return path


def rows(run, *words):
    done = run(*words, "-o", "json")
    return json.loads(done.stdout)


def results(run, *words):
    return {row["name"]: row["result"] for row in rows(run, *words)}


def test_a_file_is_applied_once_and_then_there_is_no_difference(scheduler, run, file):
    assert run("diff", "-f", file).exit_code == 1
    assert results(run, "apply", "-f", file) == {
        "公司": "created",
        "模型部": "created",
        "研究": "created",
        "prod": "created",
        "preemption": "changed",
        "queue": "changed",
    }
    assert set(results(run, "apply", "-f", file).values()) == {"unchanged"}
    done = run("diff", "-f", file)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "no differences\n")


def test_differences_are_by_field(scheduler, run, file):
    run("apply", "-f", file)
    file.write_text(FILE.replace("strict", "best_effort").replace("fifo", "priority"), "utf-8")
    found = rows(run, "diff", "-f", file)
    assert rows(run, "apply", "--dry-run", "-f", file) == found
    assert [(row["kind"], row["name"], row["field"]) for row in found] == [
        ("pool", "研究", "queueing"),
        ("policy", "queue", "order"),
    ]
    assert (found[0]["current"], found[0]["declared"]) == ("strict", "best_effort")
    assert results(run, "pools", "apply", "-f", file)["研究"] == "changed"
    assert [row["field"] for row in rows(run, "diff", "-f", file)] == ["order"]


def test_what_is_exported_applies_to_another_scheduler_without_a_difference(
    scheduler, run, file, tmp_path
):
    run("apply", "-f", file)
    exported = run("export")
    assert exported.exit_code == 0
    (tmp_path / "other.yaml").write_text(exported.stdout, encoding="utf-8")
    assert run("diff", "-f", tmp_path / "other.yaml").exit_code == 0
    assert set(results(run, "apply", "-f", tmp_path / "other.yaml").values()) == {"unchanged"}
    assert json.loads(run("export", "-o", "json").stdout) == yaml.safe_load(exported.stdout)
    assert run("export", "config").stdout == exported.stdout
    assert run("export", "-o", "csv").exit_code == 2


def test_a_file_comes_from_stdin(scheduler, run):
    done = run("apply", "-f", "-", "-o", "name", input="pools: [{name: p}]")
    assert (done.exit_code, done.stdout) == (0, "p\n")
    assert run("apply", "-f", "-", input="").exit_code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pool: []", "did you mean 'pools'"),
        ("pools: {a: 1}", "must be a list"),
        ("pools: [{resources: {}}]", "must have a name"),
        ("pools: [{name: a}, {name: a}]", "twice"),
        ("pools: [{name: a, labels: {b: c}, labels: {}}]", "labels is given twice"),
        ("pools: [{name: a, resource: {}}]", "did you mean 'resources'"),
        ("pools: [{name: a, resources: {gpu: -1}}]", "gpu"),
        ("pools: [{name: a, pg_pool_config: {warm: {}}}]", "Python program"),
        ("cohorts: [{name: a, weight: 0}]", "weight"),
        ("policy: {queue: {order: x}}", "allowed are"),
        ("policy: {preemption: {min_runtim: 1}}", "did you mean 'min_runtime'"),
        ("[1]", "must have fields"),
        ("[]", "must have fields"),
        ("no", "must have fields"),
        ("a: [", "no YAML"),
    ],
)
def test_a_bad_file_is_refused_before_anything_changes(scheduler, run, text, message):
    done = run("apply", "-f", "-", input=f"{text}\n")
    assert done.exit_code == 2
    assert message in done.stderr
    assert run("pools", "-o", "json").stdout == "[]\n"


def test_a_file_that_is_not_there_is_refused(scheduler, run, tmp_path):
    done = run("apply", "-f", tmp_path / "none.yaml")
    assert done.exit_code == 2
    assert "cannot be read" in done.stderr


def test_a_pool_is_created_set_and_shown(scheduler, run):
    words = ("pools", "create", "研究", "resources={cpu: 4}", "queueing=strict")
    assert results(run, *words) == {"研究": "created"}
    assert results(run, *words) == {"研究": "unchanged"}
    other = run("pools", "create", "研究", "resources.cpu=5")
    assert other.exit_code == 6
    assert "already exists with cpu 4; use `schedulemesh pools set POOL` to change it" in " ".join(
        other.stderr.split()
    )
    assert results(run, "pools", "set", "研究", "resources.gpu=2") == {"研究": "changed"}
    found = rows(run, "pools", "get", "研究")
    assert found["resources"] == {"cpu": 4.0, "gpu": 2.0}
    assert found["queueing"] == "strict"
    assert "cpu 4, gpu 2" in run("pools", "get", "研究").stdout
    assert run("pools", "set", "研究", "resource.gpu=2").exit_code == 2
    assert run("pools", "set", "研究", "queueing").exit_code == 2
    missing = run("pools", "get", "研")
    assert missing.exit_code == 3
    assert "did you mean '研究'" in missing.stderr


def test_limits_of_owners_are_set_one_by_one_and_shown(scheduler, run, tmp_path):
    limits = "owner_limits={default: {gpu: 8, queued: 200}, ben: {custom: {tpu: 1}}}"
    assert run("pools", "create", "p", "resources.gpu=64", limits).exit_code == 0
    run("pools", "set", "p", "owner_limits.ada={gpu: 16, queued: null}", "owner_order=fair")
    row = rows(run, "pools", "get", "p")
    assert row["owner_limits"] == {
        "default": {"gpu": 8.0, "queued": 200},
        "ben": {"custom": {"tpu": 1.0}},
        "ada": {"gpu": 16.0, "queued": None},
    }
    assert row["owner_order"] == "fair"
    told = " ".join(run("pools", "get", "p").stdout.split())
    assert "default: gpu 8, queued 200; ben: tpu 1; ada: gpu 16, queued -" in told
    exported = tmp_path / "exported.yaml"
    exported.write_text(run("export").stdout, encoding="utf-8")
    assert run("diff", "-f", exported).exit_code == 0
    run("pools", "set", "p", "owner_limits.ben=null")
    assert list(rows(run, "pools", "get", "p")["owner_limits"]) == ["default", "ada"]
    wrong = run("pools", "set", "p", "owner_limits.ada={gup: 16}")
    assert wrong.exit_code == 2
    assert (
        "unknown key 'gup'; allowed are cpu, memory, gpu, custom, running, queued" in wrong.stderr
    )


def test_budgets_are_set_listed_and_exported(scheduler, run, tmp_path):
    assert run("budgets").exit_code == 0
    budget = "budget={gpu_hours: 100, utc_offset: +10:00, period: week}"
    assert run("pools", "create", "p", "resources.gpu=8", budget).exit_code == 0
    run("pools", "set", "p", "owner_budgets={default: {gpu_hours: 10, then: warn}}")
    run("pools", "set", "p", "owner_budgets.ada={gpu_hours: 20}", "budget.gpu_hours=200")
    row = rows(run, "pools", "get", "p")
    assert row["budget"]["gpu_hours"] == 200
    assert row["budget"]["utc_offset"] == "+10:00"
    assert row["owner_budgets"] == {
        "default": {"gpu_hours": 10.0, "then": "warn"},
        "ada": {"gpu_hours": 20.0},
    }
    told = " ".join(run("pools", "get", "p").stdout.split())
    assert "default: 10 GPU-hours, then warn; ada: 20 GPU-hours" in told
    pool_row, owner_row = rows(run, "budgets")
    assert (pool_row["owner"], pool_row["period"], pool_row["then"]) == (None, "week", "hold")
    assert (owner_row["owner"], owner_row["period"], owner_row["then"]) == ("ada", "month", "warn")
    assert (owner_row["used"], owner_row["state"], owner_row["spent_at"]) == (0.0, "open", None)
    exported = tmp_path / "exported.yaml"
    exported.write_text(run("export").stdout, encoding="utf-8")
    assert run("diff", "-f", exported).exit_code == 0
    run("pools", "set", "p", "budget=null", "owner_budgets=null")
    assert rows(run, "budgets") == []
    wrong = run("pools", "set", "p", "budget={gpu_hours: 5, then: stop}")
    assert wrong.exit_code == 2
    assert "budget['then'] is 'stop'; allowed are hold, lower_priority, warn" in wrong.stderr


def test_flavors_are_set_listed_and_exported(scheduler, run, tmp_path):
    each = [
        f"{{name: {name.lower()}, label_selector: {{model: {name}}}}}" for name in ("H100", "A100")
    ]
    flavors = f"flavors=[{', '.join(each)}]"
    made = run("pools", "create", "p", "resources={cpu: 9, gpu@h100: 2, gpu@a100: 4}", flavors)
    assert made.exit_code == 0, made.stderr
    row = rows(run, "pools", "get", "p")
    assert row["resources"] == {"cpu": 9.0, "custom": {"gpu@a100": 4.0, "gpu@h100": 2.0}}
    assert [flavor["name"] for flavor in row["flavors"]] == ["h100", "a100"]
    run("pools", "set", "p", "resources.gpu@h100=3", "lending_limit={gpu@h100: 1}")
    row = rows(run, "pools", "get", "p")
    assert row["resources"]["custom"] == {"gpu@a100": 4.0, "gpu@h100": 3.0}
    assert row["lending_limit"] == {"custom": {"gpu@h100": 1.0}}
    told = " ".join(run("pools", "get", "p").stdout.split())
    assert "h100 (gpu on nodes with model=H100); a100 (gpu on nodes with model=A100)" in told
    exported = tmp_path / "exported.yaml"
    exported.write_text(run("export").stdout, encoding="utf-8")
    assert run("diff", "-f", exported).exit_code == 0
    text = exported.read_text(encoding="utf-8")
    assert text.index("name: h100") < text.index("name: a100"), "their order counts"
    wrong = run("pools", "set", "p", "resources={gpu: 4}")
    assert wrong.exit_code != 0
    assert "give gpu@h100 and gpu@a100 instead" in wrong.stderr
    run("pools", "set", "p", "resources={gpu: 4}", "flavors=null")
    assert rows(run, "pools", "get", "p")["flavors"] == []


def test_a_typo_creates_no_pool(scheduler, run):
    scheduler.pool("research")
    done = run("pools", "set", "reserach", "resources.cpu=1")
    assert (done.exit_code, done.stderr) == (
        3,
        (
            "there is no pool 'reserach' (did you mean 'research'?); pools are: research. Create it with "
            "`schedulemesh pools create POOL`\n"
        ),
    )
    assert run("pools", "-o", "name").stdout == "research\n"


def test_what_is_above_a_smaller_quota_is_told(scheduler, run):
    scheduler.pool(cpu=2)
    scheduler.submit("a", cpu=2)
    done = run("pools", "set", "研究", "resources.cpu=1")
    assert (done.exit_code, done.stdout) == (0, "name  result\n研究  changed\n")
    assert "cpu 2 in use, 1 above the new quota: it shrinks as tasks end" in done.stderr
    assert "cpu -1" in run("pools").stdout


def test_a_pool_is_renamed_and_asked_for_by_either_name(scheduler, run):
    scheduler.pool("research", cpu=2)
    scheduler.submit("old", "research")
    scheduler.calls.complete_task("old", end_agent=True)
    scheduler.submit("new", "research")
    assert results(run, "pools", "rename", "research", "research") == {"research": "unchanged"}
    assert results(run, "pools", "rename", "research", "science") == {
        "research": "renamed to science"
    }
    assert [(row["task_id"], row["pool_name"]) for row in rows(run, "tasks")] == [
        ("new", "science")
    ]
    for name in ("research", "science"):
        found = rows(run, "history", "--pool", name)
        assert {row["task_id"]: row["pool_name"] for row in found} == {
            "old": "research",
            "new": "science",
        }
    events = rows(run, "events", "--pool", "science")
    assert "pool_renamed" in [event["kind"] for event in events]
    gone = run("pools", "set", "research", "weight=2")
    assert "which was renamed to 'science'" in " ".join(gone.stderr.split())
    assert run("pools", "rename", "x", "y").exit_code == 3


def test_a_pool_in_use_is_deleted_with_a_drain_only(scheduler, run):
    scheduler.pool(cpu=1)
    scheduler.pool("free")
    scheduler.submit("a", estimated_duration=60.0)
    scheduler.submit("b", queue=True)
    done = run("pools", "delete", "研究", "free")
    assert done.exit_code == 6
    assert " ".join(done.stderr.split()) == (
        "pool '研究' is in use: 1 task ('a') runs in it; 1 task ('b') waits in its queue. Delete it with "
        "--drain, which saves and evicts what runs and cancels what waits, or end these first"
    )
    assert "deleted" in done.stdout
    assert run("pools", "delete", "研究", "--deadline", "5m").exit_code == 2
    assert results(run, "pools", "delete", "研究", "--drain", "--deadline", "5m") == {
        "研究": "ending"
    }
    assert "ending" in run("pools").stdout
    assert "ending" in run("status").stdout
    assert "is being deleted; submit it to another pool" in run("explain", "b").stdout.replace(
        "\n", " "
    )
    assert run("apply", "-f", "-", input="pools: [{name: 研究}]").exit_code == 6
    assert results(run, "undrain", "--pool", "研究") == {"研究": "open again"}
    assert rows(run, "pools", "get", "研究")["state"] == "open"


def test_cohorts_are_created_renamed_and_deleted(scheduler, run):
    assert results(run, "cohorts", "create", "公司") == {"公司": "created"}
    assert results(run, "cohorts", "create", "部", "--parent", "公司", "--weight", "2") == {
        "部": "created"
    }
    assert run("cohorts", "create", "公司", "--weight", "3").exit_code == 6
    assert results(run, "cohorts", "rename", "公司", "集团") == {"公司": "renamed to 集团"}
    assert {row["name"]: row["parent"] for row in rows(run, "cohorts")} == {
        "集团": None,
        "部": "集团",
    }
    done = run("cohorts", "delete", "集团")
    assert done.exit_code == 6
    assert "cohort '部' is in it" in done.stderr
    assert results(run, "cohorts", "delete", "部", "集团") == {"部": "deleted", "集团": "deleted"}
    assert run("cohorts", "delete", "部").exit_code == 3


def test_pools_that_a_file_leaves_out_are_deleted_with_prune(scheduler, run):
    scheduler.pool("kept")
    scheduler.pool("idle")
    scheduler.pool("busy")
    scheduler.submit("a", "busy")
    file = "pools: [{name: kept}]"
    assert run("apply", "--prune", "-f", "-", input="policy: {}").exit_code == 2
    assert run("apply", "--drain", "-f", "-", input=file).exit_code == 2
    dry = run("apply", "--prune", "--dry-run", "-f", "-", "-o", "json", input=file)
    assert [(r["name"], r["current"], r["declared"]) for r in json.loads(dry.stdout)] == [
        ("idle", "exists", "is deleted"),
        ("busy", "in use: 1 agent", "stays: it is in use"),
    ]
    table = run("apply", "--prune", "--dry-run", "-f", "-", input=file).stdout
    assert max(map(len, table.splitlines())) <= 80
    assert run("pools", "-o", "name").stdout.split() == ["kept", "idle", "busy"]
    done = run("apply", "--prune", "-f", "-", "-o", "json", input=file)
    assert {row["name"]: row["result"] for row in json.loads(done.stdout)} == {
        "kept": "unchanged",
        "idle": "deleted",
        "busy": "refused: pool_in_use",
    }
    assert "1 task ('a') runs in it" in done.stderr
    done = run("apply", "--prune", "--drain", "-f", "-", "-o", "json", input=file)
    assert json.loads(done.stdout)[-1]["result"] == "ending"


def test_applying_what_is_there_writes_nothing(scheduler, run, file):
    run("apply", "-f", file)
    state = scheduler.connection.service.running.reactor.state

    def written():
        events = rows(run, "events", "--limit", "1000")
        return (state.audit.next_number, [event["cursor"] for event in events])

    before = written()
    assert before[1]
    assert set(results(run, "apply", "-f", file).values()) == {"unchanged"}
    assert written() == before


def test_pools_are_listed(scheduler, run):
    scheduler.pool("研究", labels={"团队": "语言"})
    scheduler.pool("prod")
    assert run("pools", "-o", "name").stdout.split() == ["研究", "prod"]
    assert run("pools", "-l", "团队=语言", "-o", "name").stdout.split() == ["研究"]


def test_policies_are_set_shown_compared_and_their_changes_listed(scheduler, run):
    changes = ("min_runtime=30", "order=fifo", "preemption_aggressiveness=high")
    changes += ("las_threshold_gpu_hours=4",)
    assert run("policy", "set", *changes).exit_code == 0
    found = {row["field"]: row["value"] for row in rows(run, "policy", "get")}
    assert (found["min_runtime"], found["order"]) == (30.0, "fifo")
    assert found["same_pool_priority_threshold"] == 0.5
    differing = {row["field"]: row["default"] for row in rows(run, "policy", "diff")}
    assert differing == {
        "same_pool_priority_threshold": 1.0,
        "label_priority_threshold": 0.5,
        "min_runtime": 0.0,
        "order": "priority",
        "las_threshold_gpu_hours": 8.0,
    }
    (change,) = rows(run, "policy", "history", "--since", "1h")
    assert change["changes"]["min_runtime"] == 30.0
    assert change["preemption_aggressiveness"] == "high"
    assert rows(run, "policy", "history", "--since", "2100-01-01") == []
    assert run("policy", "set", "min_runtim=1").exit_code == 2
    assert run("policy", "set", "order=backwards").exit_code == 2


def test_a_field_of_a_policy_is_known_and_null_is_its_default(scheduler, run):
    done = run("policy", "set", "min_runtme=null")
    assert (done.exit_code, "did you mean 'min_runtime'?" in done.stderr) == (2, True)
    run("policy", "set", "min_runtime=5m", "ageing_per_hour=2")
    assert run("policy", "set", "min_runtime=null", "ageing_per_hour=null").exit_code == 0
    assert run("policy", "set", "ageing_per_hour=").exit_code == 2
    assert rows(run, "policy", "diff") == []


@pytest.mark.parametrize(
    "words",
    [
        ("policy", "set", "min_runtime=1", "min_runtime=2"),
        ("pools", "set", "研究", "resources.cpu=2", "resources.cpu=3"),
        ("submit", "--pool", "研究", "--bundle", "gpu=4,gpu=2", "--", "true"),
    ],
)
def test_a_field_that_is_given_twice_is_refused(scheduler, run, words):
    scheduler.pool()
    done = run(*words)
    assert (done.exit_code, "is given twice" in done.stderr) == (2, True), done.stderr


def test_a_custom_resource_that_is_no_amount_names_its_option(scheduler, run):
    done = run("submit", "--pool", "研究", "--resource", "tpu:1", "--", "true")
    assert done.stderr == "--resource is 'tpu:1'; a custom resource is NAME=AMOUNT, such as tpu=4\n"
