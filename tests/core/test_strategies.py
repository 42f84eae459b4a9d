"""Scheduling strategies that a client gives: told apart, shipped, and loaded again."""

from __future__ import annotations

import pytest

from schedulemesh.core.client.strategies import chosen_strategies
from schedulemesh.core.transport.user_code import load_strategy
from schedulemesh.errors import InvalidRequestError
from schedulemesh.plugins import SchedulingStrategyPlugin


class Mine(SchedulingStrategyPlugin):
    def priority(self, task):
        return 1.0


class Hookless(SchedulingStrategyPlugin):
    pass


def test_plugins_are_distinguished_from_built_in_strategies():
    node, refs = chosen_strategies("bin_pack", [Mine(), "spread", Mine()])
    assert node == "spread"
    assert [ref.name for ref in refs] == ["Mine", "Mine#2"]
    assert chosen_strategies("best_fit", ["best_fit"]) == ("best_fit", ())
    assert chosen_strategies("best_fit", []) == ("best_fit", ())


@pytest.mark.parametrize(
    ("node", "given", "why"),
    [
        ("tetris", [], "node_strategy is 'tetris'"),
        ("spread", ["best_fit"], "give one of them"),
        ("bin_pack", ["best_fit", "spread"], "several built-in ones"),
        ("bin_pack", "spread", "must be a list"),
        ("bin_pack", [7], "not 7"),
        ("bin_pack", [Hookless()], "none of the hooks"),
        ("bin_pack", ["json:loads"], "not a subclass of"),
    ],
)
def test_what_makes_no_sense_is_refused(node, given, why):
    with pytest.raises(InvalidRequestError, match=why):
        chosen_strategies(node, given)


def test_an_instance_and_a_path_are_loaded():
    _, refs = chosen_strategies("bin_pack", [Mine(), "examples.plugin_demo:LongJobsLast"])
    mine, other = map(load_strategy, refs)
    assert mine.priority(None) == 1.0
    assert type(other).__name__ == "LongJobsLast"
