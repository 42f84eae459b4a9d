"""Layouts from what workers report, and refusals that say which worker reported what."""

import pytest

from schedulemesh.dispatch import ParallelLayout
from schedulemesh.dispatch.meshes import check_reports, reported_layout
from schedulemesh.errors import InvalidRequestError

LAYOUTS = [
    ParallelLayout.of(dp=4),
    ParallelLayout.of(tp=2, dp=3),
    ParallelLayout.of(tp=2, cp=2, dp=2, pp=2),
    ParallelLayout.of("pp-dp-tp", tp=2, dp=2, pp=3),
    ParallelLayout.of("rows-columns", rows=3, columns=2),
    ParallelLayout.of(),
]


def reports(layout):
    return [
        {axis: (at, layout.size_of(axis)) for axis, at in layout.coordinates(rank).items()}
        for rank in range(layout.size)
    ]


def names(layout):
    return [f"agent-{rank}" for rank in range(layout.size)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_reports_make_the_layout_that_they_come_from(layout):
    found = reported_layout(reports(layout), names(layout), "g")
    assert [axis for axis in found.axes if axis[1] > 1] == [
        axis for axis in layout.axes if axis[1] > 1
    ]
    check_reports(layout, reports(layout), names(layout), "g")


def test_coordinates_may_be_integers_of_numpy():
    numpy = pytest.importorskip("numpy")
    given = [{"dp": (numpy.int64(at), numpy.int64(2))} for at in range(2)]
    assert reported_layout(given, "ab", "g") == ParallelLayout.of(dp=2)


def test_the_default_axes_that_are_not_reported_have_size_1():
    assert reported_layout([{"dp": (0, 2)}, {"dp": (1, 2)}], "ab", "g") == ParallelLayout.of(dp=2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([{"dp": (0, 2)}, {"dp": (1, 3)}], "agent a dp=2, agent b dp=3; allowed is one mesh"),
        ([{"dp": (0, 2)}, {"tp": (1, 2)}], "agent a dp=2, agent b tp=2"),
        ([{"dp": (0, 4)}, {"dp": (1, 4)}], "a mesh of 4 ranks, dp=4; the group has 2 workers"),
        ([{"dp": (1, 2)}, {"dp": (1, 2)}], "agents a and b both report dp=1"),
        ([{"dp": (1, 2)}, {"dp": (0, 2)}], r"rank 0 \(agent a\) reports dp=1/2; .* in the order"),
        ([{"dp": (2, 2)}, {"dp": (0, 2)}], r"agent a reports \{'dp': \(2, 2\)\}"),
        ([{"dp": 0}, {"dp": 1}], "allowed is a dict of axes"),
        ([None, {"dp": (1, 2)}], "agent a reports None"),
        ([{}, {}], "agent a reports"),
    ],
)
def test_what_does_not_make_a_mesh_is_refused_with_who_reported_it(given, said):
    with pytest.raises(InvalidRequestError, match=said):
        reported_layout(given, "ab", "g")


def test_a_given_layout_must_be_the_reported_one():
    given = ParallelLayout.of(dp=4)
    actual = reports(ParallelLayout.of(tp=2, dp=2))
    with pytest.raises(InvalidRequestError, match=r"agent-0\) reports dp=0/2,tp=0/2; .* dp=0/4"):
        check_reports(given, actual, names(given), "g")
