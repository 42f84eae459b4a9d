"""Process cleanup: capacity is free only when every process that an agent started has ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec

from schedulemesh.api.exec_sessions import ReadExec, WriteExec
from schedulemesh.api.logs import LogPiece, ReadTaskLog, TaskKey
from schedulemesh.protocol.local_sockets import SocketAddress
from schedulemesh.runtime.agents.endings import pauses
from schedulemesh.runtime.backend import (
    Backend,
    BackendError,
    ExecPart,
    JobRemains,
    NodeCleaner,
    Process,
)
from schedulemesh.runtime.retries import until_answered

logger = logging.getLogger(__name__)

#: Seconds that a node's cleaner may take to answer, the start of its process included.
_ANSWERS_S = 30.0
#: Seconds that a look at what dead agents left behind may take; it is repeated anyway.
_LOOK_S = 1.0
#: Seconds after which Ray has noticed that a node, or a process, is dead: by default its node 15 s after it
#: died.
DEATH_S = 30.0
#: What a cleaner raises that does not answer in time, or not at all.
_NO_ANSWER = (BackendError, TimeoutError, asyncio.TimeoutError)

#: Has the cleaner of a node end processes: the ids of those that have not ended in time.
_End = Callable[[NodeCleaner], Awaitable[tuple[int, ...]]]


class ActorLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where an actor of ours runs: its name in Ray, and its node."""

    namespace: str
    actor_name: str
    #: None: not known.
    node_id: str | None = None
    #: Whether it is the runner of a job, or may be one.
    job: bool = False
    #: Of a job: the nodes on which it has claimed something.
    claimed: tuple[str, ...] = ()


class ProcessCleanup:
    """Ends what agents started, through the backend's cleaner of each node."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        #: By node.
        self._cleaners: dict[str, NodeCleaner] = {}

    def prepare(self, node_id: str) -> None:
        """Have the cleaner of a node ready where an agent is to run, so that no eviction waits for it."""
        if node_id not in self._cleaners:
            self._cleaners[node_id] = self._backend.node_cleaner(node_id)

    async def lost_among(self, node_ids: Iterable[str]) -> frozenset[str]:
        """Those of these nodes that are lost. The cleaner of each is asked, because Ray learns some seconds
        later that a node has died; where one does not answer, or finds itself without a node, Ray's verdict
        is waited for. A node that stands still counts as alive.
        """
        silent = frozenset(node_ids)
        now = asyncio.get_running_loop().time
        until = now() + DEATH_S
        while True:
            answers = await asyncio.gather(*(self._node_lives(node_id) for node_id in silent))
            silent = frozenset(n for n, lives in zip(silent, answers, strict=True) if not lives)
            lost = silent - await self._living_nodes() if silent else silent
            if lost or not silent or now() >= until:
                return lost
            await asyncio.sleep(_LOOK_S)

    async def _node_lives(self, node_id: str) -> bool:
        """Whether the cleaner of a node says that it lives. One that is still being made is given time."""
        cleaner = self._cleaner(node_id)
        try:
            return await asyncio.wait_for(cleaner.node_lives(), _LOOK_S)
        except BackendError:
            self._replace(node_id, cleaner)
        except (TimeoutError, asyncio.TimeoutError):
            logger.debug("the cleaner of node %s does not answer yet", node_id)
        return False

    async def terminate(self, place: ActorLocation, agent_name: str) -> None:
        """End everything that the agent started, and return when all of it has ended.

        Where its node is not known, on every node. Where the node is lost nobody can know, and the log
        says so. A process that does not end, as one that hangs in the kernel, keeps its capacity.
        """
        nodes = [place.node_id]
        if place.node_id is None:
            nodes = [*await self._living_nodes()]
        mark = self._backend.process_mark(place.namespace, place.actor_name)
        await asyncio.gather(
            *(
                self._on_node(node_id, lambda cleaner: cleaner.terminate(mark), agent_name)
                for node_id in nodes
                if node_id
            )
        )

    async def terminate_workers(
        self, place: ActorLocation, agent_name: str, remains: JobRemains
    ) -> None:
        """End what Ray's workers of a job have left on the nodes where it was, and return when all of it has
        ended.
        """
        mark = self._backend.process_mark(place.namespace, place.actor_name)
        node_ids = {*remains.node_ids, *place.claimed, place.node_id} - {None}
        if node_ids - {place.node_id}:
            node_ids &= await self._living_nodes()

        async def on_node(node_id: str) -> None:
            staying = remains.staying.get(node_id, ())
            await self._on_node(
                node_id, lambda cleaner: cleaner.terminate_workers(mark, staying), agent_name
            )

        await asyncio.gather(*(on_node(node_id) for node_id in sorted(filter(None, node_ids))))

    async def left_behind(self, node_id: str, hosts: Mapping[int, int]) -> dict[int, list[Process]]:
        """See NodeCleaner.left_behind; nothing where the node does not answer in time."""
        try:
            return await asyncio.wait_for(self._cleaner(node_id).left_behind(hosts), _LOOK_S)
        except _NO_ANSWER:
            return {}

    async def read_log(self, node_id: str, key: TaskKey, request: ReadTaskLog) -> LogPiece | None:
        """See NodeCleaner.read_log; None also where the node does not answer in time."""
        # A cleaner may have died since it was last asked; a new one of a node that is alive answers.
        for _ in range(2):
            cleaner = self._cleaner(node_id)
            try:
                return await asyncio.wait_for(cleaner.read_log(key, request), _ANSWERS_S)
            except _NO_ANSWER as error:
                logger.warning("node %s: no log is read: %s", node_id, error or "no answer")
                self._replace(node_id, cleaner)
        return None

    async def open_exec(self, node_id: str, session_id: str) -> SocketAddress | None:
        """See NodeCleaner; None where the node does not answer in time, or has no sockets."""
        try:
            return await asyncio.wait_for(self._cleaner(node_id).open_exec(session_id), _ANSWERS_S)
        except (OSError, *_NO_ANSWER) as error:
            logger.warning("node %s: no command is started there: %r", node_id, error)
            return None

    async def read_exec(self, node_id: str, request: ReadExec) -> ExecPart | None:
        """See NodeCleaner; None also where the node does not answer in time."""
        with contextlib.suppress(*_NO_ANSWER):
            limit_s = request.wait_s + _ANSWERS_S
            return await asyncio.wait_for(self._cleaner(node_id).read_exec(request), limit_s)
        return None

    async def write_exec(self, node_id: str, request: WriteExec) -> int | None:
        """See NodeCleaner; None also where the node does not answer in time."""
        with contextlib.suppress(*_NO_ANSWER):
            return await asyncio.wait_for(self._cleaner(node_id).write_exec(request), _ANSWERS_S)
        return None

    async def end_exec(self, node_id: str, session_id: str) -> None:
        """See NodeCleaner; where the node does not answer, the command ends because nobody asks for it."""
        with contextlib.suppress(*_NO_ANSWER):
            await asyncio.wait_for(self._cleaner(node_id).end_exec(session_id), _ANSWERS_S)

    async def kill(self, node_id: str, processes: Sequence[Process]) -> None:
        """Kill these processes on a node, which a later look finds again if it does not answer in time."""
        with contextlib.suppress(*_NO_ANSWER):
            await asyncio.wait_for(self._cleaner(node_id).kill(processes), _LOOK_S)

    async def environment_line(self, node_id: str) -> str:
        """See NodeCleaner; empty: the node does not answer in time."""
        with contextlib.suppress(*_NO_ANSWER):
            return await asyncio.wait_for(self._cleaner(node_id).environment_line(), _LOOK_S)
        return ""

    async def write_log(
        self, node_id: str, key: TaskKey, attempt: int, text: str, incarnation: int | None
    ) -> None:
        """See NodeCleaner; nothing where the node does not answer in time."""
        with contextlib.suppress(OSError, *_NO_ANSWER):
            cleaner = self._cleaner(node_id)
            await asyncio.wait_for(cleaner.write_log(key, attempt, text, incarnation), _ANSWERS_S)

    def _cleaner(self, node_id: str) -> NodeCleaner:
        self.prepare(node_id)
        return self._cleaners[node_id]

    async def _on_node(self, node_id: str, end: _End, agent_name: str) -> None:
        for pause_s in pauses():
            surviving_pids = await self._ask_cleaner(node_id, end)
            if surviving_pids == ():
                return
            if surviving_pids is None and node_id not in await self._living_nodes():
                self._cleaners.pop(node_id, None)
                logger.warning(
                    "node %s is lost: whether the processes of agent %s there have ended cannot be known",
                    node_id,
                    agent_name,
                )
                return
            if surviving_pids:
                logger.warning(
                    "processes %s of agent %s on node %s do not end; what it held stays taken until they do",
                    ", ".join(map(str, surviving_pids)),
                    agent_name,
                    node_id,
                )
            await asyncio.sleep(pause_s)

    async def _ask_cleaner(self, node_id: str, end: _End) -> tuple[int, ...] | None:
        """The processes that do not end; None: the node's cleaner did not answer, and a new one is needed."""
        cleaner = self._cleaner(node_id)
        try:
            return await asyncio.wait_for(end(cleaner), _ANSWERS_S)
        except _NO_ANSWER as error:
            logger.warning(
                "the process cleaner of node %s failed: %s", node_id, error or "no answer"
            )
        except Exception:  # logged: what it has ended is as unknown as without an answer
            logger.exception("the process cleaner of node %s failed", node_id)
        self._replace(node_id, cleaner)
        return None

    def _replace(self, node_id: str, failed: NodeCleaner) -> None:
        """Have the next call use another cleaner than one that died or does not answer."""
        if self._cleaners.get(node_id) is failed:
            del self._cleaners[node_id]
            with contextlib.suppress(BackendError):
                failed.close()

    async def _living_nodes(self) -> set[str]:
        """Asked until it is known: a node counts as alive until the cluster says that it is not."""
        views = await until_answered("asking for the living nodes", self._backend.nodes)
        return {view.node_id for view in views}
