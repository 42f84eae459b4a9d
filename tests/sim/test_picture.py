"""The curves of a picture are those of the simulation; a picture is a file of the format of its name."""

import sys

import pytest

from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim import Job, NodeKind, Policy, Timing, compare
from schedulemesh.sim.frontier_picture import draw_frontier
from schedulemesh.sim.picture import (
    MOST_POOLS,
    check,
    delay_curve,
    draw,
    held_curves,
    largest_pools,
    waiting_curve,
)
from schedulemesh.sim.policy import parse_policy


def compared(count=3, policies=("fifo",)):
    """Pools of 8 GPUs each, and one job of 100 s in each of them, submitted one second after the other, from
    1,000 s on; and a second job in the last, which waits for the first.
    """
    pools = [{"name": f"pool-{n}", "resources": {"gpu": 8}} for n in range(count)]
    jobs = [
        Job(job_id=f"job-{n}", submit_s=1000.0 + n, duration_s=100, gpus=8, pool=f"pool-{n}")
        for n in range(count)
    ]
    second = Job(
        job_id="second", submit_s=1000.0 + count, duration_s=60, gpus=4, pool=f"pool-{count - 1}"
    )
    return compare(
        [*jobs, second],
        [NodeKind(count=count, gpu=8)],
        [parse_policy({"pools": pools}, name) for name in policies],
        Timing(save_s=0, restore_s=0),
    )


def at(times, values, time):
    return [value for since, value in zip(times, values, strict=True) if since <= time][-1]


def test_jobs_that_wait_are_counted_from_the_first_submission_on():
    times, waiting = waiting_curve(compared()[0].timeline)
    assert times[0] == 0
    assert [at(times, waiting, time) for time in (1.5, 3.5, 50, 101.5, 120)] == [0, 1, 1, 1, 0]


def test_delays_are_the_percentage_of_jobs_that_have_at_most_this():
    assert delay_curve([0.0, 0.0, 10.0, 30.0]) == ([0.0, 10.0, 30.0], [50.0, 75.0, 100.0])
    assert delay_curve([]) == ([], [])
    (one,) = compared()
    assert delay_curve(one.timeline.delays_s) == ([0.0, 99.0], [75.0, 100.0])


def test_many_delays_are_thinned_out_and_stay_right():
    delays, parts = delay_curve([float(n) for n in range(100_000)])
    assert len(delays) < 1000
    assert (delays[0], delays[-1], parts[-1]) == (0, 99_999, 100)
    assert parts == pytest.approx([(delay + 1) / 1000 for delay in delays])


def test_what_pools_hold_is_a_part_of_the_cluster():
    (one,) = compared()
    times, held = held_curves(one.timeline, ["pool-2", "pool-0", "pool-1"])
    assert list(held) == ["pool-2", "pool-0", "pool-1"]
    assert at(times, held["pool-0"], 50) == pytest.approx(100 / 3)
    assert at(times, held["pool-0"], 120) == 0
    assert at(times, held["pool-2"], 120) == pytest.approx(100 / 6)


def test_the_smaller_of_many_pools_are_one():
    (one,) = compared(MOST_POOLS + 2)
    named = largest_pools([one.timeline])
    assert len(named) == MOST_POOLS - 1
    times, held = held_curves(one.timeline, named)
    assert len(held) == MOST_POOLS
    assert at(times, held["3 other pools"], 50) == pytest.approx(30)


def test_the_largest_pools_come_first():
    pools = [{"name": f"p{n}", "resources": {"gpu": n}} for n in (2, 8, 4)]
    (one,) = compare([], [NodeKind(count=2, gpu=8)], [parse_policy({"pools": pools})])
    assert largest_pools([one.timeline]) == ["p8", "p4", "p2"]


@pytest.mark.parametrize(
    ("name", "begin"), [("picture.png", b"\x89PNG"), ("picture.svg", b"<?xml"), ("P.SVG", b"<?xml")]
)
@pytest.mark.parametrize("policies", [["fifo"], ["fifo", "lend", "las"]])
def test_a_picture_is_written(tmp_path, name, begin, policies):
    pytest.importorskip("matplotlib")
    draw(compared(MOST_POOLS + 2, policies), tmp_path / name)
    written = (tmp_path / name).read_bytes()
    assert written.startswith(begin)
    assert len(written) > 5000


@pytest.mark.parametrize("drawn", [draw, draw_frontier])
def test_names_are_shown_as_they_are(tmp_path, drawn):
    pytest.importorskip("matplotlib")
    pools = [{"name": name, "resources": {"gpu": 8}} for name in ("_p", "$q_{$")]
    jobs = [Job(job_id="a", submit_s=0.0, duration_s=100, gpus=8, pool="_p")]
    names = ["_own", "$x_{$"]
    policies = [parse_policy({"pools": pools}, name) for name in names]
    compared_ones = compare(jobs, [NodeKind(count=2, gpu=8)], policies)
    drawn(compared_ones, tmp_path / "picture.png")
    drawn(compared_ones, tmp_path / "picture.svg")
    written = (tmp_path / "picture.svg").read_text(encoding="utf-8")
    for name in [*names, *(("_p", "$q_{$") if drawn is draw else ())]:
        assert f"<!-- {name} -->" in written


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_same_simulation_gives_the_same_picture(tmp_path, ending):
    pytest.importorskip("matplotlib")
    first, second = tmp_path / f"first.{ending}", tmp_path / f"second.{ending}"
    draw(compared(), first)
    draw(compared(), second)
    assert first.read_bytes() == second.read_bytes()


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(InvalidRequestError, match="cannot be written"):
        draw(compared(), tmp_path / "taken.png")


def test_a_picture_without_any_job_is_empty_and_no_error(tmp_path):
    pytest.importorskip("matplotlib")
    draw(compare([], [NodeKind(gpu=8)], [Policy()]), tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("name", "said"),
    [("picture.pdf", "must end in .png or .svg"), ("no/picture.png", "no such folder")],
)
def test_a_file_that_cannot_be_a_picture_is_refused(tmp_path, name, said):
    with pytest.raises(InvalidRequestError, match=said):
        check(tmp_path / name)


def test_where_matplotlib_is_absent_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InvalidRequestError, match=r"pip install 'schedulemesh-core\[simulate\]'"):
        draw(compared(), tmp_path / "picture.png")
    assert list(tmp_path.iterdir()) == []
