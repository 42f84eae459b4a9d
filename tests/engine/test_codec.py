"""Facts as JSON and back."""

from __future__ import annotations

import json

import msgspec
import pytest

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.engine.codec import decode_facts, encode_facts, joined, storable
from schedulemesh.engine.messages import facts as f
from schedulemesh.engine.messages import queue_facts as q
from schedulemesh.engine.messages.fact import Fact
from schedulemesh.engine.messages.facts import AnyFact
from schedulemesh.errors import NotStorableError
from tests.engine.builders import Mesh, amount, node, on, pool


def test_a_fact_is_an_object_with_its_tag():
    written = encode_facts([f.PoolEnsured(spec=pool("p", cpu=1.5), at=0.0)])
    (read,) = json.loads(written)
    assert (read["type"], read["spec"]["name"]) == ("pool_ensured", "p")
    assert read["spec"]["resources"] == {"cpu": 15000}


def test_every_kind_of_fact_comes_back_as_it_was():
    mesh = Mesh(
        pool("p", cpu=4, gpu=2, custom={"x": 1}), pool("q", cpu=2), nodes=[node("a", cpu=8, gpu=2)]
    )
    mesh.policy(protected_pools=("q",), label_preemption_rules={"t": {"a": ["b"]}})
    mesh.run("x", priority=0.0, cpu=2, gpu=0.5, devices=on((1, 0.5)), labels={"k": "v"})
    mesh.submit("y", priority=9.0, cpu=3, gpu=1, duration=3.5, more={"request_id": "r"})
    mesh.leave("x", saved=True)
    mesh.report("y")

    assert decode_facts(encode_facts(mesh.facts)) == mesh.facts


@pytest.mark.parametrize(
    "fact",
    [
        f.NodeLost(node_id="a", at=0.0),
        f.HoldShrank(hold_id="h", at=1.0),
        f.AnswersForgotten(before=1.5),
        f.EpochBegun(epoch=3, at=2.0),
        f.PolicyChanged(
            policy=PreemptionPolicy(), at=1.0, client="me", changes=("κ",), level="low"
        ),
        f.QuotaHeld(
            at=1.0,
            hold_id="h",
            for_pool="p",
            shares=(f.Share(pool_name="q", amount=amount(cpu=1)),),
            until=9.0,
        ),
    ],
    ids=lambda fact: type(fact).__name__,
)
def test_rare_facts_come_back_too(fact):
    assert decode_facts(encode_facts([fact])) == [fact]


def test_no_two_facts_share_a_name_and_all_are_in_the_union():
    union = set(AnyFact.__args__)
    assert union == set(Fact.__subclasses__())


@pytest.mark.parametrize("stored", [b"{}", b"[{}]", b'[{"type": "Unheard"}]', b"[", b'["x"]'])
def test_what_is_no_list_of_known_facts_is_refused(stored):
    with pytest.raises(msgspec.DecodeError):
        decode_facts(stored)


def test_a_stored_policy_that_is_wrong_is_refused():
    good = encode_facts([f.PolicyChanged(policy=PreemptionPolicy(), at=1.0, client="me")])
    bad = json.loads(good)
    bad[0]["policy"]["same_pool_priority_threshold"] = -1
    with pytest.raises(msgspec.ValidationError, match="above 0"):
        decode_facts(json.dumps(bad).encode())


@pytest.mark.parametrize(
    ("fact", "said"),
    [
        (f.NodeCordoned(node_id="n", cordoned=1, at=0.0), "cordoned of NodeCordoned, 1,"),
        (f.EpochBegun(epoch=1, at=float("nan")), "at of EpochBegun, nan,"),
        (f.EpochBegun(epoch=1, at=float("inf")), "at of EpochBegun, inf,"),
        (f.AgentEnded(agent_name=7, incarnation=1, at=0.0, reason=""), "agent_name of AgentEnded"),
        (q.ClassLoaded(class_key="\udcff", at=0.0), "class_key of ClassLoaded"),
        (q.ClassLoaded(class_key=object(), at=0.0), "class_key of ClassLoaded"),
        (f.StatesForgotten(state_keys=("a", None)), "state_keys of StatesForgotten"),
        (f.HoldShrank(hold_id="h", at=1.0, shares=[]), "shares of HoldShrank"),
    ],
)
def test_what_would_not_be_read_back_the_same_is_refused(fact, said):
    good = f.EpochBegun(epoch=1, at=0.0)
    with pytest.raises(NotStorableError, match="cannot be stored") as raised:
        storable([good, fact, good])
    assert said in str(raised.value)


def test_records_are_joined_in_order():
    facts = [f.EpochBegun(epoch=n, at=0.0) for n in range(5)]
    records = [storable(facts[:2]), storable([]), storable(facts[2:])]
    assert joined(records) == storable(facts)
    assert decode_facts(joined([])) == []
