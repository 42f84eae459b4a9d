"""Maintenance windows: what may start before them, what they end, and when nodes open again."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.reasons import Change, Reason
from schedulemesh.domain.windows import MaintenanceWindow
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Done, Queued, Refused
from tests.engine.builders import Mesh, differences, node, pool, shape

HOUR = 3600.0
BEGIN = 1000.0
#: Grace, saving and cancelling of a single agent by the policy of these tests.
LEAVING_S = 35.0


def mesh_of(*nodes, **policy):
    nodes = nodes or (node("a", cpu=4, labels={"rack": "1"}), node("b", cpu=4))
    mesh = Mesh(pool("p", cpu=100), nodes=nodes)
    if policy:
        mesh.policy(**policy)
    return mesh


def window(name="w", *, start=BEGIN + 10 * HOUR, duration=HOUR, **how):
    how.setdefault("node_ids", ("a",))
    return MaintenanceWindow(name=name, start=start, duration_s=duration, **how)


def create(mesh, *args, **how):
    outcome = mesh.handle(s.WindowRequested(window=window(*args, **how), client="me")).outcome
    check_stored(mesh)
    return outcome


def replace_by(mesh, *args, **how):
    stimulus = s.WindowRequested(window=window(*args, **how), replace=True, client="me")
    outcome = mesh.handle(stimulus).outcome
    check_stored(mesh)
    return outcome


def delete(mesh, name="w"):
    return mesh.handle(s.WindowDeletionRequested(name=name, client="me")).outcome


def check_stored(mesh):
    assert differences(mesh.state, mesh.refolded()) == []
    assert differences(mesh.state, mesh.rewritten()) == []


def go_to(mesh, at):
    """Tick at a time."""
    mesh.now = at
    mesh.tick()
    check_stored(mesh)


def node_of(mesh, name):
    agent = mesh.state.agents.get(name)
    return None if agent is None else agent.node_id


@pytest.mark.parametrize(
    ("limits", "duration", "expected"),
    [
        ({"max_run_s": 5 * HOUR}, None, "a"),
        ({"max_run_s": 10 * HOUR - LEAVING_S}, None, "a"),
        ({"max_run_s": 10 * HOUR - LEAVING_S + 1}, None, None),
        ({"max_run_s": 20 * HOUR}, 3 * HOUR, "a"),
        ({}, 3 * HOUR, "a"),
        ({}, 10 * HOUR, None),
        ({}, None, "a"),
    ],
)
def test_a_task_starts_before_a_window_only_if_it_is_over_by_then(limits, duration, expected):
    mesh = mesh_of(node("a", cpu=4))
    create(mesh)
    mesh.queue("t", cpu=4, limits=limits, duration=duration)
    assert node_of(mesh, "t") == expected


def test_a_task_that_would_reach_into_a_window_gets_another_node():
    mesh = mesh_of()
    create(mesh)
    mesh.submit("t", cpu=4, duration=20 * HOUR)
    assert node_of(mesh, "t") == "b"


@pytest.mark.parametrize(("before", "starts"), [(HOUR + 1, True), (HOUR - 1, False)])
def test_a_task_without_a_known_end_starts_until_the_notice(before, starts):
    mesh = mesh_of(node("a", cpu=4))
    create(mesh)
    mesh.now = BEGIN + 10 * HOUR - before
    mesh.queue("t", cpu=4)
    assert (node_of(mesh, "t") is not None) == starts


@pytest.mark.parametrize(("repeat", "starts"), [("weekly", True), ("", False)])
def test_what_is_longer_than_the_time_between_two_windows_starts_until_the_notice(repeat, starts):
    mesh = mesh_of(node("a", cpu=4))
    create(mesh, repeat=repeat)
    mesh.queue("t", cpu=4, duration=8 * 24 * HOUR)
    assert (node_of(mesh, "t") is not None) == starts


def test_what_still_runs_is_evicted_when_its_eviction_may_take_all_the_time_left():
    mesh = mesh_of()
    create(mesh)
    mesh.run("t", cpu=4, class_key="c", more={"queue": True})
    node_id = node_of(mesh, "t")
    assert node_id == "a"
    go_to(mesh, BEGIN + 10 * HOUR - LEAVING_S - 1)
    assert not mesh.ends
    go_to(mesh, BEGIN + 10 * HOUR - LEAVING_S)
    mesh.leave("t", saved=True)
    assert mesh.starts["t"].node_id == "b", "it goes on elsewhere"
    record = mesh.state.evictions.of_task("t")
    assert (record.reason, record.client) == ("for_window", "window w")
    mesh.report("t")
    assert mesh.state.running.by_id["t"].attempts.preemptions == 0


def test_nodes_are_drained_while_a_window_is_open_and_open_again_after_it():
    mesh = mesh_of(node("a", cpu=4))
    create(mesh)
    go_to(mesh, BEGIN + 10 * HOUR)
    drain = mesh.state.drains.nodes["a"]
    assert (drain.window, drain.client, mesh.state.cluster.nodes["a"].cordoned) == (
        "w",
        "window w",
        True,
    )
    mesh.queue("t", cpu=4)
    assert node_of(mesh, "t") is None
    go_to(mesh, BEGIN + 11 * HOUR)
    assert node_of(mesh, "t") == "a"
    assert not mesh.state.windows.by_name, "it does not come again"


def test_a_window_that_comes_again_closes_its_nodes_each_time():
    mesh = mesh_of(node("a", cpu=4))
    create(mesh, repeat="daily")
    for day in range(3):
        begin = BEGIN + 10 * HOUR + day * 24 * HOUR
        go_to(mesh, begin - 1)
        assert not mesh.state.drains
        go_to(mesh, begin)
        assert "a" in mesh.state.drains.nodes
        go_to(mesh, begin + HOUR)
        assert not mesh.state.drains
        assert "w" in mesh.state.windows.by_name


def test_a_node_that_was_cordoned_or_drained_otherwise_stays_so():
    mesh = mesh_of()
    mesh.cordon("a")
    create(mesh, node_ids=())
    go_to(mesh, BEGIN + 10 * HOUR)
    mesh.handle(s.DrainRequested(node_id="b", client="me"))
    go_to(mesh, BEGIN + 11 * HOUR)
    assert [n.node_id for n in mesh.state.cluster.nodes.values() if n.cordoned] == ["a", "b"]
    assert list(mesh.state.drains.nodes) == ["b"]


def test_overlapping_windows_close_a_node_until_the_last_is_over():
    mesh = mesh_of()
    create(mesh)
    create(mesh, "later", start=BEGIN + 10.5 * HOUR)
    go_to(mesh, BEGIN + 10 * HOUR)
    go_to(mesh, BEGIN + 11 * HOUR)
    assert mesh.state.drains.nodes["a"].window == "later"
    go_to(mesh, BEGIN + 11.5 * HOUR)
    assert not mesh.state.drains
    assert not mesh.state.cluster.nodes["a"].cordoned


def test_windows_by_label_are_for_nodes_that_join_later_too():
    mesh = mesh_of()
    create(mesh, node_ids=(), node_labels=(("rack", "1"),))
    go_to(mesh, BEGIN + 10 * HOUR)
    assert list(mesh.state.drains.nodes) == ["a"]
    mesh.observe(
        node("a", cpu=4, labels={"rack": "1"}), node("b", cpu=4), node("c", labels={"rack": "1"})
    )
    mesh.tick()
    assert list(mesh.state.drains.nodes) == ["a", "c"]


def test_a_window_is_created_once_and_deleted():
    mesh = mesh_of()
    assert create(mesh) == Done(change=Change.CREATED)
    assert create(mesh) == Done(change=Change.UNCHANGED)
    assert create(mesh, duration=2 * HOUR).reason is Reason.WINDOW_EXISTS
    assert create(mesh, "old", start=1.0, duration=2.0).reason is Reason.WINDOW_OVER
    assert delete(mesh, "v").reason is Reason.WINDOW_NOT_FOUND
    assert delete(mesh) == Done(change=Change.DELETED)
    assert not mesh.state.windows.by_name


def test_deleting_an_open_for_window_its_nodes_and_undrain_does_not():
    mesh = mesh_of()
    create(mesh, start=BEGIN - HOUR, duration=5 * HOUR)
    assert mesh.state.drains.nodes["a"].window == "w", "it has begun already"
    refused = mesh.handle(s.DrainRequested(node_id="a", drained=False, client="me")).outcome
    assert refused.reason is Reason.MAINTENANCE_WINDOW
    delete(mesh)
    assert not mesh.state.drains
    assert not mesh.state.cluster.nodes["a"].cordoned
    check_stored(mesh)


def test_a_window_that_has_begun_evicts_at_once():
    mesh = mesh_of(node("a", cpu=4))
    mesh.run("t", cpu=4)
    create(mesh, start=BEGIN - HOUR, duration=5 * HOUR)
    assert list(mesh.ends) == ["t"]


def test_the_first_task_waits_for_the_end_of_the_window_and_shorter_ones_start_before():
    mesh = mesh_of(node("a", cpu=4))
    create(mesh)
    mesh.queue("long", cpu=4, duration=20 * HOUR)
    go_to(mesh, BEGIN + 1)
    assert mesh.state.queue.by_id["long"].reservation.at == BEGIN + 11 * HOUR
    mesh.queue("short", cpu=4, duration=HOUR)
    go_to(mesh, BEGIN + 2)
    assert node_of(mesh, "short") == "a", "of the same class, and over before the window"
    mesh.report("short")
    mesh.complete("short")
    mesh.queue("open-ended", cpu=4)
    go_to(mesh, BEGIN + 3)
    assert node_of(mesh, "long") is None


def test_a_reserved_start_is_on_the_node_that_is_open_for_long_enough():
    mesh = mesh_of()
    create(mesh)
    mesh.run("x", cpu=4, duration=2 * HOUR, node_id="b")
    create(mesh, "b", start=BEGIN + 2 * HOUR, duration=HOUR, node_ids=("b",))
    mesh.queue("long", cpu=4, duration=20 * HOUR)
    go_to(mesh, BEGIN + 1)
    reservation = mesh.state.queue.by_id["long"].reservation
    assert (reservation.at, reservation.node_ids) == (BEGIN + 3 * HOUR, ("b",))


def test_explain_names_the_window_that_a_task_waits_for():
    mesh = mesh_of(node("a", cpu=4))
    create(mesh)
    mesh.queue("t", cpu=4, duration=20 * HOUR)
    explained = mesh.engine.explain("t", mesh.now)
    assert explained.reason == Reason.MAINTENANCE_WINDOW
    assert explained.error == (
        "a would have room for cpu 4, but maintenance window 'w' opens there in 10h, and this is over after "
        "20h"
    )
    assert explained.earliest_start == BEGIN + 11 * HOUR
    cause = mesh.engine.wait_causes(mesh.now).cause_of(mesh.state.queue.by_id["t"])
    assert cause.reason is Reason.MAINTENANCE_WINDOW
    go_to(mesh, BEGIN + 10 * HOUR)
    explained = mesh.engine.explain("t", mesh.now)
    assert explained.error == (
        "a would have room for cpu 4, but maintenance window 'w' is open there for another 1h"
    )


def test_a_refusal_names_the_window():
    mesh = mesh_of(node("a", cpu=4))
    create(mesh)
    refused = mesh.submit("t", cpu=4, duration=20 * HOUR)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.MAINTENANCE_WINDOW


def test_explain_tells_a_task_that_runs_when_the_window_ends_it():
    mesh = mesh_of(node("a", cpu=4))
    create(mesh)
    mesh.run("t", cpu=4)
    explained = mesh.engine.explain("t", mesh.now)
    sentence = "it is evicted in 9h59m for window 'w' of node a, unless it ends before"
    assert sentence in explained.detail


def test_others_are_evicted_only_where_the_task_may_be():
    mesh = mesh_of(enable_cross_pool_preemption=False)
    mesh.run("low-a", priority=1.0, cpu=4, node_id="a", class_key="c")
    mesh.run("low-b", priority=1.0, cpu=4, node_id="b", class_key="c")
    create(mesh)
    mesh.handle(s.ClassProbed(class_key="c"))
    mesh.queue("high", priority=9.0, cpu=4, duration=20 * HOUR, class_key="c")
    assert list(mesh.ends) == ["low-b"]


@pytest.mark.parametrize("flavors", [None, {"one": {"model": "1"}, "two": {"model": "2"}}])
def test_a_task_takes_the_alternative_whose_nodes_no_window_closes(flavors):
    models = [node(f"n{number}", gpu=1, labels={"model": str(number)}) for number in (1, 2)]
    quota = {"gpu": 2} if flavors is None else {"custom": {"gpu@one": 1, "gpu@two": 1}}
    mesh = Mesh(pool("p", **quota, **({"flavors": flavors} if flavors else {})), nodes=models)
    create(mesh, node_ids=(), node_labels=(("model", "1"),))
    labels = {"node_labels": {"model": "1"}, "fallbacks": [{"model": "2"}]}
    mesh.queue("t", gpu=1, duration=20 * HOUR, **({} if flavors else labels))
    assert node_of(mesh, "t") == "n2"
    mesh.queue("u", gpu=1, duration=20 * HOUR, **({} if flavors else labels))
    go_to(mesh, BEGIN + 1)
    explained = mesh.engine.explain("u", mesh.now)
    assert Reason.MAINTENANCE_WINDOW in [one.reason for one in explained.alternatives]


def test_a_gang_is_placed_outside_of_windows():
    mesh = mesh_of(*(node(name, cpu=4) for name in "abc"))
    create(mesh)
    bundles = [{"cpu": 4}] * 2
    mesh.queue("g", bundles=bundles, payload=GangPayload(), duration=20 * HOUR)
    assert sorted(next(iter(mesh.makes.values())).node_ids) == ["b", "c"]
    mesh.queue("h", bundles=bundles, payload=GangPayload(), duration=20 * HOUR)
    go_to(mesh, BEGIN + 1)
    assert "h" in mesh.waiting()


def test_a_gang_waits_for_the_end_of_a_window_of_its_only_nodes():
    mesh = mesh_of(node("a", cpu=4), node("b", cpu=4))
    create(mesh, node_ids=())
    mesh.queue("g", bundles=[{"cpu": 4}] * 2, payload=GangPayload(), duration=20 * HOUR)
    go_to(mesh, BEGIN + 1)
    assert mesh.state.queue.by_id["g"].reservation.at == BEGIN + 11 * HOUR
    assert mesh.engine.explain("g", mesh.now).reason == Reason.MAINTENANCE_WINDOW
    go_to(mesh, BEGIN + 10 * HOUR)
    go_to(mesh, BEGIN + 11 * HOUR)
    assert "g" in mesh.state.agents


def test_estimates_of_earlier_runs_count_where_the_queue_counts_them():
    mesh = mesh_of(node("a", cpu=4))
    mesh.order_by(estimates=True)
    for number in range(3):
        mesh.run(f"run-{number}", cpu=4, owner="ada")
        mesh.now += 5 * HOUR
        mesh.complete(f"run-{number}")
    create(mesh, start=mesh.now + 4 * HOUR)
    mesh.queue("run-4", cpu=4, owner="ada")
    assert node_of(mesh, "run-4") is None
    mesh.order_by(estimates=False)
    mesh.tick()
    assert node_of(mesh, "run-4") == "a"


def test_a_window_changes_nothing_for_tasks_that_wait_for_quota():
    mesh = Mesh(pool("p", cpu=2), nodes=(node("a", cpu=4),))
    create(mesh)
    mesh.run("x", cpu=2)
    outcome = mesh.queue("t", cpu=2, duration=20 * HOUR)
    assert isinstance(outcome, Queued)
    assert mesh.engine.explain("t", mesh.now).reason == Reason.INSUFFICIENT_QUOTA


RESERVED = (
    ({"pools": ("q",)}, {"pool_name": "q"}),
    ({"owners": ("ada",)}, {"owner": "ada"}),
    ({"labels": {"team": "x"}}, {"labels": {"team": "x", "tier": "gold"}}),
    ({"pools": ("q",), "owners": ("ada",)}, {"owner": "ada"}),
)


def test_a_reservation_for_a_pool_that_there_is_not_is_refused():
    outcome = create(mesh_of(), pools=("p", "qq"))
    assert (outcome.reason, "'qq'" in outcome.error) == (Reason.POOL_NOT_FOUND, True)


def reserved_mesh(*nodes, **whom):
    mesh = mesh_of(*(nodes or (node("a", cpu=4),)))
    mesh.resize(pool("q", cpu=100))
    create(mesh, **whom)
    return mesh


@pytest.mark.parametrize(("whom", "task"), RESERVED)
def test_nodes_are_reserved_for_some_tasks_and_closed_to_all_others(whom, task):
    mesh = reserved_mesh(**whom)
    mesh.queue("other", cpu=2, duration=20 * HOUR)
    mesh.queue("long", cpu=2, duration=20 * HOUR, **task)
    assert (node_of(mesh, "other"), node_of(mesh, "long")) == (None, "a")
    explained = mesh.engine.explain("other", mesh.now)
    assert explained.reason == Reason.NODE_RESERVED
    assert "which reserves it for tasks" in explained.error
    go_to(mesh, BEGIN + 10 * HOUR)
    assert not mesh.state.cluster.nodes["a"].cordoned
    assert not mesh.state.drains
    mesh.queue("in time", cpu=1, **task)
    mesh.queue("too late", cpu=1)
    go_to(mesh, BEGIN + 10.5 * HOUR)
    assert (node_of(mesh, "in time"), node_of(mesh, "too late")) == ("a", None)
    assert mesh.engine.explain("too late", mesh.now).reason == Reason.NODE_RESERVED
    go_to(mesh, BEGIN + 11 * HOUR)
    assert node_of(mesh, "too late") == "a"


def test_others_leave_reserved_nodes_in_time_and_those_stay_for_whom_they_are():
    mesh = reserved_mesh(pools=("q",), repeat="daily")
    mesh.run("other", cpu=2)
    mesh.run("mine", "q", cpu=2)
    go_to(mesh, BEGIN + 10 * HOUR - LEAVING_S)
    assert list(mesh.ends) == ["other"]
    mesh.leave("other")
    mesh.queue("next", cpu=2)
    for day in (0, 1):
        go_to(mesh, BEGIN + 11 * HOUR + day * 24 * HOUR - 1)
        assert node_of(mesh, "next") is None
        go_to(mesh, BEGIN + 11 * HOUR + day * 24 * HOUR)
        assert node_of(mesh, "next") == "a"
        mesh.report("next")
        mesh.complete("next")
        go_to(mesh, BEGIN + 34 * HOUR + day * 24 * HOUR - 1)
        mesh.queue("next", cpu=2)
    assert "mine" in mesh.state.agents


def test_a_reservation_follows_its_pool_to_another_name():
    mesh = reserved_mesh(pools=("q",))
    mesh.rename_pool("q", "r")
    assert mesh.state.windows.by_name["w"].pools == ("r",)
    check_stored(mesh)


def test_groups_of_other_pools_leave_reserved_nodes():
    mesh = mesh_of(node("a", cpu=4))
    groups = GroupsSpec(reserved=(shape({"cpu": 2}),))
    mesh.resize(pool("g", cpu=4, groups=groups))
    mesh.make_all()
    create(mesh, pools=("p",))
    go_to(mesh, BEGIN + 10 * HOUR)
    (group_id,) = mesh.removes
    mesh.remove(group_id)
    go_to(mesh, BEGIN + 10.5 * HOUR)
    assert not mesh.makes, "it is not created again while the nodes are reserved"
    go_to(mesh, BEGIN + 11 * HOUR)
    assert mesh.makes


def test_a_window_is_stored_as_it_was_given():
    mesh = mesh_of()
    create(
        mesh, repeat="weekly", comment="new drivers", utc_offset=60, notice_s=60.0, owners=("a",)
    )
    stored = mesh.rewritten().windows.by_name["w"]
    assert stored == mesh.state.windows.by_name["w"]
    assert stored.time_text(0.0) == "1970-01-01T01:00+01:00"


def test_an_occurrence_is_the_one_in_progress_or_the_next():
    one = window(start=100.0, duration=10.0)
    assert one.occurrence(0.0) == one.occurrence(109.9) == (100.0, 110.0)
    assert one.occurrence(110.0) is None
    daily = msgspec.structs.replace(one, repeat="daily")
    for day in (0, 1, 365 * 30):
        begin = 100.0 + day * 86_400
        assert daily.occurrence(begin) == daily.occurrence(begin - 1) == (begin, begin + 10.0)


def test_a_window_is_replaced_in_one_step_and_its_nodes_stay_closed():
    mesh = mesh_of()
    assert replace_by(mesh, start=BEGIN, duration=HOUR) == Done(change=Change.CREATED)
    go_to(mesh, BEGIN + 60)
    assert mesh.state.drains.nodes["a"].window == "w"
    mesh.queue("t", cpu=4)
    assert node_of(mesh, "t") == "b"
    mesh.queue("waits", cpu=4)
    assert create(mesh, start=BEGIN, duration=2 * HOUR).reason is Reason.WINDOW_EXISTS
    assert replace_by(mesh, start=BEGIN, duration=2 * HOUR) == Done(change=Change.CHANGED)
    assert replace_by(mesh, start=BEGIN, duration=2 * HOUR) == Done(change=Change.UNCHANGED)
    assert mesh.waiting() == ["waits"]
    go_to(mesh, BEGIN + HOUR)
    assert (set(mesh.state.drains.nodes), mesh.waiting()) == ({"a"}, ["waits"])
    refused = replace_by(mesh, start=BEGIN - HOUR, duration=60)
    assert refused.reason is Reason.WINDOW_OVER
    assert replace_by(mesh, start=BEGIN + 9 * HOUR) == Done(change=Change.CHANGED)
    mesh.tick(1.0)
    assert (set(mesh.state.drains.nodes), node_of(mesh, "waits")) == (set(), "a")
