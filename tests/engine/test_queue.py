"""The queue: joining, order, what is started when something becomes free, requeue, holding, cancelling."""

import random

import msgspec
import pytest

from schedulemesh.config.queueing import QueuePolicy
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.reasons import Change, Reason
from schedulemesh.domain.resources import UNIT, Resources
from schedulemesh.engine.messages import queue_facts as f
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Accepted, Done, Pending, Queued, Refused
from schedulemesh.engine.state.queue import NoRoom
from schedulemesh.runtime.services.queue_rows import QueueRows, positioned
from tests.counted_calls import calls_of
from tests.engine.builders import Mesh, differences, node, pool


def mesh(**how):
    """One pool of 4 CPUs on one node of 8."""
    return Mesh(pool("p", cpu=4), nodes=[node("n1", cpu=8)], **how)


def check_stored(given):
    """The state is the same after its facts, and a snapshot of it, were written and read."""
    assert differences(given.state, given.refolded()) == []
    assert differences(given.state, given.rewritten()) == []


def test_a_task_that_fits_starts_at_once():
    given = mesh()
    outcome = given.queue("a", cpu=4)
    assert outcome == Queued(task_id="a", agent_name="a", pool_name="p", position=0)
    assert "a" in given.starts
    assert given.waiting() == []
    check_stored(given)


def test_a_task_that_does_not_fit_waits_and_holds_nothing():
    given = mesh()
    given.run("a", cpu=3)
    assert given.queue("b", cpu=2).position == 1
    assert given.queue("c", cpu=2).position == 2
    assert given.waiting() == ["b", "c"]
    assert given.free().cpu == 10_000
    check_stored(given)


def test_a_waiting_task_starts_when_its_resources_are_free():
    given = mesh()
    given.run("a", cpu=3)
    given.queue("b", cpu=2)
    given.complete("a")
    assert list(given.starts) == ["b"]
    assert given.waiting() == []
    given.report("b")
    check_stored(given)


def test_order_is_priority_then_arrival():
    given = mesh()
    given.run("a", cpu=4, priority=9)
    for name, priority in (("low", 1), ("first", 5), ("second", 5), ("high", 7)):
        given.queue(name, priority=priority, cpu=4)
    assert given.waiting() == ["high", "first", "second", "low"]
    given.complete("a")
    assert list(given.starts) == ["high"]


def test_what_fits_passes_what_does_not_in_a_best_effort_pool():
    given = mesh()
    given.run("a", cpu=3)
    given.queue("big", cpu=4, priority=5)
    assert given.queue("small", cpu=1, priority=5).position == 0


def test_nothing_passes_the_first_task_of_a_strict_pool():
    given = Mesh(
        msgspec.structs.replace(pool("p", cpu=4), queueing="strict"), nodes=[node("n1", cpu=8)]
    )
    given.run("a", cpu=3)
    given.queue("big", cpu=4)
    assert given.queue("small", cpu=1).position == 2
    assert given.submit("smaller", cpu=0.5).reason is Reason.HELD_FOR_QUEUE
    given.tick(1)
    assert given.waiting() == ["big", "small"]
    given.cancel("big")
    assert given.waiting() == []


def strict(name="p", **quota):
    return msgspec.structs.replace(pool(name, **quota), queueing="strict")


def shrunk(cpu=6):
    """A strict pool that was made smaller than its first task needs, ``large``; ``small`` waits behind it."""
    given = Mesh(strict(cpu=8), nodes=[node("n1", cpu=8)])
    given.run("a", cpu=4)
    given.queue("large", cpu=8)
    given.queue("small", cpu=2)
    given.resize(strict(cpu=cpu))
    return given


def test_a_first_task_that_its_strict_pool_cannot_hold_any_more_is_passed():
    given = shrunk()
    given.tick(1)
    assert (list(given.starts), given.waiting()) == (["small"], ["large"])
    given.report("small")
    check_stored(given)


def test_what_joins_behind_a_task_that_its_strict_pool_cannot_hold_starts_at_once():
    given = shrunk()
    given.tick(1)
    given.report("small")
    given.complete("small")
    assert given.queue("later", cpu=1).position == 0
    assert isinstance(given.submit("direct", cpu=1), Pending)


def test_the_first_task_that_a_strict_pool_can_hold_is_passed_by_nobody():
    given = shrunk(cpu=5)
    given.queue("smaller", cpu=1)
    given.tick(1)
    assert given.starts == {}
    assert given.queue("later", cpu=1).position == 4
    assert given.submit("direct", cpu=1).reason is Reason.HELD_FOR_QUEUE
    given.complete("a")
    assert list(given.starts) == ["small", "smaller", "later"]


def test_several_tasks_that_a_strict_pool_cannot_hold_are_passed():
    given = shrunk()
    given.queue("larger", cpu=8, priority=9)
    given.change("small", priority=1.0)
    for name, cpu in (("large-2", 7), ("large-3", 7.5)):
        given.resize(strict(cpu=8))
        given.queue(name, cpu=cpu)
    given.resize(strict(cpu=6))
    given.tick(1)
    assert list(given.starts) == ["small"]


def test_a_task_that_its_strict_pool_can_hold_again_comes_first_again():
    given = shrunk()
    given.tick(1)
    given.report("small")
    given.queue("later", cpu=2)
    given.resize(strict(cpu=8))
    given.tick(1)
    given.complete("small")
    given.tick(1)
    assert (given.starts, given.waiting()) == ({}, ["large", "later"])
    given.complete("a")
    assert list(given.starts) == ["large"]


def test_a_task_that_could_only_borrow_what_its_strict_pool_may_not_any_more_is_passed():
    member = msgspec.structs.replace(strict(cpu=4), cohort="c")
    lender = msgspec.structs.replace(pool("q", cpu=4), cohort="c")
    given = Mesh(member, lender, nodes=[node("n1", cpu=8)])
    given.run("a", cpu=2)
    given.queue("large", cpu=8)
    given.queue("small", cpu=2)
    given.tick(1)
    assert given.starts == {}
    given.resize(msgspec.structs.replace(member, cohort=None))
    given.tick(1)
    assert (list(given.starts), given.waiting()) == (["small"], ["large"])


def test_a_task_in_a_group_is_passed_when_its_strict_pool_keeps_groups_no_more():
    groups = GroupsSpec(max_dynamic=2)
    given = Mesh(msgspec.structs.replace(strict(cpu=4), groups=groups), nodes=[node("n1", cpu=8)])
    given.submit("a", cpu=2)
    given.make_all()
    given.report("a")
    given.queue("bundles", bundles=[{"cpu": 2}, {"cpu": 2}])
    given.queue("single", cpu=2)
    given.tick(1)
    assert given.starts == {}
    given.resize(strict(cpu=4))
    given.tick(1)
    assert (list(given.starts), given.waiting()) == (["single"], ["bundles"])


def test_a_first_task_that_is_larger_than_the_nodes_stays_first_in_a_strict_pool():
    given = Mesh(strict(cpu=8), nodes=[node("n1", cpu=4)])
    given.queue("large", cpu=8)
    given.queue("small", cpu=1)
    given.tick(1)
    assert (given.starts, given.waiting()) == ({}, ["large", "small"])
    given.observe(node("n1", cpu=4), node("n2", cpu=8))
    given.tick(1)
    assert list(given.starts) == ["large"]


def test_behind_a_task_that_its_strict_pool_cannot_hold_others_are_evicted():
    given = shrunk()
    given.change("small", priority=9.0)
    given.queue("urgent", cpu=4, priority=9)
    given.change("large", priority=10.0)
    given.tick(1)
    given.report("small")
    given.tick(1)
    assert list(given.ends) == ["a"]


def test_a_change_after_which_waiting_tasks_cannot_start_says_so():
    given = Mesh(strict(cpu=8), nodes=[node("n1", cpu=8)])
    given.run("a", cpu=4)
    for name, cpu in (("large", 8), ("larger", 7), ("large-2", 8), ("small", 2)):
        given.queue(name, cpu=cpu)
    (warning,) = given.resize(strict(cpu=6)).warnings
    assert warning == (
        "3 of the tasks that wait in pool 'p' cannot start in it as it is defined now: 'large', 'larger' and "
        "others; those behind them do not wait for them, and explain says what each of them lacks"
    )
    assert given.resize(strict(cpu=8)).warnings == ()


def test_a_change_of_cohorts_after_which_a_waiting_task_cannot_borrow_enough_says_so():
    given = Mesh(
        msgspec.structs.replace(strict(cpu=4), cohort="team"),
        msgspec.structs.replace(pool("q", cpu=4), cohort="company"),
        nodes=[node("n1", cpu=8)],
    )
    given.cohort("company")
    given.cohort("team", parent="company")
    given.run("a", cpu=2)
    given.queue("large", cpu=8)
    (warning,) = given.cohort("team").warnings
    assert warning.startswith("1 of the tasks that wait in pool 'p' cannot start in it")
    ((position, task),) = positioned(given.state, "p")
    causes = given.engine.wait_causes(given.now)
    row = QueueRows(given.state, causes, given.now).row(task, position)
    assert row.cannot_start == Reason.EXCEEDS_POOL_CAPACITY


def test_a_task_that_joins_may_evict():
    given = mesh()
    given.run("a", cpu=4, priority=1)
    outcome = given.queue("b", cpu=4, priority=9)
    assert outcome.position == 0
    given.leave("a", saved=True)
    given.report("b")
    assert given.waiting() == []


def test_the_first_waiting_task_may_evict_at_a_tick_what_started_since():
    given = mesh()
    given.run("a", cpu=4, priority=9)
    given.queue("b", cpu=4, priority=9)
    given.complete("a")
    assert list(given.starts) == ["b"]
    given.report("b")
    given.queue("c", cpu=4, priority=2)
    given.change("c", priority=20.0)
    assert "b" not in given.ends
    given.tick(1)
    assert "b" in given.ends


def test_a_victim_that_asks_for_it_returns_with_its_state_and_its_first_arrival():
    given = mesh()
    given.run("old", cpu=4, priority=1, on_preempted="requeue", class_key="k")
    given.now += 10
    given.submit("new", cpu=4, priority=9)
    given.now += 5
    given.leave("old", saved=True)
    given.report("new")
    waiting = given.state.queue.by_id["old"]
    assert waiting.submission.state_key == "state-old"
    assert waiting.arrived_at == 1000.0
    assert (waiting.attempts.preemptions, waiting.attempts.ran_s) == (1, 15.0)
    check_stored(given)
    given.complete("new")
    assert given.starts["old"].state_key == "state-old"
    given.report("old")
    check_stored(given)


def test_a_victim_whose_agent_is_deleted_meanwhile_does_not_return():
    given = mesh()
    given.run("old", cpu=4, priority=1, on_preempted="requeue", class_key="k")
    given.submit("new", cpu=4, priority=9)
    assert given.delete("old") == Pending(agent_name="old")
    check_stored(given)
    given.leave("old", saved=True)
    assert given.waiting() == []
    assert given.state.ended["old"].state == "cancelled"
    check_stored(given)


def test_a_victim_is_dropped_by_default():
    given = mesh()
    given.run("old", cpu=4, priority=1, class_key="k")
    given.submit("new", cpu=4, priority=9)
    given.leave("old", saved=True)
    assert given.waiting() == []


def test_the_pool_says_what_becomes_of_victims_that_do_not():
    spec = msgspec.structs.replace(pool("p", cpu=4), on_preempted="requeue")
    given = Mesh(spec, nodes=[node("n1", cpu=8)])
    given.run("old", cpu=2, priority=1, class_key="k")
    given.run("drop", cpu=2, priority=1, class_key="k", on_preempted="drop")
    given.submit("new", cpu=4, priority=9)
    given.leave("old")
    given.leave("drop")
    assert given.waiting() == ["old"]


def test_a_held_task_waits_until_it_is_released():
    given = mesh()
    given.run("a", cpu=4)
    given.queue("b", cpu=4)
    assert given.change("b", held=True) == Done()
    assert given.change("b", held=True) == Done(change=Change.UNCHANGED)
    given.complete("a")
    assert given.waiting() == ["b"]
    check_stored(given)
    given.change("b", held=False)
    assert list(given.starts) == ["b"]


def test_tasks_that_may_not_start_yet_come_last_in_the_order_of_their_submission():
    given = mesh()
    given.run("a", cpu=4, priority=9)
    for name in "bcde":
        given.queue(name, cpu=4)
    for name in "db":
        given.change(name, held=True)
    assert given.waiting() == ["c", "e", "b", "d"]
    queue = given.state.queue
    assert [queue.position(queue.by_id[name]) for name in "cebd"] == [1, 2, 3, 4]
    for begin in range(5):
        for end in (None, *range(begin, 5)):
            names = [task.task_id for task in queue.of_pool("p", begin, end)]
            assert names == ["c", "e", "b", "d"][begin:end]
    check_stored(given)
    given.change("b", held=False)
    assert given.waiting() == ["b", "c", "e", "d"]


def test_the_last_tasks_of_a_queue_are_looked_up_as_fast_as_the_first():
    def calls_with(waiting):
        """Calls for the position of a task, and for two tasks at the end of the queue."""
        given = mesh()
        given.run("a", cpu=4, priority=9)
        for number in range(waiting):
            given.queue(f"t{number}", cpu=4, priority=number / waiting)
        queue = given.state.queue
        last = [task.task_id for task in queue.of_pool("p", waiting - 2)]
        assert last == ["t1", "t0"]
        _, for_position = calls_of(lambda: queue.position(queue.by_id["t0"]))
        _, for_last = calls_of(lambda: [*queue.of_pool("p", waiting - 2)])
        return for_position, for_last

    assert calls_with(200) == calls_with(20)


def test_a_task_moved_to_the_front_comes_first():
    given = mesh()
    given.run("a", cpu=4, priority=9)
    given.queue("b", cpu=4, priority=9)
    given.queue("c", cpu=4, priority=1)
    given.queue("d", cpu=4, priority=1)
    given.change("c", to_front=True)
    given.change("d", to_front=True)
    assert given.waiting() == ["d", "c", "b"]
    check_stored(given)


def test_the_front_is_that_of_the_tasks_that_wait():
    given = mesh()
    given.run("a", cpu=4, priority=9)
    given.queue("b", cpu=4)
    given.queue("c", cpu=4)
    given.change("b", to_front=True)
    given.cancel("b")
    given.change("c", to_front=True)
    assert given.state.queue.by_id["c"].front == 1
    assert given.rewritten().queue.last_front == given.state.queue.last_front == 1


def promoting(after_s=60.0, **order):
    given = mesh()
    given.order_by(promote_after_s=after_s, **order)
    given.run("a", cpu=4, priority=9)
    return given


def wait(given, seconds):
    given.now += seconds
    given.handle(s.ClockTicked())


@pytest.mark.parametrize(
    ("order", "before"), [("priority", "dcb"), ("fifo", "bcd"), ("shortest_remaining", "dbc")]
)
def test_a_task_that_has_waited_for_long_comes_first_whatever_the_order(order, before):
    given = promoting(order=order)
    given.queue("b", cpu=4, priority=1, duration=50.0)
    given.queue("c", cpu=4, priority=2, duration=60.0)
    wait(given, 30)
    given.queue("d", cpu=2, priority=5, duration=5.0)
    wait(given, 29)
    assert given.waiting() == list(before)
    wait(given, 1)
    assert given.waiting() == ["b", "c", "d"]
    check_stored(given)


def test_tasks_that_have_waited_for_long_stand_behind_those_that_were_moved_to_the_front():
    given = promoting()
    for name in ("b", "c", "d"):
        given.queue(name, cpu=4)
    given.change("d", to_front=True)
    wait(given, 60)
    assert given.waiting() == ["d", "b", "c"]
    given.change("c", to_front=True)
    assert given.waiting() == ["c", "d", "b"]
    check_stored(given)


def test_a_held_task_is_not_promoted_and_one_that_is_released_is_at_once():
    given = promoting()
    given.queue("b", cpu=4, priority=1)
    given.change("b", held=True)
    wait(given, 100)
    given.queue("c", cpu=4, priority=5)
    given.change("b", held=False)
    assert given.waiting() == ["c", "b"]
    wait(given, 1)
    assert given.waiting() == ["b", "c"]


def test_a_policy_that_promotes_counts_the_wait_before_it():
    given = promoting(after_s=0.0)
    given.queue("b", cpu=4, priority=1)
    wait(given, 100)
    given.queue("c", cpu=4, priority=5)
    given.order_by(promote_after_s=60.0)
    wait(given, 1)
    assert given.waiting() == ["b", "c"]
    given.order_by(promote_after_s=0.0)
    wait(given, 1000)
    given.queue("d", cpu=4, priority=9)
    assert given.waiting() == ["b", "d", "c"]


def test_a_changed_priority_changes_the_place():
    given = mesh()
    given.run("a", cpu=4, priority=9)
    given.queue("b", cpu=4, priority=5)
    given.queue("c", cpu=4, priority=4)
    given.change("c", priority=6.0)
    assert given.waiting() == ["c", "b"]
    check_stored(given)


def test_a_cancelled_task_does_not_start():
    given = mesh()
    given.run("a", cpu=4)
    given.queue("b", cpu=4)
    assert given.cancel("b") == Done()
    given.complete("a")
    assert not given.starts
    check_stored(given)


def test_only_waiting_tasks_are_changed_or_cancelled():
    given = mesh()
    given.run("a", cpu=4)
    assert given.change("a", held=True).reason is Reason.NOT_QUEUED
    assert given.change("b", held=True).reason is Reason.TASK_NOT_FOUND
    assert given.cancel("b").reason is Reason.TASK_NOT_FOUND


def test_a_task_that_waited_too_long_is_cancelled():
    given = mesh()
    given.run("a", cpu=4)
    given.queue("b", cpu=4, more={"wait_s": 10.0})
    given.tick(9)
    assert given.waiting() == ["b"]
    given.tick(2)
    assert given.waiting() == []
    cancelled = given.facts[-2]
    assert isinstance(cancelled, f.TaskCancelled)
    assert cancelled.reason is Reason.WAIT_TIMEOUT
    check_stored(given)


@pytest.mark.parametrize("again", ["queue", "submit"])
def test_an_id_or_a_name_in_the_queue_is_taken(again):
    given = mesh()
    given.run("a", cpu=4)
    given.queue("b", cpu=4)
    outcome = getattr(given, again)("b", cpu=4)
    assert isinstance(outcome, Refused)
    assert outcome.reason is Reason.DUPLICATE_TASK
    agent = given.submit("b", task=False, cpu=1)
    assert agent.reason is Reason.DUPLICATE_AGENT
    assert given.announce("b", "elsewhere").reason is Reason.DUPLICATE_TASK


def test_what_never_fits_its_pool_is_refused():
    given = mesh()
    assert given.queue("a", cpu=5).reason is Reason.EXCEEDS_POOL_CAPACITY
    assert given.queue("a", pool_name="x", cpu=1).reason is Reason.POOL_NOT_FOUND
    assert given.waiting() == []


def test_what_no_node_has_waits_for_nodes():
    given = Mesh(pool("p", cpu=16), nodes=[node("n1", cpu=8)])
    assert given.queue("a", cpu=16).position == 1
    given.observe(node("n1", cpu=8), node("n2", cpu=16))
    assert list(given.starts) == ["a"]


def test_without_any_node_only_quota_decides():
    given = Mesh(pool("p", cpu=16), nodes=[node("n1", cpu=8)])
    given.queue("a", cpu=16)
    given.observe()
    assert list(given.starts) == ["a"]


def test_a_class_is_loaded_before_anyone_is_evicted_for_a_waiting_task():
    given = mesh()
    given.run("a", cpu=4, priority=1)
    assert given.queue("b", cpu=4, priority=9, class_key="new").position == 1
    assert list(given.probes) == ["b"]
    given.handle(s.ClassProbed(class_key="new"))
    assert "a" in given.ends


def test_a_class_that_does_not_load_cancels_the_task():
    given = mesh()
    given.run("a", cpu=4, priority=1)
    given.queue("b", cpu=4, priority=9, class_key="new")
    given.handle(
        s.ClassProbeFailed(task_id="b", reason=Reason.AGENT_START_FAILED, error="no such module")
    )
    assert given.waiting() == []
    assert "a" not in given.ends


def test_a_task_that_found_no_room_in_ray_waits_again():
    given = mesh()
    given.queue("a", cpu=4)
    given.fail("a", reason=Reason.CLUSTER_OUT_OF_RESOURCES)
    assert given.waiting() == ["a"]
    given.tick(1)
    assert not given.starts
    given.tick(2)
    assert list(given.starts) == ["a"]


def test_a_dry_run_starts_nobody():
    given = mesh()
    given.queue("a", cpu=4)
    given.fail("a", reason=Reason.CLUSTER_OUT_OF_RESOURCES)
    given.now += 10
    assert given.dry("b", cpu=4).reason is Reason.HELD_FOR_QUEUE
    assert isinstance(given.dry("b", priority=9.0, cpu=4), Accepted)
    assert given.waiting() == ["a"]


def test_a_task_whose_class_fails_does_not_return():
    given = mesh()
    given.queue("a", cpu=4)
    given.fail("a")
    assert given.waiting() == []
    assert given.free().cpu == 40_000


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("priority", ["c", "b", "a", "d"]),
        ("fifo", ["a", "b", "c", "d"]),
        ("shortest_remaining", ["b", "a", "c", "d"]),
        ("two_level_las", ["b", "a", "c", "d"]),
    ],
)
def test_the_policy_says_in_which_order_tasks_are_served(order, expected):
    given = Mesh(pool("p", cpu=4, gpu=4), nodes=[node("n1", cpu=8, gpu=4)])
    given.run("busy", cpu=4, gpu=4, priority=99)
    for name, priority, gpu, duration in (
        ("a", 5, 2, 60.0),
        ("b", 6, 1, 30.0),
        ("c", 7, 3, None),
        ("d", 1, 4, None),
    ):
        given.queue(name, priority=priority, cpu=1, gpu=gpu, duration=duration)
    given.order_by(order=order)
    assert given.waiting() == expected
    check_stored(given)


def test_what_has_used_more_than_the_threshold_comes_after_what_has_not():
    given = Mesh(pool("p", cpu=4, gpu=4), nodes=[node("n1", cpu=8, gpu=4)])
    given.order_by(order="two_level_las", las_threshold_gpu_hours=1.0)
    given.run("long", cpu=1, gpu=2, priority=1, on_preempted="requeue", class_key="k")
    given.now += 2000
    given.submit("urgent", cpu=1, gpu=4, priority=9)
    given.leave("long")
    given.report("urgent")
    given.queue("big", cpu=1, gpu=4)
    assert given.waiting() == ["big", "long"]


def test_ageing_lets_an_old_task_pass_a_more_important_one():
    given = mesh()
    given.order_by(ageing_per_hour=2.0)
    given.run("a", cpu=4, priority=9)
    given.queue("old", cpu=4, priority=3)
    given.now += 3600
    given.queue("new", cpu=4, priority=4.5)
    assert given.waiting() == ["old", "new"]


def test_another_order_applies_to_what_waits_already():
    given = mesh()
    given.run("a", cpu=4, priority=9)
    given.queue("first", cpu=4, priority=3)
    given.queue("second", cpu=4, priority=5, duration=60.0)
    for order, expected in (
        ("fifo", ["first", "second"]),
        ("shortest_remaining", ["second", "first"]),
        ("priority", ["second", "first"]),
    ):
        given.state.queue.order_by(QueuePolicy(order=order))
        assert given.waiting() == expected
    given.complete("a")
    assert list(given.starts) == ["second"]


def test_the_pools_are_served_in_one_order():
    given = Mesh(pool("p", cpu=4), pool("q", cpu=4), nodes=[node("n1", cpu=4)])
    given.run("a", cpu=4, priority=9)
    given.queue("b", "p", cpu=4, priority=1)
    given.queue("c", "q", cpu=4, priority=2)
    given.complete("a")
    assert list(given.starts) == ["c"]


def test_a_submission_that_does_not_queue_is_answered_as_before():
    given = mesh()
    assert isinstance(given.submit("a", cpu=4), Pending)
    given.report("a")
    assert given.submit("b", cpu=4).reason is Reason.PREEMPTION_FAILED


def test_a_task_from_the_queue_has_its_placement_group_created():
    grouped = pool("p", cpu=4, groups=GroupsSpec(max_dynamic=4))
    given = Mesh(grouped, pool("q", cpu=4), nodes=[node("n1", cpu=4)])
    given.run("a", "q", cpu=4)
    given.queue("b", cpu=4)
    given.complete("a")
    given.make_all()
    assert list(given.starts) == ["b"]
    given.report("b")
    check_stored(given)


def test_a_gang_starts_on_several_nodes_where_no_node_has_room_for_a_single_agent_of_its_size():
    given = Mesh(pool("p", cpu=20), nodes=[node("n1", cpu=8), node("n2", cpu=4), node("n3", cpu=4)])
    for name, cpu in (("a", 8), ("b", 4), ("c", 4)):
        given.run(name, priority=9, cpu=cpu)
    given.queue("single", cpu=8, priority=7)
    given.queue(
        "gang", cpu=8, bundles=[{"cpu": 4}, {"cpu": 4}], payload=GangPayload(strategy="SPREAD")
    )
    given.cordon("n1")
    given.complete("b")
    given.complete("c")
    given.make_all()
    assert list(given.starts) == ["gang"]
    assert given.waiting() == ["single"]


def test_a_victim_that_started_from_the_queue_elsewhere_counts_as_restarted():
    given = Mesh(pool("p", cpu=12), nodes=[node("n1", cpu=4), node("n2", cpu=4)])
    given.run("small", cpu=2, priority=1, on_preempted="requeue", class_key="k", node_id="n1")
    given.run("large", cpu=2, priority=1, class_key="k", node_id="n1")
    given.run("other", cpu=4, priority=9, node_id="n2")
    given.submit("new", cpu=4, priority=5)
    given.complete("other")
    given.leave("small")
    assert given.starts["small"].node_id == "n2"
    given.leave("large")
    outcome = given.fail("new")
    assert (outcome.restarted, outcome.not_restarted) == (("large", "small"), ())


# reserved starts


def busy(*durations, **how):
    """A pool of 4 CPUs on which tasks of one CPU run that take so long, and a waiting task of 4."""
    given = Mesh(pool("p", cpu=4), nodes=[node("n1", cpu=8)], **how)
    for number, duration in enumerate(durations):
        given.run(f"r{number}", cpu=1, priority=9, duration=duration)
    given.queue("big", cpu=4)
    given.tick()
    return given


def test_the_first_task_gets_a_start_when_enough_tasks_have_ended():
    given = busy(100.0, 50.0, 70.0)
    assert given.state.queue.by_id["big"].reservation.at == given.now + 100.0
    check_stored(given)


def test_a_task_that_ends_before_the_reserved_start_may_pass():
    given = busy(100.0, 50.0, 70.0)
    assert given.queue("short", cpu=1, duration=99.0).position == 0


def test_a_task_that_would_still_run_at_the_reserved_start_waits():
    given = busy(100.0, 50.0, 70.0)
    assert given.queue("long", cpu=1, duration=101.0).position == 2
    assert given.queue("unknown", cpu=1).position == 3
    assert given.submit("plain", cpu=1).reason is Reason.HELD_FOR_QUEUE
    assert isinstance(given.submit("short", cpu=1, duration=10.0), Pending)


def test_a_more_important_task_is_not_held_back():
    given = busy(100.0, 50.0, 70.0)
    assert given.queue("urgent", cpu=1, priority=6).position == 0


def test_what_is_left_at_the_reserved_start_may_be_used_by_later_tasks():
    given = Mesh(pool("p", cpu=4), nodes=[node("n1", cpu=8)])
    given.run("r", cpu=3, priority=9, duration=50.0)
    given.queue("big", cpu=3)
    given.tick()
    assert given.queue("long", cpu=1, duration=1000.0).position == 0


def test_where_no_estimate_is_known_others_pass_for_a_while_only():
    given = busy(None, None)
    assert given.state.queue.by_id["big"].reservation.at is None
    assert given.queue("first", cpu=1).position == 0
    given.report("first")
    given.now += 3601
    assert given.queue("second", cpu=1).position == 2
    for name in ("r0", "r1", "first"):
        given.complete(name)
    assert list(given.starts) == ["big"]


def test_a_task_goes_to_another_node_than_the_reserved_one():
    given = Mesh(pool("p", cpu=20), pool("q", cpu=20), nodes=[node("a", cpu=4), node("b", cpu=4)])
    given.run("r", cpu=3, priority=9, duration=50.0, node_id="a")
    given.run("s", cpu=3, priority=9, node_id="b")
    given.queue("big", cpu=4)
    given.tick()
    assert given.state.queue.by_id["big"].reservation.node_ids == ("a",)
    given.queue("long", "q", cpu=1)
    assert given.starts["long"].node_id == "b"
    given.report("long")
    assert given.queue("more", "q", cpu=1).position == 1
    check_stored(given)


def test_the_reservation_moves_to_the_task_that_comes_first():
    given = busy(100.0, 50.0, 70.0)
    given.queue("bigger", cpu=4, priority=8)
    given.tick()
    assert list(given.state.queue.reserved) == ["bigger"]
    given.change("bigger", held=True)
    given.tick()
    assert list(given.state.queue.reserved) == ["big"]
    check_stored(given)


def test_what_a_reservation_held_back_starts_with_the_next_step_after_it_is_dropped():
    given = busy(100.0, 50.0, 50.0)
    given.queue("long", cpu=1, duration=1000.0)
    given.tick()
    given.queue("urgent", cpu=2, priority=8.0)
    assert given.waiting() == ["urgent", "big", "long"]
    given.tick()
    assert list(given.state.queue.reserved) == ["urgent"]
    given.delete("unknown")
    assert "long" in given.starts
    check_stored(given)


def test_a_task_without_resources_gets_the_group_that_an_ended_agent_left():
    grouped = pool("p", cpu=4, groups=GroupsSpec(max_dynamic=1, reuse=True))
    given = Mesh(grouped, nodes=[node("n1", cpu=4)])
    given.submit("a", bundles=[{}])
    given.make_all()
    given.report("a")
    given.queue("b", bundles=[{}, {}])
    given.die("a")
    for group_id in sorted(given.removes):
        given.remove(group_id)
    given.make_all()
    assert list(given.starts) == ["b"]
    check_stored(given)


def test_after_the_clock_was_set_back_a_reserved_start_is_that_of_before():
    given = busy(100.0, 50.0, 70.0)
    at = given.state.queue.by_id["big"].reservation.at
    given.tick(101.0)
    assert given.state.queue.by_id["big"].reservation.at == 1130.0
    given.tick(-60.0)
    assert given.state.queue.by_id["big"].reservation.at == at
    check_stored(given)


def test_a_waiting_task_starts_with_the_quota_that_is_held_for_its_pool():
    given = Mesh(pool("p", cpu=4), pool("q", cpu=4))
    given.run("a", "p", cpu=4)
    given.run("b", "q", cpu=4)
    given.queue("waits", "q", cpu=2)
    given.preempt(task_id="a", end_agent=True, for_pool="q")
    given.leave("a")
    assert "waits" in given.starts
    check_stored(given)


# requests that wait until a task runs


def waiting_for_its_start(given, name, **how):
    """Queue a task with a request that is answered when it runs."""
    more = {"until_runs": True, "request_id": f"r-{name}", **how.pop("more", {})}
    return given.queue(name, more=more, **how)


def test_a_request_that_waits_is_answered_when_its_task_runs():
    given = mesh()
    given.run("a", cpu=4)
    assert waiting_for_its_start(given, "b", cpu=4) == Pending(agent_name="b")
    assert waiting_for_its_start(given, "b", cpu=4) == Pending(agent_name="b"), "sent again"
    check_stored(given)
    given.complete("a")
    assert "r-b" not in given.told
    given.report("b")
    assert given.told == ["r-b"]
    assert given.state.answers["r-b"].outcome.task_id == "b"
    check_stored(given)


def test_a_request_that_waits_is_refused_when_its_task_is_cancelled():
    given = mesh()
    given.run("a", cpu=4)
    waiting_for_its_start(given, "b", cpu=4)
    waiting_for_its_start(given, "late", cpu=4, more={"wait_s": 3.0})
    given.cancel("b")
    given.now += 3.0
    given.handle(s.ClockTicked())
    assert given.told == ["r-b", "r-late"]
    reasons = [given.state.answers[r].outcome.reason for r in given.told]
    assert reasons == [Reason.CANCELLED, Reason.WAIT_TIMEOUT]
    assert given.waiting() == []
    check_stored(given)


def test_a_request_goes_on_waiting_when_its_task_found_no_room():
    given = mesh()
    given.run("a", cpu=4)
    waiting_for_its_start(given, "b", cpu=4, more={"wait_s": 100.0})
    given.complete("a")
    order = given.starts.pop("b")
    given.handle(
        s.AgentStartFailed(
            agent_name="b",
            incarnation=order.incarnation,
            reason=Reason.CLUSTER_OUT_OF_RESOURCES,
            error="others use it",
        )
    )
    task = given.state.queue.by_id["b"]
    assert task.expires_at == pytest.approx(given.state.queue.by_id["b"].arrived_at + 100.0)
    assert given.told == []
    given.now += 10.0
    given.handle(s.ClockTicked())
    given.report("b")
    assert given.told == ["r-b"]
    check_stored(given)


def test_several_tasks_are_cancelled_in_one_step():
    given = mesh()
    given.run("a", cpu=4)
    for name in ("b", "c", "d"):
        given.queue(name, cpu=4)
    stimulus = s.TasksCancellationRequested(task_ids=("b", "none", "d", "a"))
    outcome = given.handle(stimulus).outcome
    assert list(outcome.refused) == ["none"]
    assert outcome.refused["none"].reason is Reason.TASK_NOT_FOUND
    assert outcome.ending == ("a",)
    assert given.waiting() == ["c"]
    check_stored(given)


# shares


def test_by_dominant_share_the_pool_that_holds_least_is_served_first():
    given = Mesh(pool("p", cpu=8), pool("q", cpu=8), nodes=[node("n1", cpu=8)])
    given.order_by(order="dominant_share")
    given.run("p1", "p", cpu=4, priority=9)
    given.run("q1", "q", cpu=2, priority=9)
    given.run("busy", "q", cpu=2, priority=9)
    for name in ("p2", "p3"):
        given.queue(name, "p", cpu=1, priority=7)
    for name in ("q2", "q3"):
        given.queue(name, "q", cpu=1, priority=1)
    given.complete("busy")
    assert list(given.starts) == ["q2", "q3"]


def test_a_pool_with_a_greater_weight_may_hold_more():
    heavy = msgspec.structs.replace(pool("p", cpu=8), weight=4.0)
    given = Mesh(heavy, pool("q", cpu=8), nodes=[node("n1", cpu=8)])
    given.order_by(order="dominant_share")
    given.run("p1", "p", cpu=4, priority=9)
    given.run("q1", "q", cpu=2, priority=9)
    given.run("busy", "q", cpu=2, priority=9)
    given.queue("p2", "p", cpu=1)
    given.queue("q2", "q", cpu=2)
    given.complete("busy")
    assert list(given.starts) == ["p2"]


def test_among_borrowers_the_pool_with_the_lowest_share_of_its_cohort_is_served_first():
    pools = [
        msgspec.structs.replace(pool(name, cpu=cpu), cohort="c")
        for name, cpu in (("owner", 4), ("p", 2), ("q", 2))
    ]
    given = Mesh(*pools, nodes=[node("n1", cpu=8)])
    given.run("p1", "p", cpu=2, priority=9)
    given.run("q1", "q", cpu=2, priority=9)
    given.run("p2", "p", cpu=2, priority=9)
    given.run("o1", "owner", cpu=2, priority=9)
    given.queue("p3", "p", cpu=1, priority=8)
    given.queue("q2", "q", cpu=1, priority=2)
    given.complete("o1")
    admitted = [fact.agent.name for fact in given.facts if type(fact).__name__ == "AgentAdmitted"]
    assert admitted[-2:] == ["q2", "p3"]
    check_stored(given)


def test_what_needs_no_less_than_what_fits_on_no_node_fits_on_none():
    no_room = NoRoom()
    one, two, three = (Resources(gpu=n * UNIT) for n in (1, 2, 3))
    labels = (("zone", "a"),)
    assert not no_room
    no_room.add(labels, two)
    assert no_room
    assert [no_room.includes(labels, need) for need in (one, two, three)] == [False, True, True]
    assert not no_room.includes((), three)
    assert not no_room.includes(labels, Resources(cpu=9 * UNIT))
    no_room.add(labels, one)
    assert no_room.includes(labels, one)
    no_room.clear()
    assert not no_room.includes(labels, three)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_remembered_of_places_without_room_is_what_is_found_out_anew(seed):
    dice, no_room = random.Random(seed), NoRoom()
    selectors = ((), (("zone", "a"),), (("zone", "b"),))

    def need():
        return Resources(cpu=dice.randint(0, 4) * UNIT, gpu=dice.randint(0, 4) * UNIT)

    asked = [
        tuple((dice.choice(selectors), need()) for _ in range(dice.randint(1, 4)))
        for _ in range(10)
    ]
    for _ in range(200):
        match dice.randrange(8):
            case 0:
                no_room.forget([dice.choice(({}, {"zone": "a"}, {"zone": "b"}, None))])
            case 1 | 2:
                no_room.add(dice.choice(selectors), need())
            case _:
                places = dice.choice(asked)
                anew = [i for i, place in enumerate(places) if not no_room.includes(*place)]
                if dice.random() < 0.5:
                    assert no_room.includes_all(places) == (not anew)
                assert list(no_room.open_in(places)) == anew
