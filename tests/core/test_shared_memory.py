"""Blocks that the processes of a node share: when they are used again, and who may write to them."""

import errno
import gc
import multiprocessing
import os

import pytest

from schedulemesh.core.worker_groups import shared_memory
from schedulemesh.core.worker_groups.array_trees import outline
from schedulemesh.core.worker_groups.shard_holder import ShardHolder
from schedulemesh.core.worker_groups.shards import KeepOrder, OpenOrder, TargetTensors, form_of
from schedulemesh.core.worker_groups.shared_memory import Blocks, MappedBlocks
from schedulemesh.errors import InvalidRequestError

np = pytest.importorskip("numpy")


def test_what_is_written_where_a_block_is_mapped_is_in_its_array():
    location, array = Blocks().new(5000, "one")
    assert array.shape == (5000,)
    MappedBlocks().array_at(location)[:] = 7
    assert (array == 7).all()


def test_a_block_is_used_again_when_its_move_is_complete_and_its_arrays_are_gone():
    blocks = Blocks()
    location, array = blocks.new(64, "one")
    blocks.completed("one")
    view = array[8:16]
    del array
    gc.collect()
    assert blocks.new(64, "two")[0] != location
    del view
    gc.collect()
    assert blocks.new(128, "two")[0] != location
    assert blocks.new(64, "two")[0] == location
    assert blocks.new(64, "two")[0] != location


def test_a_late_writer_of_a_move_that_failed_writes_to_nobodys_memory():
    blocks, mapped = Blocks(), MappedBlocks()
    location, array = blocks.new(64, "one")
    late = mapped.array_at(location)
    del array
    gc.collect()
    again, array = blocks.new(64, "two")
    array[:] = 1
    late[:] = 9
    assert again != location
    assert (array == 1).all()


def test_what_a_move_did_not_need_is_given_back():
    blocks = Blocks()
    location, array = blocks.new(64, "one")
    blocks.completed("one")
    del array
    gc.collect()
    other, kept = blocks.new(128, "two")
    blocks.completed("two")
    assert blocks.new(64, "three")[0] != location
    with pytest.raises(InvalidRequestError, match="leave transport out"):
        MappedBlocks().array_at(location)
    assert MappedBlocks().array_at(other).size == kept.size


def test_of_two_moves_at_a_time_each_has_its_own_memory():
    blocks = Blocks()
    one, first = blocks.new(64, "one")
    two, second = blocks.new(64, "two")
    first[:], second[:] = 1, 2
    blocks.completed("one")
    del first
    gc.collect()
    assert blocks.new(64, "three")[0] == one
    blocks.completed("two")
    assert (second == 2).all()
    assert one != two


def test_moves_of_two_trees_in_turn_use_the_memory_of_each_again():
    agent, files = ShardHolder(), set()
    for number in range(6):
        for key, size in (("actor", 100), ("critic", 300)):
            target = TargetTensors(paths=(("w",),), form=form_of(np.zeros(size)))
            (place,) = agent.open_shards(
                OpenOrder(move_id=f"{key}-{number}", into=key, targets=(target,))
            )
            files.add(place.location)
            agent.commit_shards(
                KeepOrder(
                    move_id=f"{key}-{number}",
                    key=key,
                    version=number,
                    rounds=1,
                    outline=outline({"w": np.zeros(0)}),
                    shapes={},
                )
            )
    assert len(files) == 4


def test_where_no_memory_can_be_had_it_is_said_what_to_do(monkeypatch):
    def refused(_name):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refused)
    with pytest.raises(InvalidRequestError, match=r"4,096 bytes .* cannot be had: .*round_bytes"):
        Blocks().new(4096, "one")


def child(pipe):
    """A process that has a block, and changes it when it is told to."""
    location, array = Blocks().new(4096, "one")
    pipe.send(location)
    pipe.recv()
    pipe.send(int(array.sum()))


@pytest.fixture
def other():
    """A process with a block, and where it is."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=child, args=(there,))
    process.start()
    yield process, here, here.recv()
    process.kill()
    process.join()


def test_another_process_reads_what_this_one_wrote(other):
    process, pipe, location = other
    assert location.pid == process.pid != os.getpid()
    MappedBlocks().array_at(location)[:10] = 3
    pipe.send("go on")
    assert pipe.recv() == 30


def test_memory_of_a_process_that_has_ended_is_given_back(other, monkeypatch):
    monkeypatch.setattr(shared_memory, "_LOOK_S", 0.01)
    process, _, location = other
    mapped = MappedBlocks()
    mapped.array_at(location)
    assert len(mapped) == 1
    process.kill()
    process.join()
    assert mapped.emptied.wait(30)
    assert len(mapped) == 0
    with pytest.raises(InvalidRequestError, match=f"memory of process {location.pid} cannot be"):
        mapped.array_at(location)


def test_memory_that_nobody_writes_to_is_given_back(monkeypatch):
    monkeypatch.setattr(shared_memory, "_LOOK_S", 0.01)
    monkeypatch.setattr(shared_memory, "_UNUSED_S", 0.0)
    location, array = Blocks().new(64, "one")
    mapped = MappedBlocks()
    mapped.array_at(location)
    assert mapped.emptied.wait(30)
    mapped.array_at(location)[:] = 1
    assert (array == 1).all()
