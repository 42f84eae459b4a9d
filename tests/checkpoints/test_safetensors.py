"""Safetensors files: each rank reads and writes only its slices, and any program reads what was written."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from threading import Barrier

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulemesh.checkpoints import (
    TensorForm,
    load_shards,
    open_safetensors,
    write_safetensors,
)
from schedulemesh.checkpoints.shared_folder import SharedFolder, durable
from schedulemesh.dispatch import (
    Concat,
    ParallelLayout,
    Shard,
    Sharding,
    Slice,
    Stage,
    fused_qkv,
    separate_qkv,
    shard,
)
from schedulemesh.errors import InvalidRequestError
from tests.dispatch.strategies import ALL_MODES, SPLITTING, count, shapes, shardings

safetensors = pytest.importorskip(
    "safetensors", reason="safetensors is not installed: its files cannot be compared with"
)
from safetensors.numpy import load_file, save_file  # noqa: E402


def forms(tensors):
    return {
        name: TensorForm(tuple(each.shape), str(each.dtype).removeprefix("torch."))
        for name, each in tensors.items()
    }


def parts_of(tensors, spec):
    """By rank, its part of each tensor; without those of which it holds nothing."""
    split = {name: shard(each, spec[name]).parts for name, each in tensors.items()}
    ranks = next(iter(spec.values())).layout.size
    return [
        {name: parts[rank] for name, parts in split.items() if parts[rank] is not None}
        for rank in range(ranks)
    ]


def write(folder, tensors, spec, **options):
    """All ranks write at the same time; returns what each was told."""
    parts = parts_of(tensors, spec)
    with ThreadPoolExecutor(len(parts)) as threads:
        calls = [
            threads.submit(
                write_safetensors, folder, part, spec, rank, tensors=forms(tensors), **options
            )
            for rank, part in enumerate(parts)
        ]
    return [call.result() for call in calls]


@settings(max_examples=150)
@given(data=st.data())
def test_each_rank_gets_what_shard_gives_it(data, tmp_path_factory):
    shape = data.draw(shapes())
    sharding = data.draw(shardings(shape, ALL_MODES))
    whole = np.arange(count(shape), dtype=np.int32).reshape(shape)
    path = tmp_path_factory.mktemp("read") / "one.safetensors"
    save_file({"x": whole}, path)
    with_numpy = open_safetensors(path, library="numpy")
    for rank, expected in enumerate(shard(whole, sharding).parts):
        found = load_shards(with_numpy, sharding, rank)
        if expected is None:
            assert found == {}
        else:
            assert found["x"].dtype == np.int32
            assert np.array_equal(found["x"], expected)


@settings(max_examples=150)
@given(data=st.data())
def test_what_the_ranks_write_is_a_file_of_safetensors(data, tmp_path_factory):
    tensors, spec = {}, {}
    layout = ParallelLayout.of(tp=2, dp=2, pp=data.draw(st.integers(1, 2)))
    for name, dtype in (("a", np.float64), ("b.c", np.int8), ("d", np.float16)):
        shape = data.draw(shapes())
        tensors[name] = np.arange(count(shape)).astype(dtype).reshape(shape)
        spec[name] = data.draw(shardings(shape, SPLITTING, layout))
    folder = tmp_path_factory.mktemp("write") / "set"
    told = write(folder, tensors, spec)
    assert sum(told) == 1
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
    found = load_file(folder / "model.safetensors")
    assert set(found) == set(tensors)
    for name, expected in tensors.items():
        assert found[name].dtype == expected.dtype
        assert np.array_equal(found[name], expected)


ROWS = Sharding.of(ParallelLayout.of(dp=2), dp=0)


def test_several_files_have_an_index_and_are_read_by_it(tmp_path):
    tensors = {f"layer.{n}.w": np.full((4, 8), n, np.float32) for n in range(5)}
    write(tmp_path / "set", tensors, dict.fromkeys(tensors, ROWS), max_file_bytes=300)
    names = sorted(path.name for path in (tmp_path / "set").iterdir())
    assert names == [
        *(f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3)),
        "model.safetensors.index.json",
    ]
    index = json.loads((tmp_path / "set" / names[-1]).read_text())
    assert index["metadata"] == {"total_size": 5 * 128}
    assert index["weight_map"]["layer.4.w"] == names[2]
    for name in names[:-1]:
        for key, found in load_file(tmp_path / "set" / name).items():
            assert index["weight_map"][key] == name
            assert np.array_equal(found, tensors[key])
    four = Sharding.of(ParallelLayout.of(tp=4), tp=1)
    found = load_shards(open_safetensors(tmp_path / "set", library="numpy"), four, 3)
    assert {key: part.shape for key, part in found.items()} == dict.fromkeys(tensors, (4, 2))
    assert found["layer.3.w"].max() == 3


def test_the_metadata_is_that_of_all_files(tmp_path):
    tensors = {"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)}
    spec = dict.fromkeys(tensors, ROWS)
    write(tmp_path / "set", tensors, spec, max_file_bytes=8, metadata={"step": "7"})
    assert open_safetensors(tmp_path / "set", library="numpy").metadata == {
        "format": "pt",
        "step": "7",
    }


@pytest.mark.parametrize("metadata", [{"step": 7}, {"step": None}, {7: "step"}])
def test_metadata_that_could_not_be_read_again_are_refused(metadata, tmp_path):
    with pytest.raises(InvalidRequestError, match=r"metadata has .*safetensors allows strings"):
        write(tmp_path / "set", {"x": np.zeros(2)}, {"x": ROWS}, metadata=metadata)
    assert not list(tmp_path.iterdir())


def test_a_folder_appears_when_all_ranks_have_written(tmp_path):
    tensors = {"x": np.arange(4)}
    spec = {"x": ROWS}
    first, second = parts_of(tensors, spec)
    options = {"tensors": forms(tensors)}
    assert not write_safetensors(tmp_path / "set", second, spec, 1, **options)
    assert not (tmp_path / "set").exists()
    # An attempt that ended early does not mix with one that writes something else.
    assert not write_safetensors(
        tmp_path / "set", first, spec, 0, **options, metadata={"step": "2"}
    )
    assert not (tmp_path / "set").exists()
    assert write_safetensors(tmp_path / "set", first, spec, 0, **options)
    assert load_file(tmp_path / "set" / "model.safetensors")["x"].tolist() == [0, 1, 2, 3]
    with pytest.raises(InvalidRequestError, match="set exists"):
        write_safetensors(tmp_path / "set", first, spec, 0, **options)


def test_one_of_the_ranks_that_finish_together_completes_the_folder(tmp_path):
    """Completing it twice once removed the metadata that the other had written."""
    ranks = 8
    with ThreadPoolExecutor(ranks) as threads:
        for number in range(50):
            together = Barrier(ranks)

            def finish(rank, path=tmp_path / str(number), together=together):
                folder = SharedFolder.of(path, ranks, rank, b"the same", "")
                together.wait(timeout=60)
                return folder.finish(
                    rank, b"x", lambda records: durable(folder.partial / "all", b"".join(records))
                )

            assert sum(threads.map(finish, range(ranks))) == 1
            (found,) = (tmp_path / str(number)).iterdir()
            assert (found.name, found.read_bytes()) == ("all", b"x" * ranks)


def test_parts_of_an_attempt_that_was_killed_are_not_taken_for_those_of_the_next(tmp_path):
    tensors = {"x": np.arange(4)}
    spec, options = {"x": ROWS}, {"tensors": forms(tensors)}
    old, new = parts_of({"x": tensors["x"] + 100}, spec), parts_of(tensors, spec)
    assert not write_safetensors(tmp_path / "set", old[0], spec, 0, **options, attempt="1")
    assert not write_safetensors(tmp_path / "set", new[1], spec, 1, **options, attempt="2")
    assert not (tmp_path / "set").exists()
    assert write_safetensors(tmp_path / "set", new[0], spec, 0, **options, attempt="2")
    assert load_file(tmp_path / "set" / "model.safetensors")["x"].tolist() == [0, 1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


# Hugging Face ↔ Megatron: fused attention in groups; gate and up in one weight, each rank with both.

HEADS, GROUPS, HEAD, HIDDEN, FFN = 4, 2, 3, 8, 6
HF = {
    f"model.layers.{layer}.{name}": shape
    for layer in range(2)
    for name, shape in {
        "self_attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
        "self_attn.k_proj.weight": (GROUPS * HEAD, HIDDEN),
        "self_attn.v_proj.weight": (GROUPS * HEAD, HIDDEN),
        "mlp.gate_proj.weight": (FFN, HIDDEN),
        "mlp.up_proj.weight": (FFN, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, FFN),
    }.items()
} | {"model.embed_tokens.weight": (10, HIDDEN), "rotary.inv_freq": (3,)}
ATTENTION, MLP = "model.layers.*.self_attn.", "model.layers.*.mlp."
TO_MEGATRON = {
    "decoder.layers.*.qkv": fused_qkv(
        *(f"{ATTENTION}{each}_proj.weight" for each in "qkv"), heads=HEADS, groups=GROUPS, dim=HEAD
    ),
    "decoder.layers.*.fc1": Concat((f"{MLP}gate_proj.weight", f"{MLP}up_proj.weight")),
    "decoder.layers.*.fc2": f"{MLP}down_proj.weight",
    "embedding": "model.embed_tokens.weight",
}
MEGATRON = {
    f"decoder.layers.{layer}.{name}": shape
    for layer in range(2)
    for name, shape in {
        "qkv": ((HEADS + 2 * GROUPS) * HEAD, HIDDEN),
        "fc1": (2 * FFN, HIDDEN),
        "fc2": (HIDDEN, FFN),
    }.items()
} | {"embedding": (10, HIDDEN)}


def megatron_spec(tp):
    layout = ParallelLayout.of(tp=tp, dp=2)
    by_name = {
        "qkv": Shard(0),
        "fc1": Shard(0, documents=(FFN, FFN)),
        "fc2": Shard(1),
        "embedding": Shard(0),
    }
    return {name: Sharding.of(layout, tp=by_name[name.split(".")[-1]]) for name in MEGATRON}


def hf_tensors():
    tensors = {}
    for number, (name, shape) in enumerate(HF.items()):
        tensors[name] = (1000 * number + np.arange(count(shape), dtype=np.float32)).reshape(shape)
    return tensors


def test_a_model_of_hugging_face_is_read_in_the_layout_of_megatron(tmp_path):
    tensors = hf_tensors()
    save_file(tensors, tmp_path / "model.safetensors")
    stored = open_safetensors(tmp_path, library="numpy")
    for tp, rank in product((1, 2), range(4)):
        if rank >= 2 * tp:
            continue
        found = load_shards(
            stored,
            megatron_spec(tp),
            rank,
            mapping=TO_MEGATRON,
            shapes=MEGATRON,
            ignore=["rotary.*"],
            dtype={"decoder.**": "float16"},
        )
        assert set(found) == set(MEGATRON)
        at, half = rank % tp, FFN // tp
        layer = {name.split(".", 3)[3]: each for name, each in tensors.items() if ".1." in name}
        gate, up = (layer[f"mlp.{each}_proj.weight"] for each in ("gate", "up"))
        mine = slice(at * half, (at + 1) * half)
        fc1 = np.concatenate([gate[mine], up[mine]]).astype(np.float16)
        assert np.array_equal(found["decoder.layers.1.fc1"], fc1)
        q, k, v = (layer[f"self_attn.{each}_proj.weight"] for each in "qkv")
        own = range(at * GROUPS // tp, (at + 1) * GROUPS // tp)
        per = HEADS // GROUPS * HEAD
        rows = [
            part
            for group in own
            for part in (
                q[group * per : (group + 1) * per],
                k[group * HEAD : (group + 1) * HEAD],
                v[group * HEAD : (group + 1) * HEAD],
            )
        ]
        assert np.array_equal(
            found["decoder.layers.1.qkv"], np.concatenate(rows).astype(np.float16)
        )
        assert found["embedding"].dtype == np.float32


def test_a_group_in_the_layout_of_megatron_writes_a_model_of_hugging_face(tmp_path):
    tensors = {key: each for key, each in hf_tensors().items() if not key.startswith("rotary")}
    save_file(tensors, tmp_path / "model.safetensors")
    stored, spec = open_safetensors(tmp_path, library="numpy"), megatron_spec(2)
    arrays = [load_shards(stored, spec, rank, mapping=TO_MEGATRON) for rank in range(4)]
    query, key, value = separate_qkv("decoder.layers.*.qkv", heads=HEADS, groups=GROUPS, dim=HEAD)
    to_hf = {
        f"{ATTENTION}q_proj.weight": query,
        f"{ATTENTION}k_proj.weight": key,
        f"{ATTENTION}v_proj.weight": value,
        f"{MLP}gate_proj.weight": Slice("decoder.layers.*.fc1", FFN),
        f"{MLP}up_proj.weight": Slice("decoder.layers.*.fc1", start=FFN),
        f"{MLP}down_proj.weight": "decoder.layers.*.fc2",
        "model.embed_tokens.weight": "embedding",
    }
    whole = {name: TensorForm(shape, "float32") for name, shape in MEGATRON.items()}
    done = [
        write_safetensors(
            tmp_path / "again", arrays[rank], spec, rank, tensors=whole, mapping=to_hf
        )
        for rank in range(4)
    ]
    assert done == [False, False, False, True]
    found = load_file(tmp_path / "again" / "model.safetensors")
    assert set(found) == set(tensors)
    for name, expected in tensors.items():
        assert np.array_equal(found[name], expected)


def test_a_rank_reads_only_its_slices(tmp_path):
    """Of a file with a hole of 4 GiB, which takes no room on disk, one of 128 ranks maps 32 MiB at most."""
    shape, size = (1 << 20, 1024), 1 << 32
    header = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}).encode()
    header += b" " * (-len(header) % 8)
    path = tmp_path / "hole.safetensors"
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    code = (
        "import resource, sys\n"
        "from schedulemesh.checkpoints import load_shards, open_safetensors\n"
        "from schedulemesh.dispatch import ParallelLayout, Sharding\n"
        "import numpy, safetensors.numpy\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
        "before = peak()\n"
        "spec = Sharding.of(ParallelLayout.of(dp=128), dp=0)\n"
        "found = load_shards(open_safetensors(sys.argv[1], library='numpy'), spec, 77)\n"
        "assert found['x'].nbytes == 32 << 20\n"
        "assert not found['x'].any()\n"
        "print(peak() - before)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    # The array, one copy of it that safetensors returns, and the pages of the file.
    assert int(told.stdout) <= 3 * 32 + 16


def test_ranks_that_are_processes_write_together(tmp_path):
    code = (
        "import sys, numpy as np\n"
        "from schedulemesh.checkpoints import TensorForm, write_safetensors\n"
        "from schedulemesh.dispatch import ParallelLayout, Sharding\n"
        "rank = int(sys.argv[2])\n"
        "spec = Sharding.of(ParallelLayout.of(tp=4), tp=1)\n"
        "mine = np.arange(64 * 64).reshape(64, 64)[:, rank * 16 : rank * 16 + 16]\n"
        "form = {'x': TensorForm((64, 64), 'int64')}\n"
        "write_safetensors(sys.argv[1], {'x': mine}, spec, rank, tensors=form)\n"
    )
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "set"), str(rank)])
        for rank in range(4)
    ]
    assert [each.wait(timeout=60) for each in ranks] == [0] * 4
    found = load_file(tmp_path / "set" / "model.safetensors")["x"]
    assert np.array_equal(found, np.arange(64 * 64).reshape(64, 64))


def test_dtypes_that_numpy_lacks_are_read_with_torch(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed: NumPy has no bfloat16")
    tensors = {
        "half": torch.arange(12, dtype=torch.bfloat16).reshape(3, 4),
        "eighth": torch.arange(4).to(torch.float8_e4m3fn),
        "flag": torch.tensor([True, False]),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
    }
    layout = ParallelLayout.of(tp=2)
    spec = {name: Sharding.of(layout) for name in tensors} | {"half": Sharding.of(layout, tp=1)}
    write(tmp_path / "set", tensors, spec)
    from safetensors.torch import load_file as load_tensors

    found = load_tensors(tmp_path / "set" / "model.safetensors")
    assert {name: each.dtype for name, each in found.items()} == {
        name: each.dtype for name, each in tensors.items()
    }
    stored = open_safetensors(tmp_path / "set")
    mine = load_shards(stored, spec, 1)
    assert torch.equal(mine["half"], tensors["half"][:, 2:])
    assert torch.equal(mine["eighth"].float(), tensors["eighth"].float())
    assert mine["scalar"] == 2.5
    assert mine["empty"].shape == (0, 3)
    wide = load_shards(stored, spec, 0, dtype={"half": "float32"})
    assert wide["half"].dtype == torch.float32
    assert torch.equal(wide["half"], tensors["half"][:, :2].float())
    with pytest.raises(InvalidRequestError, match=r"NumPy has no dtype b?float"):
        load_shards(open_safetensors(tmp_path / "set", library="numpy"), spec, 0)
    with pytest.raises(InvalidRequestError, match=r"NumPy has no dtype b?float"):
        load_shards(open_safetensors(tmp_path / "set", library="numpy"), spec, 0, dtype="float32")


def test_tensors_without_elements_of_their_own_are_refused(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    whole = {"a": TensorForm((4,), "float32")}
    for made in (torch.empty(2, device="meta"), torch.zeros(2).to_sparse()):
        with pytest.raises(InvalidRequestError, match="as 'a'; allowed are strided tensors"):
            write_safetensors(tmp_path / "new", {"a": made}, {"a": ROWS}, 0, tensors=whole)


def test_views_of_torch_are_written_as_their_elements(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    complex_one = torch.tensor([1 + 2j, 3 - 4j])
    tensors = {
        "one": torch.tensor([[1.0, 2.0]])[:, 1],  # one element, of which the stride is 2
        "none": torch.zeros(0, 2)[:, 0],
        "column": torch.arange(6.0).reshape(3, 2)[:, 1],
        "conjugate": complex_one.conj(),
        "negative": complex_one.conj().imag,
        "scalar": torch.tensor([[1.0, 2.0]])[0, 1],
    }
    whole = Sharding.of(ParallelLayout.of(dp=1))
    write(tmp_path / "set", tensors, dict.fromkeys(tensors, whole))
    found = load_shards(open_safetensors(tmp_path / "set"), whole, 0)
    for name, each in tensors.items():
        assert torch.equal(found[name], each), name


def test_dtypes_may_be_those_of_the_libraries(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert TensorForm([4], np.dtype("float32")) == TensorForm((4,), torch.float32)
    assert TensorForm(np.array([4]), np.bool_) == TensorForm((4,), "bool")
    for at, dtype in enumerate((torch.float16, np.float16, np.dtype("float16"), "float16")):
        folder = tmp_path / str(at)
        write(
            folder, {"a": np.ones(4), "b": np.ones(2)}, {"a": ROWS, "b": ROWS}, dtype={"a": dtype}
        )
        stored = open_safetensors(folder)
        assert {key: form.dtype for key, form in stored.forms.items()} == {
            "a": "float16",
            "b": "float64",
        }
        assert load_shards(stored, ROWS, 0, dtype=dtype)["b"].dtype == torch.float16
    for unknown in (torch.complex128, np.dtype(">f4"), float, 4):
        with pytest.raises(InvalidRequestError, match=r"a: dtype '.*; allowed are float64"):
            load_shards(stored, ROWS, 0, dtype=unknown)


def saved(tmp_path, **tensors):
    save_file(tensors, tmp_path / "model.safetensors")
    return open_safetensors(tmp_path, library="numpy")


def test_wrong_requests_name_the_tensor(tmp_path):
    stored = saved(tmp_path, a=np.zeros(4, np.float32), b=np.zeros(4, np.float16))
    with pytest.raises(InvalidRequestError, match=r"x is made of .'a', 'b'. with the dtypes"):
        load_shards(stored, ROWS, 0, mapping={"x": Concat(("a", "b"))})
    with pytest.raises(
        InvalidRequestError, match=r"a: dtype 'flaot32' \(did you mean 'float32'\?\)"
    ):
        load_shards(stored, ROWS, 0, dtype="flaot32")
    with pytest.raises(InvalidRequestError, match="the spec has no entry for 'b'"):
        load_shards(stored, {"a": ROWS}, 0)
    with pytest.raises(InvalidRequestError, match=r"nothing makes 'c'"):
        load_shards(stored, ROWS, 0, shapes={"a": (4,), "b": (4,), "c": (1,)})
    whole = {"a": TensorForm((4,), "float32")}
    for arrays, message in (
        ({"a": np.zeros(3, np.float32)}, r"rank 0 has float32 \(3,\) as 'a'"),
        ({"a": np.zeros(2)}, r"rank 0 has float64 \(2,\) as 'a'"),
        ({}, "rank 0 has nothing as 'a'"),
        ({"a": np.zeros(2, np.float32), "z": np.zeros(1)}, r"rank 0 has \['z'\]"),
        ({"a": [0.0, 0.0]}, "rank 0 has a list as 'a'; allowed are arrays of numpy and torch"),
        (
            {"a": np.ma.array(np.zeros(2, np.float32), mask=[0, 1])},
            "masked array as 'a'.* as two arrays",
        ),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            write_safetensors(tmp_path / "new", arrays, {"a": ROWS}, 0, tensors=whole)
    with pytest.raises(InvalidRequestError, match=r"\(4,\) for 'a'; allowed is TensorForm"):
        write_safetensors(tmp_path / "new", {}, {"a": ROWS}, 0, tensors={"a": (4,)})
    for rank in (-1, 2):
        with pytest.raises(InvalidRequestError, match=f"rank {rank} is not .* allowed are 0 to 1"):
            load_shards(stored, ROWS, rank)
        with pytest.raises(InvalidRequestError, match=f"rank {rank} is not .* allowed are 0 to 1"):
            write_safetensors(tmp_path / "new", {}, {"a": ROWS}, rank, tensors=whole)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("value", [None, "x", 300, 0.5])
def test_padding_is_a_value_of_the_dtype(value, tmp_path):
    stored = saved(tmp_path, a=np.arange(3, dtype=np.uint8))
    layout = ParallelLayout.of(dp=2)
    padded = Sharding.of(layout, dp=Shard(0, "pad"), pad_value=value)
    assert load_shards(stored, padded, 0)["a"].tolist() == [0, 1]  # it has no padding
    with pytest.raises(InvalidRequestError, match=f"a: pad_value={value!r} for an array of uint8"):
        load_shards(stored, padded, 1)
    number = Sharding.of(layout, dp=Shard(0, "pad"), pad_value=255)
    assert load_shards(stored, number, 1)["a"].tolist() == [2, 255]


def test_a_tensor_cannot_have_the_name_of_the_metadata(tmp_path):
    whole = {"__metadata__": TensorForm((4,), "float32")}
    part = {"__metadata__": np.zeros(2, np.float32)}
    with pytest.raises(InvalidRequestError, match="a tensor is named '__metadata__'"):
        write_safetensors(tmp_path / "new", part, {"__metadata__": ROWS}, 0, tensors=whole)
    assert not (tmp_path / "new").exists()


def test_a_dtype_without_a_name_is_refused():
    with pytest.raises(InvalidRequestError, match=r"dtype 'float'.*allowed are float64, float32"):
        TensorForm((4,), "float")


def test_values_without_dims_are_read_and_written_with_numpy(tmp_path):
    tensors = {"step": np.array(7), "w": np.arange(2.0)}
    spec = {"step": Sharding.of(ROWS.layout), "w": ROWS}
    write(tmp_path / "set", tensors, spec)
    found = load_shards(open_safetensors(tmp_path / "set", library="numpy"), spec, 1)
    assert (found["step"].shape, found["step"].item()) == ((), 7)
    assert found["w"].tolist() == [1.0]


def test_wrong_files_are_named(tmp_path):
    with pytest.raises(InvalidRequestError, match="0 safetensors files and 0 indexes"):
        open_safetensors(tmp_path)
    (tmp_path / "bad.safetensors").write_bytes(b"not one")
    with pytest.raises(InvalidRequestError, match=r"bad.safetensors cannot be read"):
        open_safetensors(tmp_path, library="numpy")
    save_file({"a": np.zeros(2)}, tmp_path / "one.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}))
    with pytest.raises(InvalidRequestError, match=r"'b' is in .*one.safetensors, which does not"):
        open_safetensors(tmp_path, library="numpy")
    for damaged in ('{"weight_map": {"a":', '{"weights": {}}'):
        index.write_text(damaged)
        with pytest.raises(InvalidRequestError, match=r"index.json cannot be read"):
            open_safetensors(tmp_path, library="numpy")
    index.write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(InvalidRequestError, match=r"gone.safetensors cannot be read"):
        open_safetensors(tmp_path, library="numpy")


def test_a_rank_of_another_stage_writes_nothing_of_the_tensor(tmp_path):
    layout = ParallelLayout.of(pp=2)
    spec = {"a": Sharding.of(layout, pp=Stage(0)), "b": Sharding.of(layout, pp=Stage(1))}
    tensors = {"a": np.arange(3), "b": np.arange(2)}
    write(tmp_path / "set", tensors, spec)
    found = load_file(tmp_path / "set" / "model.safetensors")
    assert {name: each.tolist() for name, each in found.items()} == {"a": [0, 1, 2], "b": [0, 1]}
