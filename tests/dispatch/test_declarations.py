"""Declarations of methods: what they accept, what classes inherit, and which arguments each rank gets."""

import pytest

from schedulemesh.dispatch import Dispatch, ParallelLayout, dispatch
from schedulemesh.dispatch.declarations import (
    MethodDeclaration,
    by_rank,
    collected_ranks,
    declarations,
)
from schedulemesh.errors import InvalidRequestError

PAIRS = ParallelLayout.of(tp=2, dp=2)


class Base:
    @dispatch(Dispatch.DP_COMPUTE_PROTO)
    def generate(self, batch):
        return batch

    @dispatch("DP_COMPUTE_METRIC", reduce={"loss": "mean"})
    def update(self, batch):
        return batch

    def plain(self):
        return None


class Derived(Base):
    def generate(self, batch):
        return batch

    @dispatch(Dispatch.RANK_ZERO)
    def plain(self):
        return None


def test_classes_have_their_declarations_and_those_of_their_bases():
    assert declarations(Base) == {
        "generate": MethodDeclaration(mode=Dispatch.DP_COMPUTE_PROTO),
        "update": MethodDeclaration(mode=Dispatch.DP_COMPUTE_METRIC, reduce={"loss": "mean"}),
    }
    found = declarations(Derived)
    assert found["generate"].mode is Dispatch.DP_COMPUTE_PROTO
    assert found["plain"] == MethodDeclaration(mode=Dispatch.RANK_ZERO, reduce="rank_zero")


def test_metrics_are_by_rank_unless_the_declaration_reduces_them():
    @dispatch(Dispatch.DP_COMPUTE_METRIC)
    def losses(self):
        return self

    assert declarations(type("C", (), {"losses": losses}))["losses"].reduce == "per_rank"


@pytest.mark.parametrize(
    ("mode", "options", "said"),
    [
        ("DP_COMPUTE_PROTOS", {}, "did you mean 'DP_COMPUTE_PROTO'"),
        (None, {}, "allowed are ONE_TO_ALL"),
        ("ONE_TO_ALL", {"strategy": "every_rank"}, "ONE_TO_ALL, which splits no rows; allowed"),
        ("RANK_ZERO", {"reduce": "mean"}, "leave reduce out"),
        ("DP_COMPUTE_METRIC", {"reduce": {"loss": "average"}}, "allowed are mean"),
    ],
)
def test_what_does_not_fit_the_mode_is_refused(mode, options, said):
    with pytest.raises(InvalidRequestError, match=said):
        dispatch(mode, **options)


def test_each_mode_gives_the_ranks_their_arguments():
    given = {0: ["a", "b"], "at": (1, 2)}
    assert by_rank(MethodDeclaration(mode=Dispatch.ONE_TO_ALL), PAIRS, given) == [given] * 4
    assert by_rank(MethodDeclaration(mode=Dispatch.RANK_ZERO), PAIRS, given) == [given]
    dp = MethodDeclaration(mode=Dispatch.DP_COMPUTE)
    assert by_rank(dp, PAIRS, given) == [{0: "a", "at": 1}] * 2 + [{0: "b", "at": 2}] * 2
    assert collected_ranks(dp, PAIRS) == (0, 2)
    every = MethodDeclaration(mode=Dispatch.ALL_TO_ALL)
    assert by_rank(every, PAIRS, {0: [3, 4, 5, 6]}) == [{0: n} for n in (3, 4, 5, 6)]


@pytest.mark.parametrize(
    ("mode", "value", "said"),
    [
        (Dispatch.ALL_TO_ALL, [1, 2], "'x' has 2 elements; .* one element for each rank, here 4"),
        (Dispatch.ALL_TO_ALL, "abcd", "has a str; .* Declare ONE_TO_ALL for the same value"),
        (Dispatch.DP_COMPUTE, [1, 2, 3, 4], "for each coordinate on dp, here 2"),
    ],
)
def test_arguments_that_contradict_the_mode_are_refused(mode, value, said):
    with pytest.raises(InvalidRequestError, match=said):
        by_rank(MethodDeclaration(mode=mode), PAIRS, {"x": value})


def test_a_layout_without_dp_has_no_data_parallel_elements():
    with pytest.raises(InvalidRequestError, match="axis 'dp' is not in the layout"):
        by_rank(
            MethodDeclaration(mode=Dispatch.DP_COMPUTE), ParallelLayout.of("a", a=2), {0: [1, 2]}
        )
