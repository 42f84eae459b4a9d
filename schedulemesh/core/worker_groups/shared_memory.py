"""Memory that the processes of one node share: a receiver's new arrays, into which senders write.

A block is a file that exists only in memory (memfd_create), which other processes of the same user open
through /proc. Memory that is new to a process is mapped page by page, which takes longer than to write to it.
So blocks are used again, and stay mapped in the processes that write to them.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
import uuid
import weakref
from pathlib import Path

import msgspec

from schedulemesh.domain.user_data import UserArray
from schedulemesh.errors import InvalidRequestError

#: Seconds after which a block that was not written to again is no longer mapped.
_UNUSED_S = 600.0
#: Seconds between two looks whether the process that a mapped block belongs to still has it.
_LOOK_S = 5.0


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """Where the processes of a node find a block."""

    pid: int
    fd: int
    #: Unique, because the numbers of processes and files are used again.
    name: str
    #: In bytes.
    size: int


class BlockOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """Where arrays begin in a block."""

    location: Location
    #: In bytes.
    offset: int


class _Block:
    """The memory of one block. It is freed with the last reference to this and to its arrays."""

    def __init__(self, size: int) -> None:
        name = f"schedulemesh-{uuid.uuid4().hex}"
        fd = os.memfd_create(name)
        weakref.finalize(self, os.close, fd).atexit = False
        os.ftruncate(fd, size)
        self.memory = mmap.mmap(fd, size)
        self.location = Location(pid=os.getpid(), fd=fd, name=name, size=size)
        #: The move for whose arrays it is used.
        self.move_id = ""
        #: Whether that move is complete: nobody writes to it any more.
        self.complete = False


class Blocks:
    """The blocks that one process has for what it receives under one key.

    A block is used again when its move was completed and none of its arrays is left. Blocks of a move that
    was not completed are never used again, because a sender that is late may still write to them.
    """

    def __init__(self) -> None:
        self._used: dict[str, list[weakref.ref[_Block]]] = {}
        self._free: dict[int, list[_Block]] = {}

    def new(self, size: int, move_id: str) -> tuple[Location, UserArray]:
        """A block of at least one byte for a move: where it is, and its bytes as an array.

        Raises ``InvalidRequestError`` if the system gives no memory.
        """
        import numpy as np

        free = self._free.get(size)
        block = free.pop() if free else _new_block(size)
        block.move_id, block.complete = move_id, False
        array = np.frombuffer(block.memory, np.uint8)
        weakref.finalize(array, self._released, block).atexit = False
        self._used.setdefault(move_id, []).append(weakref.ref(block))
        return block.location, array

    def completed(self, move_id: str) -> None:
        """All of a move has arrived. Free blocks that it did not need are given back to the system."""
        self._free.clear()
        for reference in self._used.pop(move_id, ()):
            if (block := reference()) is not None:
                block.complete = True
        self._used.clear()

    def _released(self, block: _Block) -> None:
        """The last array of a block is gone."""
        if block.complete:
            self._free.setdefault(block.location.size, []).append(block)

    def __reduce__(self) -> tuple[type[Blocks], tuple[()]]:
        """A copy of an agent has memory of its own."""
        return Blocks, ()


class MappedBlocks:
    """Blocks of other processes that this process has mapped in order to write to them.

    They stay mapped until their process has ended or given them back, or for some minutes without use.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By location, the bytes, and when they were last asked for, on the monotonic clock.
        self._mapped: dict[Location, tuple[UserArray, float]] = {}
        #: Whether nothing is mapped, and no thread looks after it.
        self.emptied = threading.Event()
        self.emptied.set()

    def __reduce__(self) -> tuple[type[MappedBlocks], tuple[()]]:
        """A copy of an agent maps what it writes to by itself."""
        return MappedBlocks, ()

    def array_at(self, location: Location) -> UserArray:
        """The bytes of a block as an array.

        Raises ``InvalidRequestError`` if its process has ended or cannot be reached from this one.
        """
        with self._lock:
            mapping = self._mapped.get(location)
            if mapping is None:
                self._unmap_gone()
            memory = _map_block(location) if mapping is None else mapping[0]
            self._mapped[location] = (memory, time.monotonic())
            if self.emptied.is_set():
                self.emptied.clear()
                threading.Thread(target=self._unmap_unused, daemon=True).start()
        return memory

    def __len__(self) -> int:
        return len(self._mapped)

    def _unmap_unused(self) -> None:
        while not self.emptied.is_set():
            time.sleep(_LOOK_S)
            with self._lock:
                self._unmap_gone()
                if not self._mapped:
                    self.emptied.set()

    def _unmap_gone(self) -> None:
        """Unmap what is not used, and what its process has given back, which stays in memory until then."""
        before = time.monotonic() - _UNUSED_S
        for location, (_, used_at) in list(self._mapped.items()):
            if used_at < before or not _exists(location):
                del self._mapped[location]


def _new_block(size: int) -> _Block:
    """New shared memory of so many bytes. Raises InvalidRequestError where none can be had."""
    try:
        return _Block(size)
    except OSError as error:
        raise InvalidRequestError(
            f"{size:,} bytes of shared memory cannot be had: {error}. Each round of a move takes four open "
            f"files of a receiver; a larger round_bytes makes fewer rounds, and without transport the object "
            f"store is used"
        ) from error


def _map_block(location: Location) -> UserArray:
    """The bytes of another process's block, mapped into this one. Raises InvalidRequestError where that is
    not possible.
    """
    import numpy as np

    try:
        fd = os.open(_link(location), os.O_RDWR)
        try:
            if not _is(location, f"/proc/self/fd/{fd}"):
                raise FileNotFoundError(f"process {location.pid} no longer has it")
            return np.frombuffer(mmap.mmap(fd, location.size), np.uint8)
        finally:
            os.close(fd)
    except OSError as error:
        raise InvalidRequestError(
            f"the memory of process {location.pid} cannot be shared: {error}. Both processes need the same "
            f"user and the same /proc; leave transport out to use the object store"
        ) from error


def _exists(location: Location) -> bool:
    """Whether the process of a block still has it."""
    try:
        return _is(location, _link(location))
    except OSError:
        return False


def _link(location: Location) -> str:
    return f"/proc/{location.pid}/fd/{location.fd}"


def _is(location: Location, link: str) -> bool:
    return str(Path(link).readlink()) == f"/memfd:{location.name} (deleted)"
