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
    ],
    "Understand": [
        ("explain", 2, "Missing argument"),
        ("explain nope", 3, "`schedulemesh tasks` lists the tasks"),
        ("explain 甲 乙", 2, "unexpected extra argument"),
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
    ],
    "Run": [
        ("submit --pool 研究 --gpu 1 -- true", 2, "--gpus"),
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
        ("drain --deadline 5", 2, "Missing argument"),
        ("drain n --deadline soon", 2, "90s, 30m"),
        ("undrain", 2, "Missing argument"),
        ("health --watch=yes", 2, "--watch"),
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
        ("policy set min_runtime=10minutes", 2, "'90s', '30m'"),
        ("policy set victim_order=scores", 2, "score, priority_first"),
        ("policy set allow_exec=maybe", 2, "True or False"),
        ("policy set 'links={a: b}'", 2, "begins with http:// or https://"),
        ("pools set 研究 resources.gpu=", 2, "give 0 for no amount"),
        ("pools set 研究 gpu=4", 2, "did you mean 'resources.gpu'"),
        ("pools set 研究 resources.gpus=4", 2, "did you mean 'gpu'"),
        ("pools create x resources.gpu", 2, "a change is FIELD=VALUE"),
        ("pools create 研究", 6, "`schedulemesh pools set POOL`"),
        ("tokens create x --role submiter", 2, "allowed are viewer, submitter"),
        ("tokens create x --role submitter", 2, "needs the owner"),
        ("audit --call nope", 2, "there are"),
        ("apply", 2, "--file"),
    ],
    "Set up and try": [
        ("start --htpp", 2, "--http"),
        ("help sumbit", 2, "submit"),
        ("simulate", 2, "Missing argument"),
        ("simulate nope.csv", 2, "Missing option '--cluster'"),
        ("rehearse", 2, "Missing argument 'state'"),
        ("doctor --nmae x", 2, "--name"),
        ("demo --minuts 3", 2, "No such option: --minuts"),
        ("stop --forse", 2, "No such option: --forse"),
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
    wrong = []
    for line, code, words in MISTAKES[group]:
        done = run(*shlex.split(line), width=400)
        if done.exit_code != code or words not in done.stderr:
            wrong.append((line, done.exit_code, done.stdout[-200:], done.stderr[-300:]))
    assert wrong == []
