"""How data gets from worker to worker: shared memory of a node, and direct transports of tensors."""

from pathlib import Path

import pytest

from schedulemesh.core import RayScheduler, ShardHolder, WorkerGroup, reshard
from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.dispatch import ParallelLayout, Sharding, shard
from schedulemesh.errors import InvalidRequestError

np = pytest.importorskip("numpy")

TWO, PAIR = ParallelLayout.of(dp=2), ParallelLayout.of(tp=2)
#: A row of 1 MiB, so that Ray keeps it in the object store instead of sending it with the call.
ROW = 2**17


class Worker(ShardHolder, AgentActor):
    """Says how it holds what it was given."""

    def echo(self, part):
        return part

    def fill(self, whole, library):
        """Hold this rank's half of the rows, and the last row, as arrays of a library."""
        mine = np.array_split(whole, 2)[int(self.labels["rank"])].copy()
        tree = {"w": mine, "b": whole[-1].copy()}
        if library == "torch":
            import torch

            tree = {name: torch.from_numpy(array) for name, array in tree.items()}
        self.keep_shards(tree, "w")

    def lies(self, key):
        return self.storage(self.shards(key)["w"])

    def storage(self, part):
        """Whether the array can be written to, owns its memory, and where that is in which file."""
        address = part.ctypes.data
        for line in Path("/proc/self/maps").read_text(encoding="ascii").splitlines():
            bounds, _, offset, _, inode, *file = line.split()
            begin, end = (int(bound, 16) for bound in bounds.split("-"))
            if begin <= address < end:
                place = (int(inode), int(offset, 16) + address - begin)
                return part.flags.writeable, part.flags.owndata, " ".join(file), place
        return None


@pytest.fixture(scope="module")
def mesh(ray_cluster):
    scheduler = RayScheduler("transports", namespace="test-transports")
    scheduler.create_pool("workers", resources={"cpu": 4})
    yield scheduler
    scheduler.shutdown()


def started(mesh, name, layout, **options):
    return WorkerGroup.submit(
        mesh,
        name,
        Worker,
        layout=layout,
        pool="workers",
        resources={"cpu": 0.25},
        timeout_s=60,
        **options,
    )


@pytest.fixture(scope="module")
def plain(mesh):
    return started(mesh, "plain", PAIR)


@pytest.fixture(scope="module")
def other(mesh):
    return started(mesh, "other", PAIR)


@pytest.fixture(scope="module")
def direct(mesh):
    pytest.importorskip("torch")
    if not hasattr(pytest.importorskip("ray.experimental.collective"), "create_collective_group"):
        pytest.skip("this Ray has no direct transports")
    options = {"enable_tensor_transport": True}
    return [started(mesh, name, TWO, ray_options=options) for name in ("source", "target")]


@pytest.mark.parametrize("given", ["by this process", "by a worker"])
def test_workers_of_a_node_share_the_memory_of_an_array(plain, given):
    """Both replicas read the same pages of the object store, and cannot write to them."""
    rows = np.arange(4 * ROW, dtype=np.float64).reshape(4, ROW)
    data = rows if given == "by this process" else plain.dispatch("echo", rows)
    found = plain.dispatch("storage", data, "replicate").outputs()
    for writeable, owned, file, _ in found:
        assert not writeable
        assert not owned
        assert "plasma" in file
    assert found[0][-1] == found[1][-1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
@pytest.mark.parametrize("rows", [4, 4096])
def test_tensors_move_with_gloo_as_with_the_object_store(direct, dtype, rows):
    """Slices that are packed into one buffer, and slices that are sent one by one."""
    import torch

    source, target = direct
    whole = torch.arange(rows * 64).reshape(rows, 64).to(getattr(torch, dtype))
    tree = {"w": whole, "b": whole[0].clone()}
    held = {"w": Sharding.of(TWO, dp=0), "b": Sharding(layout=TWO)}
    wanted = {"w": Sharding.of(TWO, dp=1), "b": Sharding(layout=TWO)}
    source.dispatch("keep_shards", tree, held, arguments={"key": "w"}).outputs()
    options = {"source": held, "destination": wanted, "shapes": {"w": (rows, 64), "b": (64,)}}
    moved = [
        reshard(source, target, "w", transport=transport, timeout_s=60, **options)
        for transport in ("gloo", "object_store")
    ]
    assert moved[0].received == moved[1].received
    moved = reshard(source, target, "w", transport="gloo", timeout_s=60, **options)
    assert moved.bytes_moved > 0
    for part, expected in zip(
        target.call("shards", "w").outputs(), shard(tree, wanted).parts, strict=True
    ):
        for name in tree:
            assert part[name].dtype == expected[name].dtype
            assert torch.equal(part[name], expected[name])


ROWS = Sharding.of(PAIR, tp=0)
WHOLE = Sharding(layout=PAIR)


def moved_in_memory(source, target, number, rows):
    """Move to and fro: from rows to columns with even numbers, back with odd ones."""
    held, wanted = {"w": ROWS, "b": WHOLE}, {"w": Sharding.of(PAIR, tp=1), "b": WHOLE}
    sides = (source, target) if number % 2 == 0 else (target, source)
    specs = (held, wanted) if number % 2 == 0 else (wanted, held)
    found = reshard(
        *sides,
        "w",
        source=specs[0],
        destination=specs[1],
        shapes={"w": (rows, 64), "b": (64,)},
        transport="shared_memory",
        timeout_s=60,
    )
    return sides[1], specs[1], found


@pytest.mark.parametrize(("library", "rows"), [("numpy", 4), ("numpy", 4096), ("torch", 4096)])
def test_workers_of_a_node_write_into_the_arrays_of_others(plain, other, library, rows):
    """Twice each way, so that memory is used again; what was held before keeps its values."""
    pytest.importorskip(library)
    whole = np.arange(rows * 64, dtype=np.int32).reshape(rows, 64)
    plain.call("fill", whole, library).outputs()
    for number in range(4):
        before = other.call("shards", "w").outputs() if number == 2 else None
        target, spec, found = moved_in_memory(plain, other, number, rows)
        assert found.bytes_moved == whole.nbytes + 2 * whole[0].nbytes
        parts = target.call("shards", "w").outputs()
        for part, expected in zip(parts, shard(whole, spec["w"]).parts, strict=True):
            assert np.array_equal(np.asarray(part["w"]), expected)
            assert np.array_equal(np.asarray(part["b"]), whole[-1])
        assert before is None or np.array_equal(np.asarray(before[0]["b"]), whole[-1])


def test_memory_is_used_again_for_the_version_after_next(plain, other):
    """Two versions alternate between the same two files in memory, however often weights are moved."""
    plain.call("fill", np.zeros((8, 64), np.int32), "numpy").outputs()
    files = []
    for number in range(10):
        target, *_ = moved_in_memory(plain, other, number, 8)
        if target is other:
            files.append([storage[3] for storage in target.call("lies", "w").outputs()])
    assert files[0] != files[1]
    assert files[0] == files[2] == files[4]
    assert files[1] == files[3]


def test_arrays_are_not_sent_with_a_transport_of_tensors(direct):
    source, target = direct
    rows = Sharding.of(TWO, dp=0)
    source.dispatch("keep_shards", np.zeros((4, 2**17)), rows, arguments={"key": "n"}).outputs()
    with pytest.raises(InvalidRequestError, match="under 'n' are numpy <f8 arrays"):
        reshard(
            source,
            target,
            "n",
            source=rows,
            destination=Sharding.of(TWO, dp=1),
            shapes=(4, 2**17),
            transport="gloo",
            timeout_s=60,
        )


class Initialized(Worker):
    """Has a process group of its own, as a training has."""

    def initialize(self, file):
        import torch.distributed

        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{file}", rank=0, world_size=1
        )


def test_agents_that_initialize_torch_distributed_themselves_are_refused(mesh, direct, tmp_path):
    options = {"enable_tensor_transport": True}
    alone = ParallelLayout.of(dp=1)
    own = WorkerGroup.submit(
        mesh,
        "own",
        Initialized,
        layout=alone,
        pool="workers",
        resources={"cpu": 0.25},
        ray_options=options,
    )
    own.call("initialize", str(tmp_path / "store")).outputs()
    rows = Sharding.of(alone, dp=0)
    with pytest.raises(InvalidRequestError, match="agents own-0 have initialized torch"):
        reshard(own, own, "w", source=rows, destination=rows, transport="gloo")
    own.stop()


def test_groups_that_cannot_use_a_transport_are_refused(mesh, plain):
    rows = Sharding.of(TWO, dp=0)
    group = WorkerGroup("flat", plain.handles, TWO)

    def refused(transport, message):
        with pytest.raises(InvalidRequestError, match=message):
            reshard(group, group, "w", source=rows, destination=rows, transport=transport)

    refused(
        "pigeon", "there is no transport 'pigeon'; allowed are object_store, shared_memory, gloo"
    )
    refused("gloo", "enable_tensor_transport.*; leave transport out to use the object store")
