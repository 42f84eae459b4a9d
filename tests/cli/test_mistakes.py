"""Common mistakes: typos, units, wrong order, quotes. Each ends with a message that names the right form."""

from __future__ import annotations

import shlex

import pytest

from schedulemesh.cli.root import GROUPS

#: By the group of the command that help lists: the command, its exit code, and words of the message.
MISTAKES = {
    "Look": [
        ("tasks -f state=runing", 2, "did you mean 'running'"),
        ("tasks -f stat=running", 2, "did you mean 'state'"),
        ("tasks -f state:running", 2, "KEY=VALUE or KEY!=VALUE"),
        ("tasks --sort prioritty", 2, "did you mean 'priority'"),
        ("tasks --sort ''", 2, "no field ''"),
        ("tasks --sort=-", 2, "no field ''"),
        ("tasks --limit 3", 2, "name it with --array"),
        ("tasks --after 3", 2, "name it with --array"),
        ("tasks -f 'state = runing'", 2, "state is 'runing'"),
        ("tasks --count 2", 2, "give it with --watch"),
        ("pools --interval 5", 2, "give it with --watch"),
        ("tasks -l team", 2, "KEY=VALUE or KEY!=VALUE"),
        ("tasks -o jsno", 2, "'table', 'wide', 'json'"),
        ("tasks gte 甲", 2, "Did you mean 'get'"),
        ("queue --pool 研宄", 3, "pools are: 研究"),
        ("queue -f reason=insuficient_quota", 2, "did you mean 'insufficient_quota'"),
        ("jobs -f state=runing", 2, "did you mean 'running'"),
        ("agents -f pool=nope", 3, "there are: 研究"),
        ("nodes -f nodes=1", 2, "did you mean 'node'"),
        ("statsu", 2, "Did you mean 'status'"),
        ("tasks 甲", 2, "tasks get 甲` shows one of them"),
        ("pools 研究", 2, "pools get 研究` shows one of them"),
        ("pools list", 2, "pools` lists all"),
        ("pools show 研究", 2, "pools` lists all"),
        ("cohorts get x", 2, "cohorts -f KEY=VALUE` chooses rows"),
        ("jobs 甲", 2, "jobs -f KEY=VALUE` chooses rows"),
        ("queue 研究", 2, "queue -f KEY=VALUE` chooses rows"),
        ("states get 甲", 2, "states -f KEY=VALUE` chooses rows"),
        ("tasks get train7", 3, "Ids like it: 'train-7'"),
        ("tasks wait train7 --timeout 1s", 3, "Ids like it: 'train-7'"),
        ("tasks get ''", 2, "a text of 1 to 253 printable characters"),
        ("tasks -f 'resources.gpus=1'", 2, "did you mean 'gpu'"),
        ("agents --pool 研宄", 3, "pools are: 研究"),
        ("tasks —sort priority", 2, "'—sort' begins with a dash of another kind; type --sort"),
        ("tasks －f state=running", 2, "type -f"),
        ("tasks – get 甲", 2, "type -"),
        ("queue --owner ada", 2, "queue -f KEY=VALUE` chooses rows"),
        ("budgets --pool 研究", 2, "budgets -f KEY=VALUE` chooses rows"),
        ("ps", 2, "`schedulemesh tasks` does that here"),
        ("squeue", 2, "`schedulemesh queue` does that here"),
        ("sinfo -N", 2, "`schedulemesh nodes` does that here"),
        ("describe 甲", 2, "`schedulemesh explain` does that here"),
        ("leases --pool nope", 2, "leases -f KEY=VALUE` chooses rows"),
        ("cohorts set c", 2, "it has create, rename, delete"),
        ("--name", 2, "Option '--name' requires an argument.\n"),
        ("status mesh", 2, "a scheduler is named with --name mesh"),
    ],
    "Understand": [
        ("explain", 2, "Missing argument"),
        ("explain nope", 3, "`schedulemesh tasks` lists the tasks"),
        ("explain 甲 乙", 2, "unexpected extra argument"),
        ("usage --until now", 2, "--until is 'now'"),
        ("history --state dead", 2, "it may be queued, starting, running"),
        ("history --pool nope", 3, "there are: 研究"),
        ("history --since yesterday", 2, "90s, 30m, 12h, 7d or 2w"),
        ("events --kind nope", 2, "it may be"),
        ("usage --by team", 2, "allowed are pool, owner, label, flavor"),
        ("usage --since 1d --until 2d", 2, "until is 1d before since"),
        ("usage --since 1y", 2, "90s, 30m, 12h, 7d or 2w"),
        ("preemptions --since 1x", 2, "90s, 30m, 12h, 7d or 2w"),
        ("evaluate --pool 研究 --gpus x", 2, "Invalid value for '--gpus'"),
        ("metrics -f name=schedulemesh_task", 2, "did you mean 'schedulemesh_tasks'"),
        ("alerts test nope", 2, "schedulemesh start --alerts FILE"),
        ("alerts get x", 2, "alerts -f KEY=VALUE` chooses rows"),
        ("history --state runing", 2, "--state is 'runing' (did you mean 'running'?)"),
        ("history --export /nonexistent/x.csv", 2, "cannot be written: No such file or directory"),
        ("history --export x.xls", 2, "allowed are csv, jsonl, parquet"),
        ("usage --by pools", 2, "--by is 'pools'"),
        ("evaluate --pool 研究 --label team", 2, "LABEL=VALUE"),
        ("evaluate --pool 研究 --label a=1 --label a=2", 2, "--label has a as '1' and as '2'"),
    ],
    "Run": [
        ("submit --pool 研究 --gpu 1 -- true", 2, "--gpus"),
        ("submit -- true", 2, "no pool is named; name the one that it runs in: --pool NAME"),
        ("submit --pool 研究 --cpus 1 —— true", 2, "type --"),
        ("submit --pool 研究 --id “a” -- true", 2, "--id has the quotes “ and ”"),
        ("submit --pool 研究 --env 'A B=1' -- true", 2, "--env has 'A B'; the name of a variable"),
        ("submit --pool 研究 --env '$A=1' -- true", 2, "--env has '$A'; the name of a variable"),
        ("submit -p 研究 -- true", 2, "No such option: -p; here it is --pool"),
        ("submit --pool 研究 -t 4h -- true", 2, "here it is --time"),
        ("submit --pool 研究 --gres gpu:4 -- true", 2, "here it is --gpus"),
        ("submit --pool 研究 --nodes 2 -- true", 2, "here it is --bundle"),
        ("submit --pool 研究 --dependency 甲 -- true", 2, "here it is --after"),
        ("lease --partition 研究 -- true", 2, "here it is --pool"),
        ("logs 甲 -f", 2, "here it is --follow"),
        ("logs 甲 --lines 5", 2, "here it is --tail"),
        ("cancel 甲,train-7", 3, "Several tasks are written with spaces between them"),
        ("hold 甲，train-7", 3, "Several tasks are written with spaces between them"),
        ("exec 甲 -it -- bash", 2, "here it is `schedulemesh shell ID`"),
        ("kill 甲", 2, "`schedulemesh cancel` does that here"),
        ("scancel 甲", 2, "`schedulemesh cancel` does that here"),
        ("sbatch train.sh", 2, "`schedulemesh submit` does that here"),
        ("submit --pool 研究 --gpus inf -- true", 2, "resources['gpu'] is inf"),
        ("submit --pool 研究 --gpus nan -- true", 2, "finite number"),
        ("submit --pool 研究 --gpus four -- true", 2, "Invalid value for '--gpus'"),
        ("submit --pool 研究 --memory 64X -- true", 2, "512MB, 64GB or 1TB"),
        ("submit --pool 研究 --time 2:00:00 -- true", 2, "90s, 30m, 1h30m"),
        ("submit --pool 研究 --time 0 -- true", 2, "--time is 0.0; it must be above 0"),
        ("submit --pool 研究 --gpu-model '' -- true", 2, "a name such as H100"),
        ("submit --pool 研究 --gpu-model H100, -- true", 2, "a name such as H100"),
        ("submit --pool 研究 --bundle gpu= -- true", 2, "'gpu=' has no value"),
        ("submit --pool 研究 --label team:x -- true", 2, "LABEL=VALUE"),
        ("submit --pool 研究 --label notify=team -- true", 2, "names the receiver 'team'"),
        ("submit --pool 研究 --after always:甲 -- true", 1, "are ok:, any: and fail:"),
        ("submit --pool 研究 --priority hgih -- true", 2, "did you mean 'high'"),
        ("submit --pool 研究 --bundle gpu:4 -- true", 2, "such as cpu=8,gpu=4"),
        ("submit --pool 研究 'python train.py'", 2, "give each word by itself"),
        ("submit --pool 研究", 2, "give it after `--`"),
        ("submit --pool 研究 --array 1..5 -- true", 2, "0-99"),
        ("submit --pool 研究 -- ''", 2, "the command is empty"),
        ("submit --pool 研究 --time 2 h -- true", 2, "'h' stands before `--`"),
        ("submit 研究 -- true", 2, "'研究' stands before `--`"),
        ("submit --pool 研究 --id -x -- true", 2, "begin it with a letter or a digit"),
        (
            "submit --pool 研究 --label t=a --label t=b -- true",
            2,
            "--label has t as 'a' and as 'b'",
        ),
        ("submit --pool 研究 --env A=1 --env A=2 -- true", 2, "--env has A as '1' and as '2'"),
        ("submit --pool 研究 --wait --dry-run -- true", 2, "leave out --wait"),
        ("submit --pool 研究 --follow --dry-run -- true", 2, "leave out --follow"),
        ("submit --pool 研究 --max-run 0 -- true", 2, "--max-run is 0.0; it must be above 0"),
        ("submit --pool 研究 --idle 0 -- true", 2, "--idle must be seconds above 0"),
        ("submit --pool 研究 --on-preempted requeu -- true", 2, "--on-preempted is 'requeu'"),
        ("submit --pool 研究 --on-oom rety -- true", 2, "--on-oom is 'rety'"),
        ("submit --pool 研究 --strategy PAKC -- true", 2, "--strategy is 'PAKC'"),
        ("submit --pool 研究 --checkpoint-dir here -- true", 2, "--checkpoint-dir is 'here'"),
        ("submit --pool 研究 --working-dir /no -- true", 2, "--working-dir is '/no'"),
        ("cancel train7", 3, "Ids like it: 'train-7'"),
        ("cancel --all", 2, "here it is `schedulemesh tasks -o name | xargs schedulemesh cancel`"),
        (
            "hold --pool 研究",
            2,
            "`schedulemesh tasks -f pool=POOL -o name | xargs schedulemesh hold`",
        ),
        ("submit -f nope.yaml", 2, "nope.yaml cannot be read: No such file or directory\n"),
        (
            "submit --pool 研究 --runtime-env '{pip: ' -- true",
            2,
            "no YAML: while parsing a flow node exp",
        ),
        ("preempt train7", 3, "Ids like it: 'train-7'"),
        ("complete train7", 3, "Ids like it: 'train-7'"),
        ("hold train7", 3, "Ids like it: 'train-7'"),
        ("front train7", 3, "Ids like it: 'train-7'"),
        ("priority train7 3", 3, "Ids like it: 'train-7'"),
        ("limit train7 4h", 3, "Ids like it: 'train-7'"),
        ("limit 甲 0", 2, "it must be above 0"),
        ("save train7", 3, "Ids like it: 'train-7'"),
        ("exec 甲 --rank x -- true", 2, "'--rank' / '--member'"),
        ("wait 甲 --until runing", 2, "did you mean 'running'"),
        ("logs 甲 --stream stdou", 2, "did you mean 'stdout'"),
        ("priority hgih 甲", 2, "a number, and the classes"),
        ("limit 2h 甲", 2, "90s, 30m, 1h30m"),
        ("exec 甲 -- true", 4, "`schedulemesh policy set allow_exec=true`"),
        ("shell 甲", 2, "`schedulemesh exec ID --stdin -- COMMAND`"),
    ],
    "Operate": [
        ("cordon nope", 3, "there is no node 'nope'"),
        ("uncordon", 2, "Missing argument"),
        ("drain nope", 3, "there is no node 'nope'"),
        ("drain --pool nope", 3, "pools are: 研究"),
        ("drain 研究", 3, "A pool is drained with --pool: `schedulemesh drain --pool 研究`"),
        ("undrain 研究", 3, "`schedulemesh undrain --pool 研究`"),
        (
            "windows create '' --start 2100-12-05T22:00Z --duration 4h --all-nodes",
            2,
            "the window's name must be a text",
        ),
        (
            "windows create w --start 2100-12-05T22:00Z --duration 4h --gpus 4",
            2,
            "give --for-pool, --for-owner or --for-label",
        ),
        ("windows set w", 2, "it has create, delete"),
        ("drain --deadline 5", 2, "Missing argument"),
        ("drain n --deadline soon", 2, "90s, 30m"),
        ("undrain", 2, "Missing argument"),
        ("health --watch=yes", 2, "--watch"),
        ("health --timeout 0", 2, "--timeout must be seconds above 0"),
        ("windows create w --start 2100-12-05T22:00Z --duration 4h", 2, "or --all-nodes; give one"),
        ("external --pol x", 2, "No such option: --pol"),
        ("drains -f pools=x", 2, "they have"),
        (
            "windows create w --start 2100-12-05T22:00Z --duration 4h --all-nodes --for-pool nope",
            3,
            "pools are: 研究",
        ),
        (
            "windows create w --start 2100-12-05T22:00Z --duration 4h --all-nodes --repeat weekly-ish",
            2,
            "allowed are 'daily', 'weekly'; leave it out for a window that comes once",
        ),
    ],
    "Configure": [
        ("policy set min_runtim=10", 2, "did you mean 'min_runtime'"),
        ("policy set min_runtime=", 2, "null for the default"),
        ("policy set min_runtime 10", 2, "a change is FIELD=VALUE"),
        ("policy set min_runtime = 10", 2, "a change is FIELD=VALUE, without spaces"),
        ("policy show", 2, "it has get, set, diff, history"),
        ("tokens delete x", 2, "it has list, create, rotate, revoke"),
        ("tokens create x --expires 0", 2, "--expires is 0.0; it must be above 0"),
        (
            "tokens create x --role submitter --owner a --no-evictions --evict-pool 研究",
            2,
            "--no-evictions and --evict-pool contradict each other; give one",
        ),
        ("audit --who ''", 2, "--who must be a text"),
        ("export x", 2, "it has "),
        ("policy set min_runtime=10minutes", 2, "'90s', '30m'"),
        ("policy set victim_order=scores", 2, "score, priority_first"),
        ("policy set allow_exec=maybe", 2, "True or False"),
        ("policy set 'links={a: b}'", 2, "begins with http:// or https://"),
        ("pools set 研究 resources.gpu=", 2, "give 0 for no amount"),
        ("pools set 研究 gpu=4", 2, "did you mean 'resources.gpu'"),
        ("pools set 研究 resources.gpus=4", 2, "did you mean 'gpu'"),
        ("pools create x resources.gpu", 2, "a change is FIELD=VALUE"),
        ("pools create 研究", 6, "`schedulemesh pools set POOL`"),
        ("policy get min_runtime", 2, "policy get -f KEY=VALUE` chooses rows"),
        ("pools delete 研究 --deadline 5m", 2, "give --drain with it"),
        ("cohorts create c --parent nope", 3, "`schedulemesh cohorts create COHORT`"),
        ("tokens create x --role submiter", 2, "allowed are viewer, submitter"),
        ("tokens create x --role submitter", 2, "needs the owner"),
        ("audit --call nope", 2, "there are"),
        ("apply", 2, "--file"),
        ("apply -f nope.yaml", 2, "nope.yaml cannot be read: No such file or directory\n"),
    ],
    "Set up and try": [
        ("start --htpp", 2, "--http"),
        ("help sumbit", 2, "submit"),
        ("simulate", 2, "Missing argument"),
        ("simulate nope.csv", 2, "Missing option '--cluster'"),
        ("rehearse", 2, "Missing argument 'state'"),
        ("rehearse nope.db", 2, "there is no file or folder nope.db"),
        ("doctor --nmae x", 2, "--name"),
        ("demo --minuts 3", 2, "No such option: --minuts"),
        ("stop --forse", 2, "No such option: --forse"),
        ("stop head", 2, "a scheduler is named with --name head"),
        ("list -o jsno", 2, "'table', 'wide', 'json'"),
        ("verison", 2, "Did you mean 'version'"),
    ],
}


def test_every_group_has_its_mistakes():
    assert list(MISTAKES) == list(GROUPS)
    assert min(map(len, MISTAKES.values())) >= 10


@pytest.mark.parametrize("group", MISTAKES)
def test_a_mistake_ends_with_the_right_form(scheduler, run, group):
    scheduler.pool()
    scheduler.submit("甲")
    scheduler.submit("train-7")
    wrong = []
    for line, code, words in MISTAKES[group]:
        done = run(*shlex.split(line), width=400)
        if done.exit_code != code or words not in done.stderr:
            wrong.append((line, done.exit_code, done.stdout[-200:], done.stderr[-300:]))
    assert wrong == []


def test_changes_are_appended_to_no_file_of_others(scheduler, run, tmp_path):
    scheduler.pool()
    theirs = tmp_path / "notes.txt"
    theirs.write_text("mine, without a last line feed")
    done = run("audit", "--append", theirs)
    assert (done.exit_code, "give a file that this command has written" in done.stderr) == (2, True)
    assert theirs.read_text() == "mine, without a last line feed"


@pytest.mark.parametrize("words", [["no.sh"], ["--", "python", "no.py"]])
def test_a_script_that_is_not_here_is_remarked_on(scheduler, run, tmp_path, monkeypatch, words):
    """The node may have it; else the job would fail there, and nobody would have been told."""
    monkeypatch.chdir(tmp_path)
    scheduler.pool()
    done = run("submit", "--pool", "研究", "--dry-run", *words)
    assert (done.exit_code, done.stdout) == (0, "would start now\n")
    assert done.stderr.startswith(f"{words[-1]} is not in this folder")
    (tmp_path / words[-1]).touch()
    assert run("submit", "--pool", "研究", "--dry-run", *words).stderr == ""


def test_a_label_of_a_script_is_overridden_by_that_of_the_command_line(scheduler, run, tmp_path):
    scheduler.pool()
    script = tmp_path / "train.sh"
    script.write_text("#SM --label team=script\necho\n")
    done = run("submit", "--pool", "研究", "--id", "j", "--label", "team=line", "--", "sh", script)
    assert done.exit_code == 0, done.stderr
    assert run("jobs", "-l", "team=line", "-o", "name").stdout == "j\n"


@pytest.mark.parametrize("line", ["#SM--gpus 4", "#sm --gpus 4", "# SM --gpus 4"])
def test_options_of_a_script_that_are_nearly_marked_are_refused(scheduler, run, tmp_path, line):
    scheduler.pool()
    script = tmp_path / "train.sh"
    script.write_text(f"#!/bin/sh\n{line}\necho\n")
    done = run("submit", "--pool", "研究", "--", "sh", script, width=200)
    assert (done.exit_code, "options are written as `#SM --gpus 4`" in done.stderr) == (2, True)


def test_options_of_another_system_are_said_to_be_left_out(scheduler, run, tmp_path):
    scheduler.pool()
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\n# small models\n#SBATCH --gres=gpu:4\necho\n")
    done = run("submit", "--pool", "研究", "--", "sh", script, width=200)
    assert (done.exit_code, "has lines of #SBATCH, which are not read here" in done.stderr) == (
        0,
        True,
    )
    script.write_text("#!/bin/sh\n#SBATCH --gres=gpu:4\n#SM --cpus 1\necho\n")
    assert run("submit", "--pool", "研究", "--", "sh", script).stderr == ""


def test_a_file_gives_several_values_only_to_what_takes_them(scheduler, run, tmp_path):
    scheduler.pool()
    file = tmp_path / "job.yaml"
    file.write_text("command: echo\npool: [研究, lab]\n")
    done = run("submit", "-f", file, width=200)
    assert done.exit_code == 2
    assert "has pool: ['研究', 'lab']; it takes one value" in done.stderr
    file.write_text("command: echo\npool: [研究]\nlabel: [a=b, c=d]\n")
    assert run("submit", "-f", file).exit_code == 0
