"""Folders of torch.distributed.checkpoint, and state dicts of DTensors, with PyTorch as the oracle."""

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulemesh.checkpoints import (
    TensorForm,
    describe_dtensors,
    load_shards,
    open_dcp,
    open_safetensors,
    sharding_of,
    write_dcp,
)
from schedulemesh.dispatch import (
    Concat,
    ParallelLayout,
    Replicate,
    Shard,
    Sharding,
    Slice,
    fused_qkv,
    shard,
)
from schedulemesh.errors import InvalidRequestError
from tests.dispatch.strategies import ALL_MODES, SPLITTING, count, shapes, shardings

torch = pytest.importorskip("torch", reason="torch is not installed: there is no DCP")
dcp = pytest.importorskip("torch.distributed.checkpoint")

WORLD = 4
#: DCP warns where it runs without process groups.
ALONE = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def write(folder, tensors, spec, **options):
    """All ranks write at the same time; returns what each was told."""
    forms = {
        name: TensorForm(tuple(each.shape), str(each.dtype).removeprefix("torch."))
        for name, each in tensors.items()
    }
    parts = {name: shard(each, spec[name]).parts for name, each in tensors.items()}
    ranks = range(next(iter(spec.values())).layout.size)
    mine = [
        {name: each[rank] for name, each in parts.items() if each[rank] is not None}
        for rank in ranks
    ]
    with ThreadPoolExecutor(len(ranks)) as threads:
        calls = [
            threads.submit(write_dcp, folder, mine[rank], spec, rank, tensors=forms, **options)
            for rank in ranks
        ]
    return [call.result() for call in calls]


@ALONE
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_the_ranks_write_is_read_by_dcp_and_in_any_layout(data, tmp_path_factory):
    layout = ParallelLayout.of(tp=2, dp=2)
    tensors, spec = {}, {}
    for name, dtype in (("a", torch.float32), ("b.c", torch.bfloat16), ("d", torch.int64)):
        shape = data.draw(shapes())
        tensors[name] = torch.arange(count(shape)).to(dtype).reshape(shape)
        spec[name] = data.draw(shardings(shape, SPLITTING, layout))
    folder = tmp_path_factory.mktemp("dcp") / "set"
    assert sum(write(folder, tensors, spec)) == 1
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".written")]
    found = {name: torch.empty_like(each) for name, each in tensors.items() if each.numel()}
    if found:
        dcp.load(found, checkpoint_id=str(folder), no_dist=True)
    for name, each in found.items():
        assert torch.equal(each, tensors[name])
    stored = open_dcp(folder)
    other = {
        name: data.draw(shardings(tuple(each.shape), ALL_MODES)) for name, each in tensors.items()
    }
    for name, each in tensors.items():
        for rank, expected in enumerate(shard(each, other[name]).parts):
            rest = [key for key in tensors if key != name]
            mine = load_shards(stored, other[name], rank, ignore=rest).get(name)
            assert (mine is None) == (expected is None)
            assert mine is None or torch.equal(mine, expected)


@ALONE
def test_what_dcp_has_saved_is_read_under_other_names(tmp_path):
    state = {"q": torch.arange(8.0).reshape(4, 2), "kv": torch.arange(12.0).reshape(6, 2), "n": 3}
    dcp.save(state, checkpoint_id=str(tmp_path / "set"), no_dist=True)
    stored = open_dcp(tmp_path / "set")
    assert stored.forms == {"q": TensorForm((4, 2), "float32"), "kv": TensorForm((6, 2), "float32")}
    mapping = {"qk": Concat(("q", Slice("kv", 3))), "v": Slice("kv", start=3)}
    spec = {
        "qk": Sharding.of(ParallelLayout.of(tp=2), tp=1),
        "*": Sharding.of(ParallelLayout.of(tp=2)),
    }
    found = load_shards(stored, spec, 1, mapping=mapping, dtype={"qk": "bfloat16"})
    whole = torch.cat([state["q"], state["kv"][:3]])
    assert torch.equal(found["qk"], whole[:, 1:].bfloat16())
    assert torch.equal(found["v"], state["kv"][3:])


def test_a_rank_reads_only_the_chunks_that_it_needs(tmp_path):
    """Each of eight ranks has written a file: without the others, one rank of eight still reads its rows."""
    layout = ParallelLayout.of(dp=8)
    spec = {"x": Sharding.of(layout, dp=0)}
    whole = torch.arange(32.0).reshape(16, 2)
    write(tmp_path / "set", {"x": whole}, spec)
    stored = open_dcp(tmp_path / "set")
    for rank in set(range(8)) - {5}:
        (tmp_path / "set" / f"__{rank}_0.distcp").unlink()
    assert torch.equal(load_shards(stored, spec, 5)["x"], whole[10:12])
    with pytest.raises(InvalidRequestError, match=r"__4_0.distcp cannot be read: FileNotFound"):
        load_shards(stored, spec, 4)


@ALONE
@pytest.mark.parametrize("groups", [2, 8])
def test_a_chunk_is_read_once_for_all_that_is_wanted_of_it(groups, tmp_path, monkeypatch):
    stored = {name: torch.randn(size, 3) for name, size in (("q", 32), ("k", 16), ("v", 16))}
    write(tmp_path / "set", stored, dict.fromkeys(stored, Sharding.of(ParallelLayout.of(dp=2))))
    read, load = [], torch.load
    monkeypatch.setattr(torch, "load", lambda *a, **k: read.append(a) or load(*a, **k))
    fused = fused_qkv("q", "k", "v", heads=2 * groups, groups=groups, dim=16 // groups)
    mapping = {"qkv": fused, "tied": "q", "head": Slice("q", 5)}
    dtype = {"qkv": "bfloat16"}
    spec = Sharding.of(ParallelLayout.of(dp=1))
    found = load_shards(open_dcp(tmp_path / "set"), spec, 0, mapping=mapping, dtype=dtype)
    assert len(read) == 3
    parts = [each.reshape(groups, -1, 3) for each in stored.values()]
    assert torch.equal(found["qkv"], torch.cat(parts, 1).reshape(-1, 3).bfloat16())
    assert torch.equal(found["tied"], stored["q"])
    assert torch.equal(found["head"], stored["q"][:5])


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:50],
        lambda content: content[:-20],
        lambda content: bytes(len(content)),
        lambda content: pickle.dumps({"a": 1}),
        lambda content: pickle.dumps(SimpleNamespace()),
    ],
)
@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_a_damaged_file_is_named(name, damage, tmp_path):
    spec = {"x": Sharding.of(ParallelLayout.of(dp=1))}
    write(tmp_path / "set", {"x": torch.arange(4.0)}, spec)
    file = tmp_path / "set" / name
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InvalidRequestError, match=rf"set/{name} (cannot be read: \w+: |is not of)"):
        load_shards(open_dcp(tmp_path / "set"), spec, 0)


@pytest.mark.parametrize("array", [np.zeros(2, np.float32), np.float32(1), [0.0, 0.0]])
def test_only_tensors_of_torch_are_written(array, tmp_path):
    spec = {"x": Sharding.of(ParallelLayout.of(dp=1))}
    forms = {"x": TensorForm((2,), "float32")}
    with pytest.raises(InvalidRequestError, match=r"as 'x'; allowed are arrays of torch"):
        write_dcp(tmp_path / "set", {"x": array}, spec, 0, tensors=forms)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_dcps_is_refused(tmp_path):
    with pytest.raises(InvalidRequestError, match=r"has no file .metadata"):
        open_dcp(tmp_path)


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16])
def test_a_dtype_may_change_when_it_is_written(dtype, tmp_path):
    spec = {"x": Sharding.of(ParallelLayout.of(dp=2), dp=0)}
    write(tmp_path / "set", {"x": torch.arange(4.0)}, spec, dtype=dtype)
    assert open_dcp(tmp_path / "set").forms == {"x": TensorForm((4,), "bfloat16")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder in which four ranks have saved a model under FSDP over tensor parallelism."""
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    folder = tmp_path_factory.mktemp("fsdp")
    worker = str(Path(__file__).with_name("dcp_worker.py"))
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
    ranks = [
        subprocess.Popen(
            [sys.executable, worker, str(rank), str(WORLD), str(folder)], env=environment
        )
        for rank in range(WORLD)
    ]
    try:
        assert [each.wait(timeout=180) for each in ranks] == [0] * WORLD
    finally:
        for each in ranks:
            each.kill()
    return folder


def expected_model():
    """The weights before they were split."""
    from torch import nn

    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 7), nn.LayerNorm(7))
    return {name: each for name, each in model.state_dict().items() if not name.startswith("2.")}


def test_dtensors_of_fsdp_over_tensor_parallelism_are_saved_as_dcp_saves_them(trained):
    expected = expected_model()
    whole = Sharding.of(ParallelLayout.of(dp=1))
    stored = [
        open_dcp(trained / "theirs"),
        open_dcp(trained / "ours"),
        open_safetensors(trained / "files"),
    ]
    for each in stored:
        found = load_shards(each, whole, 0, shapes={k: v.shape for k, v in expected.items()})
        assert set(found) == set(expected)
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor), name


def test_dcp_loads_what_we_saved_into_the_dtensors_of_the_model(trained):
    for rank in range(WORLD):
        answers = torch.load(trained / f"{rank}.pt")
        assert len(answers["expected"]) == 4
        for name, expected in answers["expected"].items():
            assert torch.equal(answers["loaded"][name], expected), (rank, name)


def fake(placements, sizes, ranks=None, names=None):
    """What ``sharding_of`` reads of a DTensor; real ones are in the tests above."""
    mesh = torch.arange(count(sizes)).reshape(sizes) if ranks is None else torch.tensor(ranks)
    return SimpleNamespace(
        device_mesh=SimpleNamespace(mesh=mesh, ndim=mesh.ndim, mesh_dim_names=names),
        placements=placements,
    )


def test_placements_and_mesh_become_a_sharding():
    from torch.distributed.tensor import Partial
    from torch.distributed.tensor import Replicate as Same
    from torch.distributed.tensor import Shard as Split

    found = sharding_of(fake((Same(), Split(1)), (2, 3), names=("dp", "tp")))
    assert found == Sharding(
        layout=ParallelLayout.of("tp-dp", tp=3, dp=2),
        placements=(("dp", Replicate()), ("tp", Shard(1, "chunk"))),
    )
    assert sharding_of(fake((Split(0),), (2,))).layout.names == ("dim_0",)
    with pytest.raises(InvalidRequestError, match="redistribute it to Replicate or Shard"):
        sharding_of(fake((Partial(),), (2,)))
    with pytest.raises(InvalidRequestError, match=r"the mesh has the ranks \[1, 0\]"):
        sharding_of(fake((Split(0),), (2,), ranks=[1, 0]))


def test_a_strided_placement_splits_after_the_one_that_it_strides_over():
    from torch.distributed.tensor import Shard as Split
    from torch.distributed.tensor.placement_types import _StridedShard

    found = sharding_of(
        fake((_StridedShard(0, split_factor=2), Split(0)), (2, 2), names=("dp", "tp"))
    )
    assert [name for name, _ in found.placements] == ["tp", "dp"]
    with pytest.raises(InvalidRequestError, match="stride over 4 parts"):
        sharding_of(fake((_StridedShard(0, split_factor=4), Split(0)), (2, 2)))


def test_a_state_dict_with_other_values_is_refused():
    with pytest.raises(InvalidRequestError, match=r"\['step'\] are no tensors"):
        describe_dtensors({"step": 3})
    with pytest.raises(InvalidRequestError, match="no tensor is a DTensor"):
        describe_dtensors({"w": torch.zeros(2)})
