"""The claim of a job follows its work: what moves, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedulemesh.domain.resources import NOTHING, UNIT, Resources, sum_of
from schedulemesh.runtime.jobs.claim_following import RESTS_S, SETTLES_S, ClaimFollower, following
from schedulemesh.runtime.jobs.claims import ClaimOfJob


def gpus(amount):
    return Resources(gpu=round(amount * UNIT))


def claim(claimed, used):
    """A claim in GPUs by node."""
    return ClaimOfJob(
        agent_name="j",
        incarnation=1,
        claimed={node_id: gpus(amount) for node_id, amount in claimed.items()},
        used={node_id: gpus(amount) for node_id, amount in used.items()},
    )


@pytest.mark.parametrize(
    ("claimed", "used", "after"),
    [
        ({"a": 4}, {"b": 4}, {"b": 4}),
        ({"a": 4}, {"a": 1, "b": 2}, {"a": 2, "b": 2}),
        ({"a": 2, "b": 2}, {"c": 3}, {"b": 1, "c": 3}),
        # More is used than was claimed.
        ({"a": 2}, {"b": 4}, {"b": 2}),
        # Half a device cannot be taken from a claim of whole ones.
        ({"a": 2}, {"b": 1.5}, {"a": 1, "b": 1}),
        ({"a": 0.5}, {"b": 0.5}, {"b": 0.5}),
        ({"a": 0.5}, {"b": 0.25}, None),
        ({"a": 4}, {"a": 4, "b": 2}, None),
        ({"a": 4}, {}, None),
    ],
)
def test_what_is_not_used_moves_to_where_more_is_used_than_claimed(claimed, used, after):
    expected = None if after is None else {n: gpus(amount) for n, amount in after.items()}
    assert following(claim(claimed, used)) == expected


amounts = st.builds(
    Resources,
    cpu=st.integers(0, 4).map(UNIT.__mul__),
    memory=st.integers(0, 4),
    gpu=st.sampled_from([0, UNIT // 2, UNIT, 2 * UNIT]),
    custom=st.sampled_from([(), (("x", 1),), (("x", 3),)]),
)
by_node = st.dictionaries(st.sampled_from("abc"), amounts, max_size=3)


@given(claimed=by_node, used=by_node)
def test_a_claim_stays_as_large_as_it_is_and_covers_no_less(claimed, used):
    before = ClaimOfJob(agent_name="j", incarnation=1, claimed=claimed, used=used)
    target = following(before)
    if target is None:
        return
    after = ClaimOfJob(agent_name="j", incarnation=1, claimed=target, used=used)
    assert sum_of(target.values()) == sum_of(claimed.values())
    for node_id in "abc":
        was, now = claimed.get(node_id, NOTHING), target.get(node_id, NOTHING)
        covered = was.within(used.get(node_id, NOTHING))
        assert covered.fits(now.within(used.get(node_id, NOTHING)))
        assert not now.negative()
    assert following(after) is None


def test_a_claim_moves_once_the_work_has_been_elsewhere_for_some_time():
    follower, elsewhere, there = (
        ClaimFollower(),
        claim({"a": 4}, {"b": 4}),
        claim({"b": 4}, {"b": 4}),
    )
    assert follower.due([elsewhere], 0.0) == []
    assert follower.due([there], 1.0) == []
    assert follower.due([elsewhere], 2.0) == []
    assert follower.due([elsewhere], 2.0 + SETTLES_S - 0.1) == []
    (move,) = follower.due([elsewhere], 2.0 + SETTLES_S)
    assert (move.agent_name, move.incarnation, move.claims) == ("j", 1, (("b", gpus(4)),))


def test_a_claim_rests_after_it_was_moved():
    follower, elsewhere = ClaimFollower(), claim({"a": 4}, {"b": 4})
    follower.due([elsewhere], 0.0)
    moved = SETTLES_S
    assert follower.due([elsewhere], moved)
    for later in (1.0, SETTLES_S, RESTS_S - 0.1):
        assert follower.due([elsewhere], moved + later) == []
    assert follower.due([elsewhere], moved + RESTS_S)


def test_the_claim_of_an_adopted_job_is_where_its_work_is_as_soon_as_that_is_found():
    found = ClaimOfJob(
        agent_name="j",
        incarnation=1,
        claimed={},
        used={"b": gpus(2), "a": gpus(1)},
        adopted=gpus(4),
    )
    assert found.beyond == NOTHING
    (move,) = ClaimFollower().due([found], 0.0)
    # What it does not use is on the first node.
    assert move.claims == (("a", gpus(2)), ("b", gpus(2)))


def test_the_claim_of_an_adopted_job_without_work_is_nowhere():
    found = ClaimOfJob(agent_name="j", incarnation=1, claimed={}, used={}, adopted=gpus(4))
    assert following(found) is None


def test_jobs_that_have_ended_are_forgotten():
    follower, elsewhere = ClaimFollower(), claim({"a": 4}, {"b": 4})
    follower.due([elsewhere], 0.0)
    assert follower.due([elsewhere], SETTLES_S)
    follower.due([], SETTLES_S + 1.0)
    follower.due([elsewhere], SETTLES_S + 2.0)
    assert follower.due([elsewhere], 2 * SETTLES_S + 2.0)
