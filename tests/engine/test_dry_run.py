"""Dry runs of submissions that may wait: they say what the submission then does."""

from random import Random

import msgspec
import pytest

from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import Accepted, Refused
from tests.engine.builders import Mesh, node, pool

WAITS = {"queue": True}
MODES = ("best_effort", "strict", "greedy")


def mesh_of(queueing, gpu=2, pools=("p",), **policy):
    """Pools of so many GPUs, on one node of as many."""
    mesh = Mesh(nodes=[node("n", gpu=gpu, cpu=8)])
    mesh.order_by(**policy)
    mesh.handle(s.ClassProbed(class_key="c"))
    for name in pools:
        spec = msgspec.structs.replace(pool(name, gpu=gpu, cpu=8), queueing=queueing)
        mesh.resize(spec)
    return mesh


def agree(mesh, name, pool_name="p", priority=5.0, **how):
    """The outcome of a dry run, after the same task was submitted: that did what the dry run says."""
    how = {"class_key": "c", "run": "go", **how}
    before = set(mesh.ends)
    dry = mesh.dry(name, pool_name, priority, more=WAITS, **how)
    outcome = mesh.queue(name, pool_name, priority, **how)
    evicted = sorted(mesh.ends.keys() - before)
    if isinstance(outcome, Refused):
        assert (dry.reason, dry.position) == (outcome.reason, None)
    elif isinstance(dry, Accepted):
        assert outcome.position == 0
        assert evicted == sorted({victim.agent_name for victim in dry.preempted})
    else:
        assert (dry.position, evicted) == (outcome.position, [])
        assert name not in mesh.state.agents
    return dry


@pytest.mark.parametrize("order", ["priority", "fifo"])
@pytest.mark.parametrize("queueing", MODES)
def test_evictions_for_a_task_behind_the_first_one_that_waits(queueing, order):
    mesh = mesh_of(queueing, order=order)
    mesh.run("low", priority=1.0, gpu=1, class_key="c")
    mesh.run("equal", priority=9.0, gpu=1, class_key="c")
    mesh.queue("first", priority=9.5, gpu=2, class_key="c")
    mesh.tick()
    dry = agree(mesh, "x", priority=9.0, gpu=1)
    if queueing == "strict":
        assert (dry.reason, dry.position) == (Reason.BEHIND_QUEUE_HEAD, 2)
        assert mesh.engine.explain("x", mesh.now).reason == dry.reason
    else:
        assert [victim.task_id for victim in dry.preempted] == ["low"]


@pytest.mark.parametrize("queueing", MODES)
def test_a_task_that_would_delay_a_reserved_start(queueing):
    mesh = mesh_of(queueing)
    mesh.run("a", gpu=1, class_key="c", duration=100.0)
    mesh.queue("first", gpu=2, class_key="c", duration=100.0)
    mesh.tick()
    dry = agree(mesh, "long", gpu=1, duration=1000.0)
    if queueing == "greedy":
        assert isinstance(dry, Accepted)
        return
    assert (dry.position, dry.hint) == (2, "")
    strict = queueing == "strict"
    assert dry.reason is (Reason.BEHIND_QUEUE_HEAD if strict else Reason.HELD_FOR_QUEUE)
    assert mesh.engine.explain("long", mesh.now).reason == dry.reason
    short = agree(mesh, "short", gpu=1, duration=10.0)
    assert isinstance(short, Refused if strict else Accepted)


def test_a_task_that_would_delay_a_reserved_start_of_another_pool():
    mesh = mesh_of("best_effort", pools=("p", "q"))
    mesh.run("a", gpu=1, class_key="c", duration=100.0)
    mesh.queue("first", gpu=2, class_key="c", duration=100.0)
    mesh.tick()
    dry = agree(mesh, "x", "q", gpu=1, duration=1000.0)
    assert (dry.reason, dry.position) == (Reason.HELD_FOR_QUEUE, 1)


def test_nobody_is_evicted_for_a_task_behind_one_that_asks_for_the_same():
    mesh = mesh_of("best_effort", gpu=1, order="fifo")
    mesh.queue("first", priority=5.0, gpu=1, class_key="c")
    mesh.report("first")
    mesh.queue("second", priority=5.0, gpu=1, class_key="c")
    mesh.change("first", priority=1.0)
    dry = agree(mesh, "third", priority=5.0, gpu=1)
    assert (dry.reason, dry.position) == (Reason.BEHIND_QUEUE_HEAD, 2)


def test_without_queue_it_is_decided_at_once():
    mesh = mesh_of("strict")
    mesh.run("low", priority=1.0, gpu=1, class_key="c")
    mesh.run("equal", priority=9.0, gpu=1, class_key="c")
    mesh.queue("first", priority=9.5, gpu=2, class_key="c")
    dry = mesh.dry("x", priority=9.0, gpu=1, class_key="c")
    assert [victim.task_id for victim in dry.preempted] == ["low"]
    too_large = mesh.dry("y", gpu=9, class_key="c")
    assert (too_large.reason, too_large.position) == (Reason.EXCEEDS_POOL_CAPACITY, None)


@pytest.mark.parametrize("seed", range(40))
def test_random_worlds(seed):
    random = Random(seed)
    mesh = mesh_of(random.choice(MODES), random.choice((2, 4)), pools=("p", "q"))
    order = random.choice(("priority", "fifo", "shortest_remaining", "two_level_las"))
    mesh.order_by(order=order, backfill_limit_s=60.0)
    for number in range(random.randrange(5, 30)):
        how = {"gpu": random.choice((1, 1, 2, 3)), "duration": random.choice((None, 5.0, 100.0))}
        if mesh.state.queue.by_id and random.random() < 0.1:
            other = random.choice(sorted(mesh.state.queue.by_id))
            how["limits"] = {"after": (f"any:{other}",)}
        mesh.now += 0.001
        agree(mesh, f"t{number}", random.choice("pq"), random.choice((1.0, 5.0, 9.0)), **how)
        _go_on(mesh, random)


def _go_on(mesh, random):
    """Time passes, agents report, tasks end, and victims leave."""
    if random.random() < 0.5:
        mesh.tick(random.choice((1.0, 5.0, 20.0)))
    for name in list(mesh.starts):
        if random.random() < 0.7:
            mesh.report(name, capabilities=("save_state",))
    running = [t for t, task in mesh.state.running.by_id.items() if task.phase.value == "running"]
    if running and random.random() < 0.5:
        mesh.complete(random.choice(running))
    for name in list(mesh.ends):
        if random.random() < 0.5:
            mesh.leave(name)
