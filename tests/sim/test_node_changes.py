"""Nodes that die, join and are drained."""

import pytest

from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim import (
    Job,
    NodeChange,
    NodeKind,
    Timing,
    read_node_changes,
    reported,
    simulate,
    timeline,
)
from schedulemesh.sim.world import SimulationError

TWO = [NodeKind(count=2, gpu=8)]
TIMING = Timing(save_s=60, restore_s=120)


def job(name, submit_s, duration_s, gpus, **more):
    return Job(job_id=name, submit_s=submit_s, duration_s=duration_s, gpus=gpus, **more)


def change(at_s, node, event):
    return NodeChange(at_s=at_s, node=node, event=event)


def run(jobs, *changes):
    result = simulate(jobs, TWO, timing=TIMING, node_changes=changes)
    begin = result.begin
    return {
        r.job.job_id: (round(r.first_start - begin), round(r.ended_at - begin), r)
        for r in result.runs
    }


def test_what_runs_on_a_node_that_dies_begins_again_elsewhere():
    found = run([job("a", 0, 1000, 8)], change(300, "0-node", "lost"))
    start, end, it = found["a"]
    # A lost task does not wait before it starts again.
    assert (start, it.lost_s) == (0, 300)
    assert end == 1300


def test_what_was_saved_is_kept_where_the_node_dies_before_the_process_has_ended():
    changes = [change(100, "0-node", "drain"), change(200, "0-node", "lost")]
    timing = Timing(save_s=60, restore_s=120, end_s=100)
    result = simulate([job("a", 0, 1000, 8)], TWO, timing=timing, node_changes=changes)
    (it,) = result.runs
    assert (it.preemptions, it.lost_s) == (1, 0)


def test_a_gang_that_loses_a_node_waits_until_there_are_enough_again():
    changes = [change(100, "1-node", "lost"), change(500, "1-node", "joined")]
    _, end, gang = run([job("gang", 0, 1000, 16)], *changes)["gang"]
    assert gang.lost_s == 100
    assert end == 1500


def test_a_node_that_joins_later_is_not_there_before():
    jobs = [job("a", 0, 1000, 8), job("b", 0, 1000, 8)]
    found = run(jobs, change(400, "1-node", "joined"))
    assert sorted(start for start, *_ in found.values()) == [0, 400]


def test_what_runs_on_a_drained_node_is_saved_and_moves():
    found = run([job("a", 0, 1000, 8)], change(300, "0-node", "drain"))
    _, end, it = found["a"]
    assert (it.preemptions, it.lost_s, it.overhead_s) == (1, 0, 180)
    assert end in (1180, 1181)


def test_a_job_dies_while_it_is_saved():
    changes = [change(300, "0-node", "drain"), change(330, "0-node", "lost")]
    _, end, it = run([job("a", 0, 1000, 8)], *changes)["a"]
    assert it.lost_s == pytest.approx(300, abs=1)
    assert end == pytest.approx(330 + 1000, abs=3)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ([change(0, "9-node", "lost")], "there is no node '9-node'; nodes are 0-node, 1-node"),
        (
            [change(0, "0-node", "lost"), change(5, "0-node", "drain")],
            "is not there at 5 s: 'drain' cannot happen",
        ),
        (
            [change(0, "0-node", "undrain"), change(5, "0-node", "joined")],
            "is there at 5 s: 'joined' cannot happen",
        ),
        (
            [change(5, "0-node", "lost"), change(5, "1-node", "lost")],
            "there is no node at 5 s, and a simulation needs one at any time",
        ),
        (
            [change(5, "0-node", "joined"), change(5, "1-node", "joined")],
            "there is no node at 0 s",
        ),
    ],
)
def test_a_change_that_cannot_happen_is_refused(changes, error):
    with pytest.raises(InvalidRequestError, match=error):
        run([job("a", 0, 10, 1)], *changes)


def test_changes_are_read_from_a_table(tmp_path):
    path = tmp_path / "changes.csv"
    path.write_text("at_s,node,event\n300,0-node,lost\n900.5,0-node,joined\n")
    assert read_node_changes(path) == [
        change(300.0, "0-node", "lost"),
        change(900.5, "0-node", "joined"),
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("at_s,node\n1,a\n", "has the columns at_s, node; they must be at_s, node, event"),
        ("at_s,node,event\n1,a,broken\n", "line 2: event is 'broken'; allowed are lost, joined"),
        ("at_s,node,event\nnan,a,lost\n", "line 2: at_s must be a finite number, not nan"),
        ("at_s,node,event\nsoon,a,lost\n", "line 2: at_s is 'soon'; it must be a number"),
    ],
)
def test_a_table_that_is_wrong_is_refused(tmp_path, text, error):
    path = tmp_path / "changes.csv"
    path.write_text(text)
    with pytest.raises(InvalidRequestError, match=error):
        read_node_changes(path)
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        read_node_changes(tmp_path / "none.csv")


def test_of_many_nodes_an_error_names_some():
    many = [NodeKind(count=5000, gpu=8)]
    with pytest.raises(
        InvalidRequestError, match=r"nodes are 0000-node, .*\(5000 in all\)"
    ) as said:
        simulate([], many, node_changes=[change(0, "7-node", "lost")])
    assert len(str(said.value)) < 200


def test_a_simulation_that_cannot_go_on_says_what_waits_and_why():
    jobs = [job("gang", 0, 1000, 16), job("other", 5, 10, 16)]
    with pytest.raises(SimulationError) as said:
        run(jobs, change(100, "1-node", "lost"))
    for part in (
        "2 jobs have not ended, and nothing happens after",
        "Job 'other' needs gpu 16 and waits: the cluster as it is now could not hold",
        "Leave such jobs out of the trace, or simulate nodes",
    ):
        assert part in str(said.value)


def test_the_cluster_is_as_large_as_the_nodes_that_are_there():
    jobs = [job("a", 0, 1000, 8)]
    changes = [change(250, "1-node", "lost"), change(500, "1-node", "joined")]
    result = simulate(jobs, TWO, timing=TIMING, node_changes=changes)
    assert result.capacity == ((0, 16), (250, 8), (500, 16))
    assert reported(result)[""].utilisation == pytest.approx(8 / 14)
    parts = [one.utilisation for one in timeline(result).over_time(250) if not one.pool]
    assert parts == pytest.approx([0.5, 1.0, 0.5, 0.5])


def test_a_drained_node_belongs_to_the_cluster():
    changes = [change(100, "1-node", "drain"), change(200, "1-node", "undrain")]
    result = simulate([job("a", 0, 1000, 8)], TWO, timing=TIMING, node_changes=changes)
    assert result.capacity == ((0, 16),)
