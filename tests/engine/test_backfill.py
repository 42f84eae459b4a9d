"""Which tasks pass those that wait for a reserved start, and in which order."""

import pytest
from msgspec import structs

from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import AgentAdmitted
from schedulemesh.engine.messages.query import PreemptionQuery
from tests.engine.builders import NOTHING, Mesh, amount, node, pool, shape

LENDING = {"cohort": "all"}


def greedy(spec):
    return structs.replace(spec, queueing="greedy")


def reserved_at(mesh, task_id):
    return mesh.state.queue.by_id[task_id].reservation.at


def admitted(mesh, since):
    return [fact.task.task_id for fact in mesh.facts[since:] if isinstance(fact, AgentAdmitted)]


def test_the_first_task_is_not_refused_for_what_a_later_one_would_have_delayed():
    """The smaller one is tried before, because the first one borrows."""
    mesh = Mesh(
        pool("p", gpu=4, cpu=10, lending=LENDING),
        pool("r", gpu=8, lending=LENDING),
        nodes=[node("n1", gpu=8, cpu=16)],
    )
    mesh.order_by(order="fifo", backfill_limit_s=0.0)
    mesh.run("busy", "r", gpu=2)
    mesh.queue("first", gpu=8)
    mesh.tick(1)
    mesh.queue("small", gpu=2)
    mesh.complete("busy")
    assert mesh.waiting() == ["small"]


def test_an_owner_whose_quota_is_on_loan_takes_idle_quota_before_a_reserved_start():
    """ "first" asks for more than its pool owns, "later" for what its pool owns and others hold."""
    mesh = Mesh(
        pool("p", gpu=5, cpu=64, lending=LENDING),
        pool("lender", gpu=4, cpu=64, lending=LENDING),
        pool("borrower", cpu=64, lending=LENDING),
        nodes=[node(f"n{number}", gpu=4, cpu=64) for number in range(3)],
    )
    mesh.order_by(order="fifo")
    mesh.run("own", "p", gpu=2, duration=5000.0)
    mesh.run("stays", "lender", gpu=2, duration=1000.0)
    mesh.run("ends", "lender", gpu=2)
    mesh.run("borrows", "borrower", gpu=3, duration=1000.0)
    mesh.complete("ends")
    assert mesh.state.ledger.accounts["p"].lent == amount(gpu=3)
    mesh.queue("first", "p", gpu=4, duration=100.0)
    mesh.tick(1)
    assert reserved_at(mesh, "first") is not None
    mesh.queue("later", "p", gpu=2, duration=5000.0)
    mesh.tick(2)
    assert (mesh.waiting(), mesh.ends) == (["first"], {})


def test_one_that_needs_less_and_would_delay_a_start_does_not_stop_an_owner_whose_quota_is_on_loan():
    """ "small" would take the last quota that its pool has at hand; "later" takes back what is lent, and then
    "small" can, too.
    """
    mesh = Mesh(
        pool("p", gpu=6, cpu=64, lending=LENDING),
        pool("lender", gpu=4, cpu=64, lending=LENDING),
        pool("borrower", cpu=64, lending=LENDING),
        nodes=[node(f"n{number}", gpu=8, cpu=64) for number in range(2)],
    )
    mesh.order_by(order="fifo", backfill_limit_s=0.0)
    mesh.run("own", "p", gpu=3)
    mesh.run("stays", "lender", gpu=2)
    mesh.run("ends", "lender", gpu=2)
    mesh.run("borrows", "borrower", gpu=2)
    mesh.complete("ends")
    mesh.queue("first", "p", gpu=4)
    mesh.tick(1)
    mesh.queue("small", "p", gpu=1)
    assert mesh.waiting() == ["first", "small"]
    mesh.queue("later", "p", gpu=2)
    mesh.tick(2)
    assert (mesh.waiting(), mesh.ends) == (["first"], {})


def test_what_is_placed_by_ray_does_not_wait_for_room_on_a_node():
    mesh = Mesh(pool("p", gpu=16, cpu=100), nodes=[node("n1", gpu=8, cpu=100)])
    by_ray = {"choose_node": False}

    def start_by_ray(name, **how):
        mesh.queue(name, more=by_ray, **how)
        order = mesh.starts.pop(name)
        reported = s.AgentReported(agent_name=name, incarnation=order.incarnation, node_id=None)
        mesh.handle(reported)

    mesh.run("busy", gpu=4, duration=1000.0)
    start_by_ray("filler", gpu=6)
    start_by_ray("short", gpu=5, duration=10.0)
    mesh.queue("first", gpu=8, duration=100.0)
    mesh.tick(1)
    mesh.queue("long", gpu=2, duration=5000.0)
    mesh.queue("by-ray", gpu=2, duration=5000.0, more=by_ray)
    mesh.now += 5
    mesh.complete("short")
    assert mesh.waiting() == ["first", "long"]


def test_estimates_and_declared_durations_are_not_compared_with_each_other():
    """Estimates do not count any more for the reserved start, but declared durations do."""
    mesh = Mesh(
        pool("p", gpu=8, cpu=100), pool("q", gpu=8, cpu=100), nodes=[node("n1", gpu=8, cpu=100)]
    )
    mesh.order_by(order="fifo", estimates=True, backfill_limit_s=30.0)
    for n in range(4):
        mesh.run(f"past-{n}", gpu=2, owner="al")
        mesh.now += 50
        mesh.complete(f"past-{n}")
    mesh.run("busy", gpu=6, duration=60.0)
    mesh.run("short", gpu=2, duration=60.0)
    mesh.queue("first", gpu=8, duration=100.0)
    mesh.tick(1)
    mesh.queue("before", "q", gpu=6, duration=3000.0)
    mesh.change("before", to_front=True)
    mesh.complete("busy")
    mesh.report("before")
    mesh.queue("estimated", gpu=2, owner="al")
    mesh.queue("declared", gpu=2, duration=100.0)
    mesh.tick(100)
    mesh.complete("short")
    mesh.tick(1)
    assert reserved_at(mesh, "first") == 4201.0
    mesh.tick(1)
    assert mesh.waiting() == ["first", "estimated"]


def test_a_later_task_of_a_class_that_has_to_borrow_waits_for_its_pool_to_be_served():
    """The pool with the lowest share may borrow first."""

    def usage(gpus):
        used = amount(gpu=gpus) if gpus else NOTHING
        mesh.observe(node("n1", gpu=16, cpu=10, others=used))

    mesh = Mesh(
        pool("p", gpu=2, cpu=100, lending=LENDING),
        pool("q", cpu=100, lending=LENDING),
        pool("r", gpu=2, lending=LENDING),
        nodes=[node("n1", gpu=16, cpu=10)],
        usage_half_life_s=0.0,
    )
    mesh.order_by(order="fifo")
    mesh.run("own", gpu=2)
    mesh.run("borrower", gpu=1)
    mesh.run("busy", cpu=5, duration=100.0)
    usage(13)
    mesh.complete("own")
    usage(15)
    mesh.queue("first", cpu=10, duration=50.0)
    mesh.tick(1)
    mesh.queue("long", cpu=1, gpu=1, duration=500.0)
    mesh.queue("takes-own-quota", gpu=2, duration=5.0)
    mesh.queue("short", cpu=1, gpu=1, duration=10.0)
    mesh.queue("of-q", "q", gpu=1, duration=5.0)
    since = len(mesh.facts)
    usage(0)
    assert admitted(mesh, since) == ["takes-own-quota", "of-q"]


def test_a_task_that_joins_does_not_pass_an_equal_one_that_may_start_by_now():
    mesh = Mesh(pool("p", gpu=8, cpu=100), nodes=[node("n1", gpu=8, cpu=100)])
    mesh.run("busy", gpu=6, duration=100.0)
    mesh.queue("first", gpu=8, duration=100.0)
    mesh.tick(139)
    assert reserved_at(mesh, "first") == 1140.0
    mesh.queue("earlier", gpu=2, duration=38.0)
    mesh.tick(1)
    assert reserved_at(mesh, "first") == 1180.0, "what runs has outlived its expected end"
    mesh.queue("later", gpu=2, duration=39.0)
    assert mesh.waiting() == ["first", "later"]


def test_a_task_that_fits_but_has_to_wait_for_another_pool_holds_back_nobody_else():
    mesh = Mesh(
        *(pool(name, gpu=8, cpu=100) for name in ("h", "p", "q")),
        nodes=[node("n1", gpu=8, cpu=100)],
    )
    mesh.order_by(order="fifo")
    mesh.run("busy", "h", gpu=6, duration=10_000.0)
    mesh.queue("first", "h", gpu=8, duration=100.0)
    mesh.tick(1)
    mesh.queue("long", "p", gpu=2, duration=1e6)
    mesh.tick(1)
    assert reserved_at(mesh, "long") == reserved_at(mesh, "first") == 11_000.0
    mesh.queue("short", "p", gpu=1, duration=10.0, labels={"of": "another class"})
    mesh.queue("of-q", "q", gpu=1, duration=10.0)
    assert mesh.waiting() == ["long"]
    assert not mesh.waiting("q")


def test_a_task_that_could_never_start_holds_back_nobody():
    mesh = Mesh(pool("p", gpu=8, cpu=100), nodes=[node("n1", gpu=4, cpu=100)])
    mesh.order_by(order="fifo", backfill_limit_s=60.0)
    mesh.queue("too-large-for-nodes", gpu=8)
    mesh.tick(100)
    mesh.queue("small", gpu=1)
    assert mesh.waiting() == ["too-large-for-nodes"]
    mesh.observe(node("n1", gpu=4, cpu=100), node("n2", gpu=8, cpu=100))
    mesh.resize(pool("p", gpu=6, cpu=100))
    mesh.tick(100)
    mesh.queue("another", gpu=1)
    assert mesh.waiting() == ["too-large-for-nodes"]


def test_behind_a_task_that_could_never_start_the_next_one_gets_a_reserved_start():
    mesh = Mesh(pool("p", gpu=8, cpu=100), nodes=[node("n1", gpu=4, cpu=100)])
    mesh.order_by(order="fifo")
    mesh.run("busy", gpu=3, duration=100.0)
    mesh.queue("too-large", gpu=8)
    mesh.queue("next", gpu=4)
    mesh.tick(1)
    assert mesh.state.queue.by_id["too-large"].reservation is None
    assert reserved_at(mesh, "next") == 1100.0
    mesh.queue("long", gpu=1, duration=1000.0)
    assert mesh.waiting() == ["too-large", "next", "long"]


def test_the_next_one_is_not_passed_before_the_tick_that_reserves_its_start():
    mesh = Mesh(pool("p", gpu=8, cpu=100), nodes=[node("n1", gpu=4, cpu=100)])
    mesh.order_by(order="fifo")
    mesh.run("busy", gpu=3, duration=100.0)
    mesh.queue("too-large", gpu=8)
    mesh.queue("next", gpu=4)
    mesh.queue("long", gpu=1, duration=1e6)
    assert mesh.waiting() == ["too-large", "next", "long"]
    assert reserved_at(mesh, "next") == 1100.0


def test_the_first_task_of_a_pool_that_is_drained_holds_back_nobody():
    mesh = Mesh(
        pool("p", gpu=8, cpu=100), pool("q", gpu=8, cpu=100), nodes=[node("n1", gpu=8, cpu=100)]
    )
    mesh.order_by(order="fifo", backfill_limit_s=0.0)
    mesh.run("busy", gpu=4)
    mesh.queue("first", gpu=8)
    mesh.tick(1)
    mesh.handle(s.DrainRequested(pool_name="p"))
    mesh.tick(1)
    mesh.queue("of-q", "q", gpu=4)
    assert not mesh.waiting("q")


def test_a_task_that_waits_for_one_whose_start_is_not_known_holds_back_nobody():
    mesh = Mesh(
        *(pool(name, gpu=16, cpu=100) for name in ("h", "p", "q")),
        nodes=[node("n1", gpu=8, cpu=24)],
    )
    mesh.order_by(order="fifo", backfill_limit_s=0.0)
    mesh.run("busy", "h", gpu=6)
    mesh.queue("first", "h", gpu=8)
    mesh.tick(1)
    mesh.queue("needs-gpus", "p", gpu=2, cpu=16)
    mesh.tick(1)
    mesh.queue("of-q", "q", cpu=16)
    assert (mesh.waiting("h"), mesh.waiting("p")) == (["first"], ["needs-gpus"])
    assert not mesh.waiting("q")


def test_a_task_that_joins_does_not_pass_an_equal_one_whose_time_has_come():
    mesh = Mesh(pool("p", gpu=1), nodes=[node("n1", gpu=1)])
    mesh.handle(s.ClassProbed(class_key="c"))
    mesh.queue("tried-again", gpu=1, class_key="c", run="train", retries=1)
    mesh.die("tried-again")
    mesh.now += 5
    mesh.queue("later", gpu=1, class_key="c")
    assert mesh.waiting() == ["later"]


def test_the_time_until_which_estimates_count_is_not_forgotten_while_another_is_first():
    mesh = Mesh(pool("p", gpu=8, cpu=100), nodes=[node("n1", gpu=8, cpu=100)])
    mesh.order_by(order="priority", estimates=True)
    mesh.run("busy", gpu=8, duration=100.0, priority=9.0)
    mesh.queue("first", gpu=8)
    mesh.tick(1)
    before = mesh.state.queue.by_id["first"].reservation.first_at
    mesh.queue("urgent", gpu=8, priority=9.0)
    mesh.tick(1)
    assert mesh.state.queue.by_id["first"].reservation is None
    mesh.cancel("urgent")
    mesh.tick(150)  # by then its start is not known any more
    assert mesh.state.queue.by_id["first"].reservation.first_at == before == 1100.0


def test_what_the_first_task_does_not_need_is_free_for_others():
    mesh = Mesh(pool("p", gpu=8, cpu=100), pool("q", cpu=100), nodes=[node("n1", gpu=8, cpu=100)])
    mesh.order_by(order="fifo", backfill_limit_s=60.0)
    mesh.run("runs", gpu=4)
    mesh.queue("first", gpu=8)
    mesh.tick(100)
    mesh.queue("of-p", cpu=1)
    mesh.queue("of-q", "q", cpu=1)
    mesh.queue("needs-a-gpu", gpu=1)
    assert mesh.waiting() == ["first", "needs-a-gpu"]
    assert not mesh.waiting("q")


def test_a_spare_reserved_group_is_found_behind_a_task_that_may_not_have_it():
    groups = GroupsSpec(reserved=(shape({"cpu": 1, "gpu": 1}),), dynamic=True, max_dynamic=1)
    mesh = Mesh(
        greedy(pool("p", gpu=8, cpu=8, groups=groups)),
        nodes=[node("n1", gpu=8, cpu=8)],
        same_pool_priority_threshold=1e6,
    )
    mesh.make_all()
    mesh.run("has-the-reserved-one", gpu=1, priority=9.0)
    mesh.queue("has-the-dynamic-one", gpu=1, priority=1.0)
    mesh.make_all()
    mesh.report("has-the-dynamic-one")
    mesh.queue("low", gpu=1, priority=1.0)
    mesh.change("low", to_front=True)
    mesh.queue("nearly-entitled", gpu=1, priority=groups.entitled_above)
    mesh.complete("has-the-reserved-one")
    assert mesh.waiting() == ["low"]


def test_no_class_takes_all_that_a_pass_looks_at():
    mesh = Mesh(
        pool("h", gpu=8, cpu=100),
        greedy(pool("p", gpu=8, cpu=100)),
        greedy(pool("q", gpu=8, cpu=100)),
        nodes=[node("n1", gpu=8, cpu=100)],
    )
    mesh.order_by(order="fifo")
    mesh.run("busy", "h", gpu=6, duration=1e5)
    mesh.run("brief", "h", gpu=2, duration=50.0)
    mesh.queue("first", "h", gpu=8, duration=100.0)
    mesh.tick(1)
    many = [mesh.submission(f"long-{n}", gpu=2, duration=1e6 + n) for n in range(2_100)]
    last = mesh.submission("last-of-p", gpu=2, duration=20.0)
    for submission in (*many, last):
        mesh.engine.handle(structs.replace(submission, queue=True), mesh.now)
    mesh.queue("long", "q", gpu=2, duration=1e6)
    mesh.queue("short", "q", gpu=2, duration=10.0)
    mesh.now += 10
    mesh.complete("brief")
    assert mesh.waiting("q") == ["long"]


# starts with evictions


def _with_reserved_start():
    """A first task of pool p waits for the whole node; of the tasks there one that anybody may evict ends
    before the other.
    """
    mesh = Mesh(pool("p", gpu=8, cpu=8), pool("q", gpu=8, cpu=8), nodes=[node("n0", gpu=4)])
    mesh.run("long", "p", 9.0, gpu=2, duration=100.0)
    mesh.run("short", "q", -10.0, gpu=2, duration=20.0)
    mesh.queue("first", "p", 5.0, gpu=4)
    mesh.tick()
    assert mesh.state.queue.by_id["first"].reservation.node_ids == ("n0",)
    return mesh


@pytest.mark.parametrize("pool_name", ["p", "q"])
def test_nobody_is_evicted_for_a_submission_that_would_delay_a_reserved_start(pool_name):
    mesh = _with_reserved_start()
    later = {"name": "later", "pool_name": pool_name, "priority": 4.0, "gpu": 2}
    for refused in (
        mesh.submit(**later),
        mesh.dry(**later),
        mesh.dry(**later, more={"queue": True}),
    ):
        assert refused.reason == "held_for_queue"
        assert refused.error == (
            "the eviction of 1 task would make room for it, but its start would delay those that are "
            "reserved for 'first'"
        )
    mesh.queue(**later)
    mesh.tick(1.0)
    assert mesh.waiting(pool_name)[-1] == "later"
    assert mesh.ends == {}
    query = PreemptionQuery(priority=4.0, pool_name=pool_name, resources=amount(gpu=2))
    evaluated = mesh.engine.evaluate(query, mesh.now)
    assert (evaluated.should_preempt, evaluated.reason) == (False, Reason.HELD_FOR_QUEUE)
    explained = mesh.engine.explain("later", mesh.now)
    behind_in_pool = pool_name == "p"
    assert explained.reason == ("behind_queue_head" if behind_in_pool else "held_for_queue")
    if not behind_in_pool:
        assert "delay those that are reserved for 'first'" in explained.error


@pytest.mark.parametrize("how", [{"priority": 6.0}, {"priority": 4.0, "duration": 50.0}])
def test_a_submission_that_delays_nothing_evicts(how):
    mesh = _with_reserved_start()
    mesh.queue("later", "q", gpu=2, **how)
    assert list(mesh.ends) == ["short"]


def test_other_victims_are_evicted_where_they_delay_nothing():
    mesh = _with_reserved_start()
    mesh.observe(node("n0", gpu=4), node("n1", gpu=2))
    mesh.run("elsewhere", "q", -9.0, gpu=2)
    assert mesh.state.agents["elsewhere"].node_id == "n1"
    assert [task.task.task_id for task in mesh.dry("later", "q", 4.0, gpu=2).preempted] == [
        "elsewhere"
    ]
    mesh.queue("later", "q", 4.0, gpu=2)
    assert list(mesh.ends) == ["elsewhere"]


def test_an_owner_takes_its_quota_back_whoever_has_a_reserved_start():
    cohort = {"cohort": "c"}
    lender, borrower = pool("owner", gpu=2, lending=cohort), pool("p", gpu=4, lending=cohort)
    mesh = Mesh(nodes=[node("n0", gpu=6)])
    mesh.cohort("c")
    for spec in (lender, borrower):
        mesh.resize(spec)
    mesh.run("long", "p", 9.0, gpu=2, duration=100.0)
    mesh.run("short", "p", 9.0, gpu=4, duration=20.0)
    mesh.queue("first", "p", gpu=6)
    mesh.tick()
    mesh.queue("own", "owner", 1.0, gpu=2)
    assert len(mesh.ends) == 1
