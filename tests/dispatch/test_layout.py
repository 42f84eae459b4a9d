"""Layouts: ranks, coordinates and groups."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedulemesh.dispatch import DEFAULT_ORDER, ParallelLayout
from schedulemesh.errors import InvalidRequestError
from tests.dispatch.strategies import layouts

MEGATRON = ParallelLayout.of(tp=2, dp=2, pp=4)


def test_the_default_order_has_tp_fastest_and_pp_slowest():
    layout = ParallelLayout.of(tp=2, cp=2, dp=2, pp=2)
    assert layout.names == tuple(DEFAULT_ORDER.split("-"))
    assert layout.rank(tp=1) == 1
    assert layout.rank(cp=1) == 2
    assert layout.rank(dp=1) == 4
    assert layout.rank(pp=1) == 8
    assert layout.size == 16
    assert str(layout) == "tp=2,cp=2,dp=2,pp=2"


def test_megatrons_16_gpus_with_tp_2_and_pp_4():
    """The groups that the documentation of ``initialize_model_parallel`` lists."""
    assert MEGATRON.groups("dp") == (
        *((0, 2), (1, 3), (4, 6), (5, 7)),
        *((8, 10), (9, 11), (12, 14), (13, 15)),
    )
    assert MEGATRON.groups("tp") == tuple((rank, rank + 1) for rank in range(0, 16, 2))
    assert MEGATRON.groups("pp") == ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
    assert MEGATRON.groups("tp", "pp") == ((0, 1, 4, 5, 8, 9, 12, 13), (2, 3, 6, 7, 10, 11, 14, 15))


def test_megatrons_older_order_has_pipeline_before_data():
    """With ``tp-pp-dp`` of sizes 2, 3 and 4, as the documentation of Megatron's rank generator counts."""
    layout = ParallelLayout.of("tp-pp-dp", tp=2, pp=3, dp=4)
    assert layout.groups("pp")[:4] == ((0, 2, 4), (1, 3, 5), (6, 8, 10), (7, 9, 11))
    assert layout.groups("tp", "dp") == (
        (0, 1, 6, 7, 12, 13, 18, 19),
        (2, 3, 8, 9, 14, 15, 20, 21),
        (4, 5, 10, 11, 16, 17, 22, 23),
    )


def test_experts_share_ranks_and_stages():
    dense = ParallelLayout.of(tp=2, cp=2, dp=2, pp=2)
    experts = dense.experts(ep=4)
    assert dict(experts.axes) == {"tp": 1, "sp": 1, "cp": 1, "ep": 4, "dp": 2, "pp": 2}
    assert experts.groups("pp") == dense.groups("pp")
    assert experts.groups("ep")[0] == (0, 1, 2, 3)
    assert dict(dense.experts(ep=2, tp=2).axes)["dp"] == 2


def test_experts_that_do_not_fit_are_refused():
    with pytest.raises(InvalidRequestError, match="does not divide the 16 ranks"):
        MEGATRON.experts(ep=3)
    inside = ParallelLayout.of("tp-pp-dp-cp-ep", tp=2, pp=2, dp=2)
    with pytest.raises(InvalidRequestError, match="ends in pp"):
        inside.experts(ep=4)


@given(layouts())
def test_coordinates_and_ranks_are_inverse(layout):
    for rank in range(layout.size):
        assert layout.rank(**layout.coordinates(rank)) == rank


@given(layouts(), st.data())
def test_groups_differ_in_their_axes_only_and_divide_the_ranks(layout, data):
    axes = data.draw(st.lists(st.sampled_from(layout.names), unique=True))
    groups = layout.groups(*axes)
    assert sorted(rank for group in groups for rank in group) == list(range(layout.size))
    assert groups == tuple(sorted(tuple(sorted(group)) for group in groups))
    for group in groups:
        elsewhere = [
            {name: at for name, at in layout.coordinates(rank).items() if name not in axes}
            for rank in group
        ]
        assert all(there == elsewhere[0] for there in elsewhere)
        assert all(layout.group(rank, *axes) == group for rank in group)


@given(layouts())
def test_a_layout_survives_encoding(layout):
    assert msgspec.json.decode(msgspec.json.encode(layout), type=ParallelLayout) == layout


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: ParallelLayout.of(xp=2), "not in the order"),
        (lambda: ParallelLayout.of(tp=0), "size 0"),
        (lambda: ParallelLayout.of(tp=1.5), "whole number"),
        (lambda: ParallelLayout.of("tp-tp", tp=2), "twice"),
        (lambda: MEGATRON.coordinates(16), "allowed are 0 to 15"),
        (lambda: MEGATRON.rank(tp=2), "allowed are 0 to 1"),
        (lambda: MEGATRON.groups("xp"), "allowed are"),
        (lambda: MEGATRON.size_of("xp"), "allowed are"),
    ],
)
def test_invalid_input_is_reported(act, words):
    with pytest.raises(InvalidRequestError, match=words):
        act()


def test_one_rank_is_a_layout_too():
    assert ParallelLayout.of().size == 1
    assert str(ParallelLayout.of()) == "one rank"


def test_sequence_parallel_is_an_axis_beside_tensor_parallel():
    layout = ParallelLayout.of(tp=2, sp=2, cp=2, dp=2)
    assert layout.groups("tp")[0] == (0, 1)
    assert layout.groups("sp")[:2] == ((0, 2), (1, 3))
    assert layout.groups("cp")[0] == (0, 4)
    assert ParallelLayout.of(tp=2).size_of("sp") == 1
    experts = layout.experts(ep=4)
    assert (experts.size_of("sp"), experts.size_of("dp")) == (1, 4)
