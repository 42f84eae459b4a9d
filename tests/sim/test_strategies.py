"""Own strategies decide in a simulation as they do in a scheduler."""

import pytest

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.errors import InvalidRequestError
from schedulemesh.plugins import SchedulingStrategyPlugin
from schedulemesh.sim import Job, NodeKind, Policy, compare, read_policy, simulate

NODE = [NodeKind(gpu=8)]


def job(name, submit_s=0.0, user="a", **how):
    return Job(job_id=name, submit_s=submit_s, duration_s=100.0, gpus=8, user=user, **how)


class LowFirst(SchedulingStrategyPlugin):
    """Reverses priorities."""

    def priority(self, task):
        return 10.0 - task.priority


class Spares(SchedulingStrategyPlugin):
    """Lets only the first asked candidate be evicted, whoever that is."""

    def __init__(self):
        self.asked = 0

    def preemption_policy(self, high, low):
        self.asked += 1
        return None if self.asked == 1 else False


class Fails(SchedulingStrategyPlugin):
    """Has an error in it."""

    def priority(self, task):
        raise ZeroDivisionError(task.id)


def starts(jobs, *strategies, **how):
    result = simulate(jobs, NODE, Policy(strategies=strategies, **how))
    return {run.job.job_id: run.first_start - result.begin for run in result.runs}


def test_a_strategy_changes_the_order():
    jobs = [job("runs"), job("high", 1, priority=6), job("low", 2, priority=4)]
    policy = PreemptionPolicy(same_pool_priority_threshold=50)
    assert starts(jobs, preemption=policy) == {"runs": 0, "high": 100, "low": 200}
    assert starts(jobs, LowFirst(), preemption=policy) == {"runs": 0, "high": 200, "low": 100}


def test_each_simulation_has_its_own_copy_of_an_instance():
    spares = Spares()
    jobs = [job("runs"), job("urgent", 10, priority=9)]
    assert starts(jobs, spares) == starts(jobs, spares)
    assert spares.asked == 0


def test_a_strategy_that_fails_is_skipped(caplog):
    assert starts([job("a")], Fails()) == {"a": 0}
    assert "ZeroDivisionError" in caplog.text


FILE = """
strategies: ["reversed_priorities:Reversed"]
policy:
  preemption: {same_pool_priority_threshold: 50}
"""
MODULE = """
from schedulemesh.plugins import SchedulingStrategyPlugin


class Reversed(SchedulingStrategyPlugin):
    def priority(self, task):
        return 10.0 - task.priority
"""


def test_a_policy_file_names_strategies_of_a_module_beside_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "reversed_priorities.py").write_text(MODULE)
    (tmp_path / "own.yaml").write_text(FILE)
    policy = read_policy(tmp_path / "own.yaml")
    assert policy.strategies == ("reversed_priorities:Reversed",)
    jobs = [job("runs"), job("high", 1, priority=6), job("low", 2, priority=4)]
    plain = Policy(preemption=policy.preemption)
    found = compare(jobs, NODE, [plain, policy], processes=2)
    assert [one.reports[0][""].queue_s.max for one in found] == [198, 199]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("[no.such.module:Own]", "cannot be loaded"),
        ("[42]", "a strategy is an import path"),
        ("[nobody]", "there is no strategy 'nobody'"),
        ("word", "strategies"),
    ],
)
def test_what_is_no_strategy_is_refused(tmp_path, given, error):
    (tmp_path / "own.yaml").write_text(f"strategies: {given}\n")
    with pytest.raises(InvalidRequestError, match=error):
        read_policy(tmp_path / "own.yaml")


def test_an_unknown_strategy_for_nodes_is_refused():
    with pytest.raises(InvalidRequestError, match="node_strategy is 'foo'; allowed are bin_pack"):
        simulate([], [NodeKind(gpu=8)], node_strategy="foo")
