"""Methods that declare how they are called, with the names of verl's modes."""

import pytest
import ray

from schedulemesh.core import RayScheduler, WorkerGroup
from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.dispatch import Dispatch, ParallelLayout, Sharding, dispatch
from schedulemesh.errors import InvalidRequestError, WorkerFailedError

np = pytest.importorskip("numpy")

PAIRS = ParallelLayout.of(tp=2, dp=2)
PROMPTS = ["a", "bb", "ccc", "dddd", "eeeee"]


class Worker(AgentActor):
    """A method of each mode."""

    @dispatch(Dispatch.ONE_TO_ALL)
    def greet(self, word, to="you"):
        return f"{word} {to}, {self.labels['rank']}"

    @dispatch(Dispatch.ALL_TO_ALL)
    def own(self, part, plus):
        return part + plus

    @dispatch(Dispatch.DP_COMPUTE)
    def per_replica(self, part):
        return part * 10

    @dispatch(Dispatch.DP_COMPUTE_PROTO)
    def generate(self, prompts, suffix="!"):
        return [prompt + suffix for prompt in prompts]

    @dispatch(Dispatch.DP_COMPUTE_PROTO)
    def pairs(self, left, right):
        return [a + b for a, b in zip(left, right, strict=True)]

    @dispatch(Dispatch.DP_COMPUTE_PROTO, strategy="every_rank")
    def on_every_rank(self, rows):
        return [(row, self.labels["rank"]) for row in rows]

    @dispatch(Dispatch.DP_COMPUTE_METRIC)
    def lengths(self, prompts):
        return sum(map(len, prompts))

    @dispatch(Dispatch.DP_COMPUTE_METRIC, reduce={"tokens": "sum", "rank": "per_rank"})
    def count(self, prompts):
        return {"tokens": sum(map(len, prompts)), "rank": int(self.labels["rank"])}

    @dispatch(Dispatch.RANK_ZERO)
    def who(self, *names):
        return [self.labels["rank"], *names]

    def plain(self, value):
        return value


@pytest.fixture(scope="module")
def mesh(ray_cluster):
    scheduler = RayScheduler("declared", namespace="test-declared-calls")
    scheduler.create_pool("workers", resources={"cpu": 2})
    yield scheduler
    scheduler.shutdown()


@pytest.fixture(scope="module")
def group(mesh):
    return WorkerGroup.submit(
        mesh, "group", Worker, layout=PAIRS, pool="workers", resources={"cpu": 0.25}
    )


@pytest.fixture(params=["submitted", "by name"])
def either(request, mesh, group):
    """The group as it was started, or made of its agents by name, which are asked for declarations."""
    if request.param == "submitted":
        return group
    return WorkerGroup.of_agents(mesh, "again", group.agents, PAIRS)


def test_each_mode_distributes_and_collects_as_it_is_named(either):
    collected = {
        "greet": either.call("greet", "hello", to="rank").collect(),
        "own": either.call("own", [1, 2, 3, 4], plus=[10, 20, 30, 40]).collect(),
        "per_replica": either.call("per_replica", [1, 2]).collect(),
        "generate": either.call("generate", PROMPTS, suffix="?").collect(),
        "pairs": either.call("pairs", PROMPTS, right=PROMPTS).collect(),
        "on_every_rank": either.call("on_every_rank", [7, 8, 9, 10]).collect(),
        "lengths": either.call("lengths", PROMPTS).collect(),
        "count": either.call("count", PROMPTS).collect(),
        "who": either.call("who", "x").collect(),
    }
    assert collected == {
        "greet": [f"hello rank, {rank}" for rank in range(4)],
        "own": [11, 22, 33, 44],
        "per_replica": [10, 20],
        "generate": [prompt + "?" for prompt in PROMPTS],
        "pairs": [prompt * 2 for prompt in PROMPTS],
        "on_every_rank": [(7, "0"), (8, "1"), (9, "2"), (10, "3")],
        "lengths": [6, 6, 9, 9],
        "count": {"tokens": 15, "rank": [0, 1, 2, 3]},
        "who": ["0", "x"],
    }


def test_declared_methods_are_called_on_the_group_itself(either):
    assert either.generate(PROMPTS, suffix="?").collect() == [prompt + "?" for prompt in PROMPTS]
    assert either.who("x").collect() == ["0", "x"]
    with pytest.raises(AttributeError, match=r"declare nothing of their method 'plain'; use call"):
        either.plain(PROMPTS)
    with pytest.raises(AttributeError, match="allowed are its own calls"):
        either.nothing()
    assert not hasattr(either, "__len__")


def test_a_caller_may_reduce_otherwise(group):
    assert group.call("lengths", PROMPTS).collect(reduce="sum") == 15
    assert group.call("count", PROMPTS)["tokens"].collect() == 15


def test_undeclared_methods_are_called_alike_on_all_ranks(either):
    assert either.call("plain", PROMPTS).collect() == [PROMPTS] * 4


def test_equal_parts_are_put_once(group, monkeypatch):
    found, real = [], ray.put
    monkeypatch.setattr(ray, "put", lambda value: (found.append(value), real(value))[1])
    group.call("generate", PROMPTS).collect()
    assert len(found) == 2
    group.call("plain", PROMPTS).collect()
    assert len(found) == 3


def test_pending_results_are_arguments_beside_others(group, monkeypatch):
    """Rows of one call pass on to the next, with rows and scalars of the caller beside them."""
    generated = group.call("generate", PROMPTS)
    assert group.call("generate", generated, suffix="?").collect() == [f"{p}!?" for p in PROMPTS]
    both = group.call("pairs", generated, right=PROMPTS)
    assert both.collect() == [f"{p}!{p}" for p in PROMPTS]
    assert group.call("lengths", generated).collect("", reduce="sum") == 20
    assert group.call("plain", generated).outputs() == [[f"{p}!" for p in PROMPTS]] * 4
    with pytest.raises(InvalidRequestError, match=r"different numbers of rows: \[2, 5\]"):
        group.call("pairs", generated, right=["x", "y"])
    with pytest.raises(InvalidRequestError, match="own is declared ALL_TO_ALL"):
        group.call("own", generated, plus=[1, 2, 3, 4])


def test_arguments_that_contradict_the_declaration_are_refused(either):
    with pytest.raises(InvalidRequestError, match="one element for each rank, here 4"):
        either.call("own", [1, 2], plus=[1, 2])
    with pytest.raises(InvalidRequestError, match="different numbers of rows"):
        either.call("pairs", PROMPTS, right=PROMPTS[1:])
    with pytest.raises(
        InvalidRequestError, match=r"declared ONE_TO_ALL, which splits no rows; use call\('greet'"
    ):
        either.dispatch("greet", PROMPTS)


def test_a_strategy_of_the_call_is_used_instead_of_the_declared_one(group):
    rows = [7, 8, 9, 10]
    assert group.dispatch("on_every_rank", rows).collect() == [
        (row, str(rank)) for rank, row in enumerate(rows)
    ]
    by_tp = group.dispatch("on_every_rank", rows, Sharding.of(PAIRS, tp=0))
    assert by_tp.collect() == [(7, "0"), (8, "0"), (9, "1"), (10, "1")]


def test_plain_ray_actors_declare_as_agents_do(ray_cluster):
    class Plain:
        @dispatch(Dispatch.DP_COMPUTE_PROTO)
        def doubled(self, rows):
            return [row * 2 for row in rows]

        def other(self, value):
            return value

    class Async(Plain):
        @dispatch(Dispatch.DP_COMPUTE_PROTO)
        async def doubled(self, rows):
            return [row * 2 for row in rows]

    class Bare(Plain):
        @dispatch(Dispatch.ONE_TO_ALL)
        def doubled(self, rows):
            return rows

    make = {cls: ray.remote(num_cpus=0.1)(cls) for cls in (Plain, Async, Bare)}
    actors = {cls: [make[cls].remote() for _ in range(2)] for cls in make}
    for cls in (Plain, Async):
        found = WorkerGroup("plain", actors[cls]).call("doubled", [1, 2, 3])
        assert found.collect() == [2, 4, 6]
    mixed = WorkerGroup("mixed", [actors[Plain][0], actors[Bare][0]])
    with pytest.raises(InvalidRequestError, match="agent mixed-1 as ONE_TO_ALL"):
        mixed.call("doubled", [1, 2, 3])


def test_an_error_of_a_declared_call_names_the_worker(group):
    with pytest.raises(WorkerFailedError, match=r"of group group, method generate: TypeError"):
        group.call("generate", PROMPTS, suffix=1).collect()
