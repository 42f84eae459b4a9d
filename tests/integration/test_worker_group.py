"""Groups of agents: scatter, collect, move tensors between groups, and errors that name the worker."""

import os
import signal
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import ray
from hypothesis import HealthCheck, given, settings

from schedulemesh.core import RayScheduler, ShardHolder, WorkerGroup, reshard
from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.core.worker_groups.group import DRIVER
from schedulemesh.dispatch import (
    Assign,
    Jagged,
    ParallelLayout,
    Primary,
    Shard,
    Sharding,
    Stage,
    balance,
    shard,
)
from schedulemesh.errors import (
    GroupRefusedError,
    InvalidRequestError,
    WorkerDiedError,
    WorkerError,
    WorkerFailedError,
    WorkerTimeoutError,
)
from tests.dispatch.random_trees import bits, trees

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch") if find_spec("torch") else None

FOUR = ParallelLayout.of(dp=4)
PAIRS = ParallelLayout.of(tp=2, dp=2)
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")


class Worker(ShardHolder, AgentActor):
    """Answers what it got, and can be slow, wrong or gone."""

    def echo(self, part):
        return part

    def tenfold(self, part, plus=0):
        return None if part is None else [row * 10 + plus for row in part]

    def doubled(self, part):
        return part * 2

    def total(self, batch):
        return {"total": batch["ids"].sum(axis=1), "who": [self.name] * len(batch["ids"])}

    def labels_in(self, batch):
        return batch["labels"]

    def facts(self, part):
        storage = part.untyped_storage().nbytes() if hasattr(part, "untyped_storage") else None
        return type(part).__name__, str(part.dtype), tuple(part.shape), storage

    def write(self, part):
        part += 1
        return part

    def short(self, part):
        return part[:-1]

    def generated(self, part):
        """Rows of three kinds, with a value beside them."""
        lengths = [len(row) for row in part]
        return {
            "ids": np.arange(len(part) * 2).reshape(-1, 2) + 100 * lengths[0],
            "text": [row + "!" for row in part],
            "packed": Jagged.of([np.full(n, n) for n in lengths]),
            "version": 7,
            "took": self.name,
        }

    def scored(self, batch):
        return [len(row) for row in batch["text"]], batch["packed"].lengths, batch["version"]

    def upper(self, rows):
        return None if rows is None else [row.upper() for row in rows]

    def refuse(self, _part):
        raise ValueError(f"{self.name} will not")

    def sleep(self, seconds):
        time.sleep(seconds)  # a call that takes its time

    def wait_for(self, file):
        """Return at once without a file."""
        while file and not Path(file).exists():
            time.sleep(0.01)  # a call that ends when the test says so

    def pid(self):
        return os.getpid()

    def labels_of(self):
        return self.labels


@pytest.fixture(scope="module")
def mesh(ray_cluster):
    scheduler = RayScheduler("groups", namespace="test-worker-groups")
    scheduler.create_pool("workers", resources={"cpu": 4})
    yield scheduler
    scheduler.shutdown()


@pytest.fixture(scope="module")
def first(mesh):
    return started(mesh, "first", FOUR)


@pytest.fixture(scope="module")
def second(mesh):
    return started(mesh, "second", FOUR)


def started(mesh, name, layout, **options):
    return WorkerGroup.submit(
        mesh, name, Worker, layout=layout, pool="workers", resources={"cpu": 0.25}, **options
    )


def laid(group, layout, count=None):
    """The same agents, or the first of them, in another layout."""
    count = layout.size if count is None else count
    return WorkerGroup(group.name, group.handles[:count], layout, agents=group.agents[:count])


@pytest.fixture
def puts(monkeypatch):
    """Everything that this process puts into Ray."""
    found, real = [], ray.put
    monkeypatch.setattr(ray, "put", lambda value: (found.append(value), real(value))[1])
    return found


def test_agents_know_their_group_and_rank(first):
    assert first.agents == ("first-0", "first-1", "first-2", "first-3")
    labels = first.call("labels_of").outputs()
    assert [each["rank"] for each in labels] == ["0", "1", "2", "3"]
    assert {each["worker_group"] for each in labels} == {"first"}


def test_rows_come_back_in_order(first):
    result = first.dispatch("tenfold", list(range(10)), arguments={"plus": 1})
    assert result.outputs() == [[1, 11, 21], [31, 41, 51], [61, 71], [81, 91]]
    assert result.collect() == [row * 10 + 1 for row in range(10)]


def test_replicas_get_the_same_part_which_is_put_once(first, puts):
    group = laid(first, PAIRS)
    result = group.dispatch("echo", np.arange(8))
    assert len(puts) == 2
    assert [part.tolist() for part in result.outputs()] == [[0, 1, 2, 3]] * 2 + [[4, 5, 6, 7]] * 2
    assert result.collect().tolist() == list(range(8))


def test_a_broadcast_argument_is_put_once(first, puts):
    assert first.dispatch("echo", np.zeros(1000), "replicate").collect().shape == (1000,)
    assert len(puts) == 1


def test_every_rank_may_get_rows_of_its_own(first, puts):
    group = laid(first, PAIRS)
    assert group.dispatch("tenfold", [1, 2, 3, 4], "every_rank").collect() == [10, 20, 30, 40]
    assert len(puts) == 4


def test_a_dict_is_scattered_by_key_and_scalars_are_replicated(first):
    batch = {"ids": np.arange(12).reshape(6, 2), "temperature": 0.5}
    found = laid(first, PAIRS).dispatch("total", batch).collect()
    assert found["total"].tolist() == [1, 5, 9, 13, 17, 21]
    assert found["who"] == ["first-0"] * 3 + ["first-2"] * 3


def test_each_key_may_have_its_own_sharding(first):
    layout = ParallelLayout.of(dp=2, pp=2)
    batch = {"ids": np.arange(8).reshape(4, 2), "labels": ["a", "b", "c", "d"]}
    spec = {
        "ids": Sharding.of(layout, dp=0, pp=Stage(0)),
        "labels": Sharding.of(layout, dp=0, pp=Stage(-1)),
    }
    result = laid(first, layout).dispatch("labels_in", batch, spec)
    assert result.outputs() == [None, None, ["a", "b"], ["c", "d"]]
    with pytest.raises(InvalidRequestError, match=r"'ids', 'labels'.*name with like="):
        result.collect()
    assert result.collect(like="labels") == ["a", "b", "c", "d"]


@pytest.mark.parametrize("uneven", ["uneven", "pad", "chunk", "drop_last"])
@pytest.mark.parametrize("kind", ["array", "rows", "tensor"])
def test_sizes_that_do_not_divide_come_back_exactly(first, uneven, kind):
    if kind == "tensor" and torch is None:
        pytest.skip("torch is not installed")
    make = {"array": np.array, "rows": list, "tensor": torch and torch.tensor}[kind]
    spec = Sharding.of(FOUR, dp=Shard(0, uneven), pad_value=-1)
    found = first.dispatch("echo", make(list(range(10))), spec).collect()
    assert list(found) == list(range(8 if uneven == "drop_last" else 10))


def test_balanced_rows_are_collected_in_their_original_order(first):
    tokens = [900, 30, 40, 500, 20, 480, 10, 20]
    spec = Sharding.of(FOUR, dp=Assign(0, balance(tokens, 4)))
    assert first.dispatch("tenfold", tokens, spec).collect() == [10 * n for n in tokens]


def test_jagged_batches(first):
    packed = Jagged.of([np.arange(n) for n in (3, 1, 4, 2)])
    found = first.dispatch("echo", packed).collect()
    assert found.lengths == packed.lengths
    assert np.array_equal(found.values, packed.values)


def test_ranks_without_rows_are_called_too(first):
    spec = Sharding.of(FOUR, dp=Primary())
    result = first.dispatch("tenfold", [1, 2], spec)
    assert result.outputs() == [[10, 20], None, None, None]
    assert result.collect() == [10, 20]


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "complex64"])
def test_a_tensor_travels_without_the_rest_of_its_storage(first, dtype):
    whole = torch.ones(8, 1000).to(getattr(torch, dtype))
    result = first.dispatch("facts", whole, Sharding.of(FOUR, dp=0))
    size = 2 * 1000 * whole.itemsize
    assert result.outputs() == [("Tensor", f"torch.{dtype}", (2, 1000), size)] * 4
    assert torch.equal(first.dispatch("echo", whole, Sharding.of(FOUR, dp=1)).collect(), whole)


@needs_torch
def test_a_worker_may_write_to_its_tensor(first):
    whole = torch.zeros(8, requires_grad=True)
    result = laid(first, PAIRS).dispatch("write", whole)
    assert result.collect().tolist() == [1.0] * 8
    assert whole.tolist() == [0.0] * 8


@needs_torch
def test_an_empty_and_a_single_tensor(first):
    assert first.dispatch("echo", torch.tensor(3.5), "replicate").collect() == torch.tensor(3.5)
    assert first.dispatch("echo", torch.empty(0, 3)).collect().shape == (0, 3)


class Reversed:
    """The last rank gets the first rows; torch tensors are scattered by a sharding."""

    def __init__(self):
        self.seen = []

    def python_dispatch_fn(self, data, workers_a, workers_b):
        self.seen.append((workers_a, workers_b))
        return [[row] for row in reversed(data)]

    def torch_dispatch_fn(self, tensor, workers_a, workers_b):
        return Sharding.of(workers_b.layout, dp=Assign(0, ((3,), (2,), (1,), (0,))))


def test_results_stay_by_rank_when_a_plugin_returns_bare_parts(first, second):
    plugin = Reversed()
    result = first.dispatch("tenfold", [1, 2, 3, 4], plugin, source=second)
    assert result.collect() == result.outputs() == [[40], [30], [20], [10]]
    assert plugin.seen == [(second, first)]
    first.dispatch("echo", [1, 2, 3, 4], plugin).outputs()
    assert plugin.seen[1] == (DRIVER, first)
    assert list(DRIVER.ranks) == [0]


@needs_torch
def test_results_are_reordered_when_a_plugin_returns_a_sharding(first):
    result = first.dispatch("echo", torch.arange(4), Reversed)
    assert [part.tolist() for part in result.outputs()] == [[3], [2], [1], [0]]
    assert result.collect().tolist() == [0, 1, 2, 3]


class Answers:
    def __init__(self, answer):
        self.answer = answer

    def python_dispatch_fn(self, data, workers_a, workers_b):
        return self.answer(data)


def test_a_plugin_may_return_a_sharding_or_references(first):
    by_shard = Answers(lambda data: shard(data, Sharding.of(FOUR, dp=Shard(0, "uneven"))))
    assert first.dispatch("tenfold", list(range(6)), by_shard).collect() == [
        10 * n for n in range(6)
    ]
    by_reference = Answers(lambda data: [ray.put([row]) for row in data])
    assert first.dispatch("tenfold", [1, 2, 3, 4], by_reference).collect() == [
        [10],
        [20],
        [30],
        [40],
    ]


@pytest.mark.parametrize(
    ("answer", "said"), [(lambda data: data[:3], "3 parts"), (lambda _: None, "NoneType")]
)
def test_a_plugin_that_returns_the_wrong_number_of_parts_is_refused(first, answer, said):
    with pytest.raises(InvalidRequestError, match=f"Answers returned {said}; allowed"):
        first.dispatch("echo", [1, 2, 3, 4], Answers(answer))


def test_an_unknown_strategy_is_refused_with_the_known_ones(first):
    with pytest.raises(InvalidRequestError, match="data_parallel, every_rank, replicate"):
        first.dispatch("echo", [1], "nonsense")


def test_a_spec_for_another_size_is_refused(first):
    with pytest.raises(InvalidRequestError, match=r"for 8 ranks; group first has 4"):
        first.dispatch("echo", list(range(8)), Sharding.of(ParallelLayout.of(dp=8), dp=0))


def test_sizes_that_do_not_divide_are_refused_by_name(first):
    with pytest.raises(InvalidRequestError, match="10 elements over axis dp do not make 4"):
        first.dispatch("echo", list(range(10)), Sharding.of(FOUR, dp=0))


def test_results_of_the_wrong_size_are_refused_by_rank(first):
    result = first.dispatch("short", np.arange(8))
    with pytest.raises(
        InvalidRequestError, match=r"group first to short .*rank 0 gave shape \(1,\)"
    ):
        result.collect()


def test_a_method_that_is_not_there_is_refused(first):
    with pytest.raises(InvalidRequestError, match=r"rank 0 \(agent first-0\).*no method 'train'"):
        first.dispatch("train", [1, 2, 3, 4])


SEQUENCE = Shard(1, zigzag=True)
MOVES = {
    "rows to columns": (Sharding.of(FOUR, dp=0), Sharding.of(FOUR, dp=1)),
    "FSDP to tp": (Sharding.of(FOUR, dp=0), Sharding.of(PAIRS, tp=1)),
    "tp to all of it": (Sharding.of(PAIRS, tp=1), Sharding(layout=FOUR)),
    "one stage to tp": (
        Sharding.of(ParallelLayout.of(tp=2, pp=2), tp=0, pp=Stage(1)),
        Sharding.of(PAIRS, tp=1, dp=0),
    ),
    "zigzag": (
        Sharding.of(ParallelLayout.of(cp=2, dp=2), dp=0, cp=SEQUENCE),
        Sharding.of(FOUR, dp=1),
    ),
    "uneven to padded": (
        Sharding.of(ParallelLayout.of(dp=3), dp=Shard(0, "uneven")),
        Sharding.of(FOUR, dp=Shard(0, "pad"), pad_value=7),
    ),
    "four to two": (Sharding.of(FOUR, dp=0), Sharding.of(ParallelLayout.of(tp=2), tp=0)),
}


@pytest.mark.parametrize("library", ["numpy", pytest.param("torch", marks=needs_torch)])
@pytest.mark.parametrize("move", MOVES)
def test_resharding_equals_sharding_the_full_tensor(first, second, move, library, puts):
    source, destination = MOVES[move]
    whole = np.arange(16 * 24, dtype=np.float32).reshape(16, 24)
    whole = whole if library == "numpy" else torch.from_numpy(whole).to(torch.bfloat16)
    src, dst = laid(first, source.layout), laid(second, destination.layout)
    src.dispatch("keep_shards", whole, source, arguments={"key": "w"}).outputs()
    puts.clear()
    moved = reshard(src, dst, "w", source=source, destination=destination, shapes=(16, 24))
    assert puts == []
    found = dst.call("shards", "w").outputs()
    for part, expected in zip(found, shard(whole, destination).parts, strict=True):
        assert type(part) is type(expected)
        assert part.dtype == expected.dtype
        assert part.tolist() == expected.tolist()
    assert moved.bytes_moved == moved.plans[""].bytes_moved > 0
    assert moved.received == dict(zip(dst.agents, moved.plans[""].received, strict=True))


def a_model():
    return {
        "embed": np.arange(32.0).reshape(8, 4),
        "layers": {
            "0": {"w": np.arange(64.0).reshape(8, 8), "b": np.arange(8.0)},
            "1": {"w": -np.arange(64.0).reshape(8, 8), "b": -np.arange(8.0)},
        },
        "step": np.array(17),
    }


MODEL_SHAPES = {"embed": (8, 4), "layers/0/w": (8, 8), "layers/1/w": (8, 8)}


def model_specs(layout):
    """Column parallel, biases replicated, the second layer on the last stage."""

    def layer(stage):
        return {
            "w": Sharding.of(layout, tp=1, pp=Stage(stage)),
            "b": Sharding.of(layout, pp=Stage(stage)),
        }

    return {
        "embed": Sharding.of(layout, tp=0, pp=Stage(0)),
        "layers": {"0": layer(0), "1": layer(-1)},
        "*": Sharding(layout=layout),
    }


@pytest.mark.parametrize("round_bytes", [1 << 30, 1])
def test_a_tree_moves_as_a_whole_or_in_rounds(first, second, round_bytes):
    train, rollout = ParallelLayout.of(tp=2, pp=2), ParallelLayout.of(tp=4)
    src, dst = laid(first, train), laid(second, rollout)
    specs = model_specs(train), model_specs(rollout)
    src.dispatch("keep_shards", a_model(), specs[0], arguments={"key": "model"}).outputs()
    moved = reshard(
        src,
        dst,
        "model",
        source=specs[0],
        destination=specs[1],
        into="policy",
        shapes=MODEL_SHAPES,
        round_bytes=round_bytes,
    )
    assert moved.rounds == (1 if round_bytes > 1 else 6)
    assert sorted(moved.plans) == [
        "embed",
        "layers/0/b",
        "layers/0/w",
        "layers/1/b",
        "layers/1/w",
        "step",
    ]
    expected = shard(a_model(), specs[1]).parts
    for part, wanted in zip(dst.call("shards", "policy").outputs(), expected, strict=True):
        assert part["layers"]["1"]["w"].tolist() == wanted["layers"]["1"]["w"].tolist()
        assert part["embed"].tolist() == wanted["embed"].tolist()
        assert part["step"] == 17


@pytest.mark.parametrize("round_bytes", [1 << 30, 1])
def test_within_one_group_held_data_is_not_moved(first, round_bytes):
    whole = {"a": np.arange(64.0).reshape(8, 8), "b": np.arange(64.0).reshape(8, 8) + 100}
    rows, columns = Sharding.of(FOUR, dp=0), Sharding.of(FOUR, dp=1)
    first.dispatch("keep_shards", whole, rows, arguments={"key": "in-place"}).outputs()
    moved = reshard(
        first,
        first,
        "in-place",
        source=rows,
        destination=columns,
        shapes=(8, 8),
        round_bytes=round_bytes,
    )
    assert moved.bytes_moved == 2 * 8 * 64 * 3 // 4
    found = first.call("shards", "in-place").outputs()
    for part, wanted in zip(found, shard(whole, columns).parts, strict=True):
        assert {key: each.tolist() for key, each in part.items()} == {
            key: each.tolist() for key, each in wanted.items()
        }


def test_replicas_share_one_object(first, second):
    two = ParallelLayout.of(tp=2)
    source, destination = Sharding.of(two, tp=0), Sharding.of(PAIRS, tp=0)
    whole = np.zeros((4, 1000))
    src, dst = laid(first, two), laid(second, PAIRS)
    src.dispatch("keep_shards", whole, source, arguments={"key": "shared"}).outputs()
    asked, real = [], src.ask_many
    src.ask_many = lambda *given: (asked.append(given), real(*given))[1]
    moved = reshard(src, dst, "shared", source=source, destination=destination, shapes=(4, 1000))
    assert moved.bytes_moved == 4 * whole.nbytes // 2
    assert sum(answers - 1 for _, _, answers, *_ in asked) == 2


def test_data_named_by_the_specs_must_exist(first, second):
    rows = Sharding.of(FOUR, dp=0)
    first.dispatch("keep_shards", np.zeros((8, 4)), rows, arguments={"key": "sizes"}).outputs()

    def refused(said, key="sizes", source=rows, destination=rows, shapes=(8, 4)):
        with pytest.raises(InvalidRequestError, match=said):
            reshard(first, second, key, source=source, destination=destination, shapes=shapes)

    refused(r"group first holds anything under 'nothing'", key="nothing")
    refused(r"rank 0 \(agent first-0\) holds shape \(2, 4\); of .* its part is", shapes=(12, 4))
    refused(r"source spec names w, but nobody holds it", source={"w": rows})
    refused(r"so that the parts make \(8, 4\). Give shapes=", shapes=None)
    refused(r"splits it. Give shapes=", source=Sharding.of(FOUR, dp=Shard(0, "pad")), shapes=None)
    refused(
        r"destination spec is for 2 ranks; group second has 4",
        destination=Sharding.of(ParallelLayout.of(dp=2), dp=0),
    )
    refused(
        r"axis dp splits dim 2 of a value with 2 dims",
        destination=Sharding.of(FOUR, dp=2),
    )


def test_a_move_that_fails_leaves_all_ranks_on_the_old_version(first, second):
    """The last round fails on one destination; those that had everything keep what they held."""
    rows, columns = Sharding.of(FOUR, dp=0), Sharding.of(FOUR, dp=1)
    tree = {"a": np.arange(64.0).reshape(8, 8), "b": np.arange(64.0).reshape(8, 8)}
    first.dispatch("keep_shards", tree, rows, arguments={"key": "versions"}).outputs()

    def moved(tree_shapes, **options):
        return reshard(
            first,
            second,
            "versions",
            source=rows,
            destination=columns,
            shapes=tree_shapes,
            **options,
        )

    assert second.call("shard_version", "versions").outputs() == [None] * 4
    assert moved((8, 8)).version == 1
    assert second.call("shard_version", "versions").outputs() == [1] * 4
    real, asked = second.ask, []

    def failing(rank, method, *args, **kwargs):
        asked.append(method)
        if method == "take_shards" and rank == 3 and asked.count("take_shards") > 4:
            return real(rank, "refuse", None)
        return real(rank, method, *args, **kwargs)

    changed = {name: -array for name, array in tree.items()}
    first.dispatch("keep_shards", changed, rows, arguments={"key": "versions"}).outputs()
    second.ask = failing
    try:
        with pytest.raises(WorkerFailedError, match="agent second-3"):
            moved((8, 8), round_bytes=1)
    finally:
        second.ask = real
    assert second.call("shard_version", "versions").outputs() == [1] * 4
    found = second.call("shards", "versions").outputs()
    for part, expected in zip(found, shard(tree, columns).parts, strict=True):
        assert part["b"].tolist() == expected["b"].tolist()
    assert moved((8, 8), version=17).version == 17
    assert second.call("shard_version", "versions").outputs() == [17] * 4


def test_what_was_moved_moves_on_without_being_told_its_shape(first, second):
    rows = Sharding.of(FOUR, dp=0)
    whole = np.arange(32.0).reshape(8, 4)
    first.dispatch("keep_shards", whole, rows, arguments={"key": "on"}).outputs()
    reshard(first, second, "on", source=rows, destination=rows, shapes=(8, 4))
    back = Sharding.of(FOUR, dp=1)
    reshard(second, first, "on", source=rows, destination=back)
    for part, expected in zip(
        first.call("shards", "on").outputs(), shard(whole, back).parts, strict=True
    ):
        assert part.tolist() == expected.tolist()


def test_a_spec_that_forgets_an_axis_moves_nothing(first, second):
    """tp and dp split the tensor; the spec knows of dp alone, and takes tp peers for replicas."""
    src, dst = laid(first, PAIRS), laid(second, ParallelLayout.of(dp=2))
    whole = np.arange(64).reshape(8, 8)
    real = Sharding.of(PAIRS, dp=0, tp=1)
    src.dispatch("keep_shards", whole, real, arguments={"key": "forgotten"}).outputs()
    wrong = Sharding.of(PAIRS, dp=0)
    to = Sharding.of(dst.layout, dp=0)
    with pytest.raises(
        InvalidRequestError, match="hold the same elements, but their values differ"
    ):
        reshard(src, dst, "forgotten", source=wrong, destination=to, shapes=(8, 4))
    assert dst.call("describe_shards", "forgotten", False).outputs() == [None] * 2


PROMPTS = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff"]


@pytest.mark.parametrize(
    "strategy",
    ["data_parallel", "every_rank", Sharding.of(PAIRS, dp=Assign(0, ((5, 0, 3), (2, 4, 1))))],
    ids=["data_parallel", "every_rank", "assign"],
)
def test_results_pass_from_group_to_group_without_the_driver(first, second, strategy, puts):
    """dp=4 rows become those of tp=2, dp=2; the driver neither sends nor receives them."""
    to = laid(second, PAIRS)
    generated = first.dispatch("generated", PROMPTS)
    puts.clear()
    result = to.dispatch("upper", generated["text"], strategy)
    assert result.collect() == [prompt.upper() + "!" for prompt in PROMPTS]
    assert puts == []
    again = first.dispatch("upper", to.dispatch("upper", generated["text"], strategy), "every_rank")
    assert again.collect() == [prompt.upper() + "!" for prompt in PROMPTS]


def test_trees_of_rows_are_handed_on_with_values_that_are_the_same(first, second):
    to = laid(second, ParallelLayout.of(dp=2))
    generated = first.dispatch("generated", PROMPTS)
    with pytest.raises(WorkerFailedError, match="at took the workers returned different values"):
        to.dispatch("scored", generated).outputs()
    rows = first.dispatch(
        "echo",
        {
            "text": PROMPTS,
            "version": 7,
            "packed": Jagged.of([np.arange(len(prompt)) for prompt in PROMPTS]),
        },
    )
    assert to.dispatch("scored", rows).outputs() == [
        ([1, 2, 3], (1, 2, 3), 7),
        ([4, 5, 6], (4, 5, 6), 7),
    ]


def test_an_array_is_recut_between_workers_exactly(first, second):
    whole = np.arange(60.0).reshape(20, 3)
    doubled = first.dispatch("doubled", whole)
    for uneven in ("uneven", "chunk"):
        three = laid(second, ParallelLayout.of(dp=3))
        found = three.dispatch("doubled", doubled, Sharding.of(three.layout, dp=Shard(0, uneven)))
        assert np.array_equal(found.collect(), whole * 4)


def test_the_worker_that_failed_is_named_not_the_one_that_waited_for_it(first, second):
    failing = first.dispatch("refuse", PROMPTS)
    with pytest.raises(WorkerFailedError, match="of group first, method refuse"):
        second.dispatch("upper", failing).collect()


def test_results_without_known_rows_are_not_handed_on(first, second):
    with pytest.raises(InvalidRequestError, match="not known which rows each result has"):
        second.dispatch("upper", first.call("labels_of"))
    generated = first.dispatch("generated", PROMPTS)
    with pytest.raises(
        InvalidRequestError, match="needs the data, and results of another group stay"
    ):
        second.dispatch("upper", generated, Answers(list))
    with pytest.raises(
        InvalidRequestError, match="split along dim 1 over dp; results are handed on"
    ):
        second.dispatch("upper", generated, Sharding.of(FOUR, dp=1))
    with pytest.raises(WorkerFailedError, match="returned 1 rows for a part of 2 rows"):
        second.dispatch("echo", first.dispatch("short", np.arange(8))).outputs()


def test_data_that_cannot_be_sent_is_refused(first):
    import threading

    data = {"rows": [1, 2], "more": (5, threading.Lock())}
    with pytest.raises(
        InvalidRequestError, match="at more/1 lies a lock, which cannot be sent: cannot pickle"
    ):
        first.dispatch("echo", data, "replicate")


@settings(
    max_examples=int(os.environ.get("ROUND_TRIPS_ON_RAY", "15")),
    suppress_health_check=list(HealthCheck),
)
@given(trees(ranks=4))
def test_random_trees_move_there_and_back_bit_by_bit(first, second, case):
    """The environment variable ROUND_TRIPS_ON_RAY sets the number of cases."""
    tree, source, destination, sizes = case
    there, back = (ranks_layout(spec) for spec in (source, destination))
    src, dst = laid(first, there), laid(second, back)
    src.dispatch("keep_shards", tree, source, arguments={"key": "random"}).outputs()
    reshard(src, dst, "random", source=source, destination=destination, shapes=sizes)
    same_bits(dst, shard(tree, destination).parts)
    reshard(dst, src, "random", source=destination, destination=source)
    same_bits(src, shard(tree, source).parts)


def ranks_layout(spec):
    return next(iter(spec.values())).layout


def same_bits(group, expected):
    for held, part in zip(group.call("shards", "random").outputs(), expected, strict=True):
        assert {name: bits(held[name]) for name in part} == {
            name: bits(array) for name, array in part.items()
        }


def test_an_agent_without_the_required_methods_is_refused_with_their_names(mesh, first):
    plain = WorkerGroup.submit(
        mesh,
        "plain",
        AgentActor,
        layout=ParallelLayout.of(),
        pool="workers",
        resources={"cpu": 0.25},
    )
    one = Sharding(layout=ParallelLayout.of())
    with pytest.raises(InvalidRequestError, match="derive its class from ShardHolder"):
        reshard(plain, plain, "w", source=one, destination=one)
    plain.stop()


def test_an_error_raised_by_a_worker_is_named_and_chained(first):
    with pytest.raises(
        WorkerFailedError, match=r"first-\d.* of group first, method refuse"
    ) as told:
        first.dispatch("refuse", [1, 2, 3, 4]).collect()
    error = told.value
    assert (error.group, error.method) == ("first", "refuse")
    assert error.agent == f"first-{error.rank}"
    assert "will not" in str(error)
    assert isinstance(error.__cause__, ValueError)


def test_a_worker_that_is_late_is_named(first, tmp_path):
    go_on = tmp_path / "go"
    slow = first.dispatch("wait_for", ["", "", str(go_on), ""], Answers(list))
    try:
        # None of the others may be late.
        ray.get([slow.refs[rank] for rank in (0, 1, 3)])
        with pytest.raises(WorkerTimeoutError, match=r"0\.3 s of rank 2 \(agent first-2\)") as told:
            slow.outputs(timeout_s=0.3)
    finally:
        go_on.touch()
    assert isinstance(told.value, TimeoutError)
    assert slow.outputs() == [None] * 4


@pytest.fixture
def doomed(mesh):
    group = started(mesh, "doomed", ParallelLayout.of(dp=2))
    yield group
    group.stop()


def kill(group, rank):
    os.kill(ray.get(group.handles[rank].pid.remote()), signal.SIGKILL)


def dead(error, group, rank):
    assert isinstance(error, WorkerDiedError)
    assert (error.group, error.rank, error.agent) == (group.name, rank, group.agents[rank])
    return True


def test_a_worker_killed_while_it_works_is_named(doomed):
    result = doomed.dispatch("sleep", [0.0, 600.0], Answers(list))
    ray.kill(doomed.handles[1])
    with pytest.raises(WorkerDiedError, match=r"rank 1 \(agent doomed-1\) of group doomed") as told:
        result.collect()
    assert dead(told.value, doomed, 1)


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_worker_that_dies_in_a_move_is_named(doomed, first, side):
    two, rows = ParallelLayout.of(dp=2), Sharding.of(ParallelLayout.of(dp=2), dp=0)
    healthy = laid(first, two)
    groups = (doomed, healthy) if side == "source" else (healthy, doomed)
    columns = Sharding.of(two, dp=1)
    groups[0].dispatch("keep_shards", np.zeros((400, 400)), rows, arguments={"key": "w"}).outputs()
    kill(doomed, 1)
    with pytest.raises(WorkerDiedError) as told:
        reshard(*groups, "w", source=rows, destination=columns, shapes=(400, 400), timeout_s=60)
    assert dead(told.value, doomed, 1)


def test_a_source_that_dies_after_the_call_is_named_instead_of_its_receivers(doomed, first):
    two, rows = ParallelLayout.of(dp=2), Sharding.of(ParallelLayout.of(dp=2), dp=0)
    doomed.dispatch("keep_shards", np.zeros((400, 400)), rows, arguments={"key": "w"}).outputs()
    real = doomed.ask_many

    def ask_and_kill(rank, *given):
        if rank == 1:
            doomed.handles[1].sleep.remote(600.0)
        calls = real(rank, *given)
        if rank == 1:
            ray.kill(doomed.handles[1])
        return calls

    doomed.ask_many = ask_and_kill
    with pytest.raises(WorkerDiedError) as told:
        reshard(
            doomed,
            laid(first, two),
            "w",
            source=rows,
            destination=Sharding.of(two, dp=1),
            shapes=(400, 400),
        )
    assert dead(told.value, doomed, 1)


def test_a_stopped_worker_ends_a_move_in_time(doomed, first, tmp_path):
    two, rows = ParallelLayout.of(dp=2), Sharding.of(ParallelLayout.of(dp=2), dp=0)
    doomed.dispatch("keep_shards", np.zeros((4, 4)), rows, arguments={"key": "w"}).outputs()
    busy = doomed.handles[0].wait_for.remote(str(tmp_path / "go"))
    with pytest.raises(WorkerTimeoutError, match=r"rank 0 \(agent doomed-0\) of group doomed"):
        reshard(doomed, laid(first, two), "w", source=rows, destination=rows, timeout_s=0.5)
    (tmp_path / "go").touch()
    ray.get(busy)


def test_a_group_is_started_as_a_whole_or_not_at_all(mesh):
    mesh.create_pool("small", resources={"cpu": 0.5})
    with pytest.raises(GroupRefusedError, match="group big was not started: agent big-") as told:
        WorkerGroup.submit(
            mesh, "big", Worker, layout=FOUR, pool="small", resources={"cpu": 0.25}, priority=1.0
        )
    assert told.value.answer["success"] is False
    assert told.value.answer["reason"]
    assert mesh.list_agents("small")["agents"] == []


def test_a_group_may_be_made_of_agents_by_name(mesh, first):
    group = WorkerGroup.of_agents(mesh, "again", ["first-1", "first-0"])
    assert group.workers == (first.workers[1], first.workers[0])
    assert group.dispatch("tenfold", [1, 2]).collect() == [10, 20]
    with pytest.raises(InvalidRequestError, match=r"\['nobody'\] of group again do not run"):
        WorkerGroup.of_agents(mesh, "again", ["first-0", "nobody"])


def test_a_group_must_fit_its_layout(first):
    with pytest.raises(InvalidRequestError, match=r"3 handles.*layout dp=4 needs 4"):
        WorkerGroup("three", first.handles[:3], FOUR)
    with pytest.raises(InvalidRequestError, match="1 of them different"):
        WorkerGroup("twice", [first.handles[0]] * 2)


def test_a_group_of_handles_does_not_end_its_agents(first):
    with pytest.raises(InvalidRequestError, match="knows no scheduler"):
        laid(first, PAIRS).stop()


def test_errors_of_workers_cross_processes():
    import pickle

    error = pickle.loads(pickle.dumps(WorkerDiedError("gone", "g", 3, "a", "m")))
    assert isinstance(error, WorkerError)
    assert (str(error), error.group, error.rank, error.agent) == ("gone", "g", 3, "a")
