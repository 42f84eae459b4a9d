"""The rules: in the scheduler and in Prometheus the same alerts fire on the same samples."""

from __future__ import annotations

import re

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from schedulemesh.config.alerts import AlertSettings
from schedulemesh.errors import InvalidRequestError
from schedulemesh.metrics.alert_evaluation import AlertBoard
from schedulemesh.metrics.alert_files import rules_file
from schedulemesh.metrics.alert_rules import RULES, effective_rules, filled_in
from schedulemesh.metrics.alert_texts import CHINESE, sentences_of
from schedulemesh.metrics.catalogue import CATALOGUE
from tests.metrics.promtool import checked, expected, needs_promtool, run_tests, series

INTERVAL_S = 60
POOLS = ("研究", 'a "b"')
#: A label in a sentence.
PLACE = re.compile(r"{\w+}")


def test_every_metric_of_a_rule_is_in_the_catalogue():
    used = {name for rule in RULES.values() for name in rule.condition.expression.metrics}
    assert used <= set(CATALOGUE)


def test_the_default_rules():
    assert set(RULES) == {
        "supervisor_restarted",
        "quota_nearly_full",
        "quota_exceeded",
        "starvation",
        "stuck_admission",
        "preemption_storm",
        "slow_preemption",
        "lost_state",
        "stale_heartbeat",
        "group_leak",
        "journal_errors",
        "idle_gpus",
        "job_over_claim",
        "loop_overdue",
        "pool_budget_nearly_spent",
        "pool_budget_spent",
        "owner_budget_nearly_spent",
        "owner_budget_spent",
    }


def test_texts_name_only_labels_of_the_metrics():
    for rule in RULES.values():
        known = CATALOGUE.get(rule.condition.expression.metrics[0])
        labels = ("pool",) if known is None else known.labels
        text = filled_in(rule.summary + rule.action, tuple((label, "") for label in labels))
        assert "{" not in text, rule.id


def test_the_value_of_a_label_is_not_filled_in_itself():
    rule = RULES["stale_heartbeat"]
    found = filled_in(rule.summary, (("agent", "{pool}"), ("pool", "p{agent}")))
    assert found == "Agent {pool} of pool p{agent} has not contacted the supervisor."


def test_settings_change_rules():
    changed = AlertSettings(
        rules={
            "starvation": {"threshold": 5, "for_s": 10, "severity": "critical"},
            "idle_gpus": False,
        }
    )
    found = {rule.id: rule for rule in effective_rules(changed)}
    assert set(RULES) - set(found) == {"idle_gpus"}
    starvation = found["starvation"]
    assert (starvation.condition.threshold, starvation.for_s) == (5.0, 10.0)
    assert starvation.severity.value == "critical"
    assert effective_rules(AlertSettings()) == tuple(RULES.values())


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"starvatoin": {}}, "did you mean 'starvation'"),
        ({"starvation": {"treshold": 1}}, "did you mean 'threshold'"),
        ({"starvation": {"threshold": "high"}}, "threshold must be a finite number"),
        ({"starvation": {"for_s": -1}}, "for_s is -1; it must be at least 0"),
        ({"starvation": {"severity": "page"}}, "allowed are info, warning, critical"),
        ({"starvation": 5}, "must have fields"),
        ([], "rules must map ids to settings"),
    ],
)
def test_settings_that_are_not_valid_are_refused(rules, message):
    with pytest.raises(InvalidRequestError, match=message):
        effective_rules(AlertSettings(rules=rules))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"interval_s": 1e-9}, "at least 0.01"),
        ({"interval_s": 1e10}, "at most 1e9"),
        ({"rules": {"starvation": {"for_s": 1e10}}}, "at most 1e9"),
    ],
)
def test_times_that_prometheus_does_not_take_are_refused(given, message):
    with pytest.raises(InvalidRequestError, match=message):
        AlertSettings(**given)


@needs_promtool
def test_promtool_accepts_the_rules(tmp_path):
    code, said = checked(tmp_path, rules_file(RULES.values(), 15.0))
    assert (code, f"SUCCESS: {len(RULES)} rules found" in said) == (0, True), said


@needs_promtool
@pytest.mark.parametrize(
    ("rule", "inputs", "fires_from", "resolved_at"),
    [
        (
            "preemption_storm",
            [("schedulemesh_recent_preemptions", (("pool", "p"),), [0, 20, 21, 25, 3, 0])],
            2,
            4,
        ),
        (
            "quota_nearly_full",
            [
                ("schedulemesh_pool_quota", (("pool", "p"), ("resource", "gpu")), [10] * 20),
                (
                    "schedulemesh_pool_quota_used",
                    (("pool", "p"), ("resource", "gpu")),
                    [5] + [8] * 17 + [2, 2],
                ),
                (
                    "schedulemesh_pool_quota_reserved",
                    (("pool", "p"), ("resource", "gpu")),
                    [0] + [1] * 19,
                ),
            ],
            16,  # the condition holds from 1 on, for 15 minutes
            18,
        ),
        (
            "starvation",
            [
                (
                    "schedulemesh_queue_oldest_wait_seconds",
                    (("pool", "p"),),
                    [3540, 3600, 3660, 3720, 10],
                )
            ],
            2,
            4,
        ),
    ],
)
def test_when_a_rule_fires_in_prometheus(tmp_path, rule, inputs, fires_from, resolved_at):
    count = len(inputs[0][2])
    fired = [at for at in range(count) if fires_from <= at < resolved_at]
    text = run_tests(
        tmp_path,
        [RULES[rule]],
        [
            {
                "input_series": [series(*one) for one in inputs],
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{rule}",alertstate="firing"}})',
                        "eval_time": f"{at * INTERVAL_S}s",
                        "exp_samples": [{"labels": "{}", "value": 1}] if at in fired else [],
                    }
                    for at in range(count)
                ],
            }
        ],
        INTERVAL_S,
    )
    assert text == ""


def label_sets(metric):
    """Two sets of labels of a metric, with what a rule selects among them."""
    names = ("pool",) if metric not in CATALOGUE else CATALOGUE[metric].labels
    choices = {"resource": ("cpu", "gpu"), "kind": ("placement_group", "actor")}
    return [
        tuple(sorted((name, choices.get(name, POOLS)[number]) for name in names))
        for number in (0, 1)
    ]


@st.composite
def histories(draw, rule):
    """Values of every metric of a rule around its threshold, with gaps, for each set of labels."""
    condition, count = rule.condition, 25
    threshold = condition.threshold
    around = [threshold, threshold * 1.01 + 1.0, threshold * 0.5 - 1.0]
    if len(condition.expression.metrics) > 1:
        around = [0.0, 1.0, 9.0, 10.0, 11.0]
    value = st.sampled_from([*around, None])
    # Long runs of one value, so that durations pass.
    runs = st.lists(st.tuples(value, st.integers(1, 18)), min_size=3, max_size=8)
    found = {}
    for metric in condition.expression.metrics:
        for labels in label_sets(metric):
            values = [v for v, times in draw(runs) for _ in range(times)]
            found[metric, labels] = (values * count)[:count]
    return found


def in_process(rule, history):
    """The alerts that fire at each time."""
    board, found = AlertBoard("test"), []
    count = len(next(iter(history.values())))
    for at in range(count):
        samples: dict = {}
        for (metric, labels), values in history.items():
            if values[at] is not None:
                samples.setdefault(metric, {})[labels] = values[at]
        board.evaluate([rule], samples, float(at * INTERVAL_S))
        found.append(board.firing())
    return found


@needs_promtool
# Each example runs promtool, so a failing one is not made smaller.
@settings(max_examples=15, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.data())
def test_the_scheduler_and_prometheus_agree(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("promtool")
    tests = []
    for rule in RULES.values():
        history = data.draw(histories(rule), label=rule.id)
        fired = in_process(rule, history)
        tests.append(
            {
                "name": rule.id,
                "input_series": [
                    series(metric, labels, values) for (metric, labels), values in history.items()
                ],
                "alert_rule_test": [
                    {
                        "alertname": rule.id,
                        "eval_time": f"{at * INTERVAL_S}s",
                        "exp_alerts": [expected(alert) for alert in alerts],
                    }
                    for at, alerts in enumerate(fired)
                ],
            }
        )
    said = run_tests(folder, RULES.values(), tests, INTERVAL_S)
    assert not said, said


def test_every_rule_has_chinese_sentences_with_its_labels_alone():
    assert set(CHINESE) == set(RULES)
    for rule_id, rule in RULES.items():
        english = set(PLACE.findall(rule.summary + rule.action))
        assert set(PLACE.findall("".join(CHINESE[rule_id]))) <= english


def test_an_alert_of_a_rule_of_the_operator_stays_as_it_is():
    english = ("It is hot.", "Open a window.")
    assert sentences_of("own", {"pool": "p"}, english, "zh") == english
    summary, _ = sentences_of("starvation", {"pool": "p"}, english, "zh")
    assert summary == "资源池 p 中有任务排队时间过长。"
    assert sentences_of("starvation", {"pool": "p"}, english, "en") == english
