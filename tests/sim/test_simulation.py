"""A simulation does with jobs what the production engine decides, at the times at which it would."""

import pytest

from schedulemesh.errors import InvalidRequestError
from schedulemesh.sim import Job, NodeKind, Policy, Timing, reported, simulate, timeline
from schedulemesh.sim.policy import parse_policy
from schedulemesh.sim.world import SimulationError

EIGHT = [NodeKind(gpu=8)]
NO_COSTS = Timing(save_s=0, restore_s=0)


def job(name, submit_s, duration_s, gpus=0, **more):
    return Job(job_id=name, submit_s=submit_s, duration_s=duration_s, gpus=gpus, **more)


def lending(queueing="best_effort", **policy):
    """Two pools of 8 GPUs that lend each other what is idle."""
    pools = [
        {"name": name, "cohort": "all", "resources": {"gpu": 8}, "queueing": queueing}
        for name in ("a", "b")
    ]
    return parse_policy({"pools": pools, "policy": policy})


def run(jobs, nodes=EIGHT, policy=None, timing=NO_COSTS):
    result = simulate(jobs, nodes, policy, timing)
    begin = result.begin
    times = {r.job.job_id: (r.first_start - begin, r.ended_at - begin) for r in result.runs}
    return result, times


def test_a_job_starts_when_another_has_ended():
    _, times = run([job("first", 0, 100, 8), job("second", 10, 50, 1)])
    assert times == {"first": (0, 100), "second": (100, 150)}


def test_a_job_that_is_larger_than_a_node_waits_for_whole_nodes():
    jobs = [job("small", 0, 100, 1), job("gang", 1, 10, 16)]
    _, times = run(jobs, [NodeKind(count=2, gpu=8)])
    assert times["gang"] == (100, 110)


@pytest.mark.parametrize(("gpus", "left"), [(8, 24), (6, 26), (0, 32)])
def test_a_gang_divided_for_its_cpus_takes_no_more_gpus_than_it_asks_for(gpus, left):
    nodes = [NodeKind(count=4, gpu=8, cpu=8)]
    jobs = [job("gang", 0, 100, gpus, cpus=30), *(job(str(n), 1, 10, 1) for n in range(left))]
    _, times = run(jobs, nodes)
    assert times.pop("gang") == (0, 100)
    assert set(times.values()) == {(1, 11)}


def test_an_owner_gets_back_what_it_lent_when_the_borrower_is_saved():
    jobs = [job("long", 0, 1000, 16, pool="a"), job("own", 100, 50, 8, pool="b")]
    timing = Timing(save_s=60, restore_s=120)
    result, times = run(jobs, [NodeKind(count=2, gpu=8)], lending(), timing)
    assert times["own"] == (160, 210)
    # It ran for 100 s before, waits until the owner has ended, and loads its state.
    assert times["long"] == (0, 210 + 120 + 900)
    borrower = next(r for r in result.runs if r.job.job_id == "long")
    assert (borrower.preemptions, borrower.lost_s, borrower.overhead_s) == (1, 0, 180)
    report = reported(result)
    assert report["b"].violation_s == 0
    assert report["a"].delay_s.mean == pytest.approx(1230 - 1000)


def test_work_that_cannot_be_saved_is_done_again():
    jobs = [
        job("long", 0, 1000, 16, pool="a", savable=False),
        job("own", 100, 50, 8, pool="b"),
    ]
    result, times = run(jobs, [NodeKind(count=2, gpu=8)], lending())
    assert times == {"long": (0, 1150), "own": (100, 150)}
    assert reported(result)[""].lost_work == pytest.approx(100 * 16 / (1000 * 16 + 50 * 8))


def test_a_run_that_fails_starts_again_after_its_back_off():
    result, times = run([job("a", 0, 100, 1, fails_at_s=(30.0,))])
    assert times["a"] == (0, 30 + 1 + 100)
    assert result.runs[0].lost_s == 30


def test_the_same_simulation_gives_the_same_times():
    jobs = [
        job(f"job-{n}", n * 7 % 100, 50 + n % 9, 1 + n % 8, pool="ab"[n % 2]) for n in range(200)
    ]
    nodes = [NodeKind(count=2, gpu=8)]
    assert run(jobs, nodes, lending())[1] == run(jobs, nodes, lending())[1]


def test_a_job_that_no_node_could_hold_is_refused():
    result = simulate([job("a", 0, 10, 64)], EIGHT, None, NO_COSTS)
    assert "64" in result.runs[0].error
    assert reported(result)[""].refused == 1


def test_a_job_of_an_unknown_pool_is_an_error():
    with pytest.raises(InvalidRequestError, match=r"pool 'c'.*declares a, b"):
        simulate([job("a", 0, 10, 1, pool="c")], EIGHT, lending())


def test_jobs_that_can_never_start_are_an_error():
    policy = Policy(pools=lending().pools[:1])
    with pytest.raises(SimulationError, match="1 job has not ended"):
        simulate([job("a", 0, 10, 8)], [NodeKind(count=1, gpu=4)], policy)


def test_shortest_first_uses_the_estimates():
    policy = parse_policy({"policy": {"queue": {"order": "shortest_remaining"}}})
    jobs = [
        job("first", 0, 100, 8, estimate_s=100),
        job("long", 1, 50, 8, estimate_s=50),
        job("short", 2, 10, 8, estimate_s=10),
    ]
    _, times = run(jobs, EIGHT, policy)
    assert times["short"] == (100, 110)
    assert times["long"] == (110, 160)


def test_jobs_that_are_preempted_by_remaining_time_load_their_states_by_size():
    policy = parse_policy(
        {
            "pools": [
                {
                    "name": "a",
                    "resources": {"gpu": 8},
                    "on_preempted": "requeue",
                    "queueing": "greedy",
                }
            ],
            "policy": {"queue": {"order": "shortest_remaining", "shortest_preempts": True}},
        }
    )
    jobs = [
        job("long", 0, 1000, 8, estimate_s=1000.0),
        job("single", 0, 500, 1, estimate_s=500.0),
        job("short", 100, 50, 8, estimate_s=50.0),
        job("last", 700, 10, 8, estimate_s=10.0),
    ]
    timing = Timing(save_s=0, restore_s=60, restore_by_gpus=((1, 7), (4, 30)))
    _, times = run(jobs, policy=policy, timing=timing)
    # "single" takes the place of "long" at once, "short" that of "single"; then "single" loads for 7 s.
    assert times["short"] == (100, 150)
    assert times["single"] == (0, 150 + 7 + 400)
    # "long" loads for 60 s from 557 on, works until 700, and loads again from 710 on.
    assert times["last"] == (700, 710)
    assert times["long"] == (0, 710 + 60 + 1000 - 83)


def test_two_jobs_of_one_id_are_refused():
    jobs = [job("a", 0, 10, 1), job("b", 0, 10, 1), job("a", 5, 10, 1)]
    with pytest.raises(InvalidRequestError, match=r"two jobs have the id 'a'.*an id of its own"):
        run(iter(jobs))


ON_CPUS = {"cpus": 64}


def test_where_the_cluster_has_gpus_cpus_count_in_no_figure():
    jobs = [job("gpus", 0, 100, 4), job("cpus", 0, 100, **ON_CPUS, fails_at_s=(50.0,))]
    result, _ = run(jobs, [NodeKind(cpu=64, gpu=8)])
    for report in reported(result).values():
        # The job on CPUs fails, waits a second and begins again: 151 s in all.
        assert report.utilisation == pytest.approx(4 * 100 / (8 * 151))
        assert (report.lost_gpu_s, report.lost_work) == (0, 0)


def test_where_the_cluster_has_no_gpus_figures_are_of_cpus():
    jobs = [job("a", 0, 100, **ON_CPUS, fails_at_s=(50.0,))]
    result, _ = run(jobs, [NodeKind(cpu=128)])
    report = reported(result)[""]
    assert report.utilisation == pytest.approx(64 * 150 / (128 * 151))
    assert (report.lost_gpu_s, report.lost_work) == (64 * 50, 0.5)


def test_the_figures_of_a_pool_without_gpus_are_of_its_cpus():
    pools = [
        {"name": "a", "resources": {"gpu": 8, "cpu": 32}},
        {"name": "b", "resources": {"cpu": 128}},
    ]
    jobs = [job("a", 0, 100, 8, pool="a"), job("b", 0, 100, pool="b", **ON_CPUS)]
    result, _ = run(jobs, [NodeKind(count=2, cpu=80, gpu=8)], parse_policy({"pools": pools}))
    used = {name: report.utilisation for name, report in reported(result).items()}
    assert used == pytest.approx({"": 0.5, "a": 1.0, "b": 0.5})


@pytest.mark.parametrize(
    "more", [{"gpus": 1, "cpus": 8}, {"gpus": 0, "cpus": 8}, {"gpus": 1, "memory_gb": 8}]
)
def test_a_job_for_which_the_quota_of_its_pool_is_too_small_lacks_no_guarantee(more):
    """Of one kind of resource, whatever is free of the others."""
    quota = {"gpu": 16, "cpu": 8, "memory": 8 * 1024}
    policy = parse_policy({"pools": [{"name": name, "resources": quota} for name in "ab"]})
    jobs = [job(name, 0, 3600, pool="a", **more) for name in ("first", "second")]
    result, times = run(jobs, [NodeKind(cpu=64, memory_gb=64, gpu=32)], policy)
    assert times["second"][0] == 3600
    assert reported(result)["a"].violation_s == 0


def test_a_job_that_fits_into_the_quota_of_its_pool_and_waits_lacks_its_guarantee():
    pools = [{"name": name, "resources": {"gpu": 8, "cpu": 8}} for name in "ab"]
    jobs = [job("other", 0, 3600, 1, cpus=8, pool="b"), job("own", 0, 3600, 1, cpus=8, pool="a")]
    result, _ = run(jobs, [NodeKind(cpu=12, gpu=16)], parse_policy({"pools": pools}))
    assert reported(result)["a"].violation_s == 3600


def test_until_its_process_has_ended_a_job_holds_its_gpus_without_working():
    jobs = [job(name, at, 100, 8) for name, at in (("a", 0), ("b", 10), ("c", 20))]
    result, times = run(jobs, timing=Timing(end_s=50))
    assert times["c"] == (300, 400)
    report = reported(result)[""]
    # The simulation is over when the last job ends.
    assert (report.overhead_gpu_s, report.utilisation) == (2 * 50 * 8, 1.0)
    assert [one.utilisation for one in timeline(result).over_time(1000)] == [1.0, 1.0]


def test_so_does_the_process_of_a_run_that_failed():
    result, _ = run([job("a", 0, 100, 8, fails_at_s=(50.0,))], timing=Timing(end_s=50))
    (only,) = result.runs
    assert (only.overhead_s, only.lost_s) == (50, 50)


# -- order and arrays


def test_jobs_start_after_others_and_what_never_starts_is_given_up():
    jobs = [
        job("first", 0, 100, 1),
        job("next", 1, 10, 1, after=("ok:first",)),
        job("last", 2, 10, 1, after=("any:next", "ok:first")),
        job("cut", 0, 1000, 1, max_run_s=50.0),
        job("never", 1, 10, 1, after=("ok:cut",)),
        job("rescue", 1, 10, 1, after=("fail:cut",)),
    ]
    result = simulate(jobs, EIGHT, None, NO_COSTS)
    by_name = {run.job.job_id: run for run in result.runs}
    starts = {
        name: run.first_start and run.first_start - result.begin for name, run in by_name.items()
    }
    assert starts == {"first": 0, "next": 100, "last": 110, "cut": 0, "never": None, "rescue": 51}
    assert "task 'cut', which had to complete" in by_name["never"].error


def test_the_members_of_an_array_run_a_few_at_a_time():
    jobs = [job("many", 0, 10, 1, array="0-9%3"), job("end", 1, 5, 1, after=("ok:many",))]
    result = simulate(jobs, EIGHT, None, NO_COSTS)
    by_name = {run.job.job_id: run for run in result.runs}
    starts = [by_name[f"many[{index}]"].first_start - result.begin for index in range(10)]
    assert starts == [0, 0, 0, 10, 10, 10, 20, 20, 20, 30]
    assert by_name["end"].first_start - result.begin == 40
    assert not any(run.error for run in result.runs)


def test_an_array_whose_dependency_fails_is_given_up_whole():
    jobs = [
        job("cut", 0, 1000, 1, max_run_s=50.0),
        job("many", 1, 10, 1, array="0-3", after=("ok:cut",)),
    ]
    result = simulate(jobs, EIGHT, None, NO_COSTS)
    assert [bool(run.error) for run in result.runs] == [False, True, True, True, True]


# -- limits in time


def test_a_job_that_has_run_for_as_long_as_it_may_is_cut_short():
    jobs = [job("long", 0, 1000, 8, max_run_s=100.0), job("next", 10, 50, 8)]
    result = simulate(jobs, EIGHT, None, NO_COSTS)
    report, by_name = reported(result)[""], {run.job.job_id: run for run in result.runs}
    assert (report.jobs, report.refused, report.cut_short, report.preemptions) == (1, 0, 1, 0)
    assert by_name["next"].first_start - result.begin == 101, "at the tick after the limit"
    assert not by_name["long"].error


def test_a_job_that_joins_the_queue_again_at_its_limit_goes_on_from_its_saved_state():
    jobs = [
        job("long", 0, 250, 8, max_run_s=100.0, requeued_at_limit=True),
        job("next", 10, 50, 8),
    ]
    result, times = run(jobs)
    assert times["next"] == (101, 151)
    report = reported(result)[""]
    assert (report.cut_short, report.preemptions) == (0, 0)
    # It works for 101 s, waits for 50, works for 101, and then for the rest.
    assert times["long"] == (0, 250 + 50)


def test_the_limits_of_a_pool_hold_in_a_simulation():
    pools = [{"name": "all", "resources": {"gpu": 8}, "default_max_run_s": 100, "max_run_s": 200}]
    policy = parse_policy({"pools": pools})
    jobs = [
        job("default", 0, 1000, 8, pool="all"),
        job("own", 1, 150, 8, pool="all", max_run_s=160),
    ]
    result = simulate(jobs, EIGHT, policy, NO_COSTS)
    assert [run.is_cut_short for run in result.runs] == [True, False]
    too_long = simulate([job("x", 0, 10, 8, pool="all", max_run_s=300)], EIGHT, policy, NO_COSTS)
    assert "may run for at most 3m20s" in too_long.runs[0].error
