from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulemesh.config import label_rules
from schedulemesh.config import policy as policy_module
from schedulemesh.config.label_rules import MAX_RULES, CycleError, parse_label_rules, ranks_of
from schedulemesh.config.policy import PreemptionPolicy, changed_policy
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.errors import InvalidRequestError
from tests.engine.builders import Mesh
from tests.engine.walk import longest_chain

VALUES = "abcdefgh"


def rules_of(pairs):
    rules = {}
    for high, low in pairs:
        rules[high] = (*rules.get(high, ()), low)
    return rules


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(VALUES), st.sampled_from(VALUES)), max_size=24))
def test_each_pair_has_the_length_of_its_longest_chain(pairs):
    """Pairs from lower to higher letters have no cycle; repeated ones change nothing."""
    rules = rules_of(tuple(sorted(pair)) for pair in pairs if pair[0] != pair[1])
    expected = {
        (high, low): longest_chain(rules, high, low) for high in rules for low in rules[high]
    }
    assert dict(ranks_of(rules)) == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(VALUES), st.sampled_from(VALUES)), max_size=12))
def test_a_cycle_is_found_wherever_there_is_one(pairs):
    rules = rules_of(pairs)
    try:
        ranks_of(rules)
    except CycleError as error:
        chain = str(error).removeprefix("cycle: ").split(" > ")
        assert chain[0] == chain[-1]
        assert all(low in rules[high] for high, low in pairwise(chain))
    else:
        assert not any(leads_back(rules, value) for value in rules)


def leads_back(rules, value):
    seen, ahead = set(), list(rules[value])
    while ahead:
        low = ahead.pop()
        if low not in seen:
            seen.add(low)
            ahead += rules.get(low, ())
    return value in seen


def test_a_policy_in_a_journal_may_have_more_pairs_than_one_is_given():
    many = {"tier": {f"v{number}": ["low"] for number in range(MAX_RULES + 1)}}
    stored = msgspec.msgpack.encode({"label_preemption_rules": many})
    policy = msgspec.msgpack.decode(stored, type=PreemptionPolicy)
    assert len(policy.label_preemption_rules["tier"]) == MAX_RULES + 1
    assert changed_policy(policy, {"min_runtime": 5.0}).min_runtime == 5.0
    with pytest.raises(InvalidRequestError, match="more than 2,000 pairs"):
        changed_policy(policy, {"label_preemption_rules": many})


@pytest.mark.parametrize("length", [400, 5_000])
def test_a_long_chain_beside_a_direct_rule_is_used_as_it_is_validated(length):
    rules = {f"v{i}": [f"v{i + 1}"] for i in range(length)}
    rules["v0"].append(f"v{length}")
    mesh = Mesh()
    mesh.policy(label_preemption_rules={"tier": rules})
    ranks = mesh.state.preemption.ranks
    assert ranks.rank({"tier": "v0"}, {"tier": f"v{length}"}) == length
    assert ranks.rank({"tier": "v1"}, {"tier": f"v{length}"}) == 0


def test_an_invalid_policy_changes_nothing():
    """Such a policy cannot be built; should one ever come from elsewhere, the former stays whole."""
    mesh = Mesh(label_preemption_rules={"tier": {"gold": ["iron"]}})
    policy, preemption = mesh.state.policy, mesh.state.preemption
    broken = PreemptionPolicy()
    broken.label_preemption_rules["tier"] = {"a": ("b",), "b": ("a",)}
    with pytest.raises(CycleError, match="a > b > a"):
        mesh.handle(s.PolicyChangeRequested(policy=broken, client="me", changes=()))
    assert mesh.state.policy is policy
    assert mesh.state.preemption is preemption


def test_every_key_has_ranks_of_its_own():
    rules = parse_label_rules({"tier": {"a": ["b"], "b": {"c"}}, "team": {"c": ("a",)}})
    assert rules == {"tier": {"a": ("b",), "b": ("c",)}, "team": {"c": ("a",)}}
    assert dict(ranks_of(rules["tier"])) == {("a", "b"): 1, ("b", "c"): 1}
    assert dict(ranks_of(rules["team"])) == {("c", "a"): 1}


def test_pairs_of_all_keys_count_together():
    many = {f"k{number}": {"high": ["low"]} for number in range(MAX_RULES)}
    assert len(parse_label_rules(many)) == MAX_RULES
    with pytest.raises(InvalidRequestError, match="more than 2,000 pairs"):
        parse_label_rules({**many, "one more": {"high": []}})


def test_rules_without_chains_need_no_graph(monkeypatch):
    monkeypatch.setattr(label_rules, "_Graph", None)
    many = {f"k{number}": {f"high{number}": ["low", "lower"]} for number in range(MAX_RULES // 2)}
    rules = parse_label_rules(many)
    assert dict(ranks_of(rules["k7"])) == {("high7", "low"): 1, ("high7", "lower"): 1}


def test_a_change_of_a_policy_reads_its_rules_once(monkeypatch):
    reads, parse_once = [], label_rules.parse_label_rules
    monkeypatch.setattr(
        policy_module, "parse_label_rules", lambda *a: reads.append(a) or parse_once(*a)
    )
    rules = {"tier": {"a": ["b"]}}
    policy = changed_policy(PreemptionPolicy(), {"label_preemption_rules": rules})
    assert policy.label_preemption_rules == {"tier": {"a": ("b",)}}
    assert len(reads) == 2  # that of the policy before it, and its own
