"""Says which Ray jobs that are not this scheduler's use the cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from schedulemesh.api.nodes import (
    ListExternalUsage,
    ListNodeNames,
    ListNodes,
    NodeInfo,
    NodeName,
)
from schedulemesh.domain.node_names import short_ids, shown_names
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import say
from schedulemesh.engine.messages.explanation import Explanation, ExternalJob
from schedulemesh.protocol.answers import Listed, listed
from schedulemesh.protocol.public import external_job
from schedulemesh.runtime.backend import BackendError
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.jobs.work import (
    WorkOfJob,
    beyond_claims,
    external_holders,
    jobs_on,
    work_of_jobs,
)
from schedulemesh.runtime.queries import StateView
from schedulemesh.runtime.services.running import RunningSupervisor, Service

logger = logging.getLogger(__name__)


class ExternalUsageService(Service):
    """Says who the other users of the cluster are. It asks Ray when somebody wants to know, and only then."""

    def __init__(self, running: RunningSupervisor) -> None:
        super().__init__(running)
        #: The id, the host name and the address of each node, and what the nodes are called therefore.
        self._named_nodes: tuple[tuple[str, tuple[str, str]], ...] = ()
        self._node_names: Mapping[str, NodeName] = {}

    @handler
    async def listed(self, _: ListExternalUsage) -> Listed:
        """Each job and namespace that holds or waits for something. Raises BackendError."""
        return listed([work.public() for work in await self._work()])

    @handler
    async def nodes(self, _: ListNodes) -> Listed:
        """Each living node, with the jobs that hold something of it."""
        work = await self._known_work()

        def begin() -> list[Callable[[], NodeInfo | None]]:
            state = self._reactor.state
            view = StateView(state, self._agents, self._groups, self._reactor.now())
            names = self._names(state.cluster.nodes)
            return [partial(_row, view, work, names[node_id]) for node_id in names]

        return listed(await self._reactor.read_rows(begin))

    @handler
    async def node_names(self, _: ListNodeNames) -> Listed:
        """What each living node is called."""
        node_ids = await self._reactor.read(lambda: list(self._reactor.state.cluster.nodes))
        return listed([*self._names(node_ids).values()])

    def _names(self, node_ids: Iterable[str]) -> Mapping[str, NodeName]:
        """What these nodes are called, by their ids; worked out when one comes, goes or is called anew."""
        seen = self._monitor.node_names
        names = tuple((node_id, seen.get(node_id, ("", ""))) for node_id in node_ids)
        if names != self._named_nodes:
            self._named_nodes, self._node_names = names, names_of_nodes(dict(names))
        return self._node_names

    async def named(self, explanation: Explanation) -> Explanation:
        """The explanation, with the jobs that hold what external work uses of the nodes in it."""
        if not explanation.external:
            return explanation
        work = await self._known_work()
        external = tuple(
            msgspec.structs.replace(usage, jobs=jobs_on(work, usage.node_id))
            for usage in explanation.external
        )
        explanation = msgspec.structs.replace(explanation, external=external)
        return _with_overclaims(
            explanation, [job for usage in external for job in usage.jobs if job.task_id]
        )

    async def _known_work(self) -> list[WorkOfJob]:
        """The external work, as far as Ray can be asked now."""
        try:
            return await self._work()
        except BackendError as error:
            logger.warning("which jobs use the cluster is not known: %s", error)
            return []

    async def _work(self) -> list[WorkOfJob]:
        usage, demand = await self._backend.usage(), await self._backend.demand()
        tasks = tuple(holder for holder in demand.holders if holder.are_tasks)
        usage = msgspec.structs.replace(
            usage, jobs={**demand.jobs, **usage.jobs}, holders=(*usage.holders, *tasks)
        )
        state, mark = self._reactor.state, self._groups.name("")
        external = work_of_jobs(usage, external_holders(usage, state, self._agents, mark))
        return [*external, *beyond_claims(usage, state, self._agents)]


def names_of_nodes(nodes: Mapping[str, tuple[str, str]]) -> dict[str, NodeName]:
    """What nodes are called, by their ids. ``nodes``: the host name and the address of each by its id."""
    short = short_ids(nodes)
    shown = shown_names(nodes, short)
    return {
        node_id: NodeName(
            node_id=node_id,
            short_id=short[node_id],
            host=host,
            address=address,
            name=shown[node_id],
        )
        for node_id, (host, address) in nodes.items()
    }


def _row(view: StateView, work: Sequence[WorkOfJob], name: NodeName) -> NodeInfo | None:
    """The row of a node; None: it is lost."""
    row = view.node(name["node_id"])
    if row is None:
        return None
    row["short_id"], row["name"] = name["short_id"], name["name"]
    row["host"], row["address"] = name["host"], name["address"]
    row["external_jobs"] = [external_job(job) for job in jobs_on(work, name["node_id"])]
    return row


def _with_overclaims(explanation: Explanation, jobs: list[ExternalJob]) -> Explanation:
    """The explanation that names these jobs where external work is a reason to wait."""
    if not jobs:
        return explanation
    named = [say("job_beyond_claim", job=job.task_id, amount=job.resources) for job in jobs]
    hint = say("job_beyond_claim_hint", job=jobs[0].task_id)
    if explanation.reason == Reason.EXTERNAL_RAY_WORK:
        error = say("external_room_by", room=explanation.error_text, jobs=named)
        explanation = msgspec.structs.replace(explanation, error_text=error, hint_text=hint)
    others = (
        (
            msgspec.structs.replace(
                other,
                error_text=say("external_room_by", room=other.error_text, jobs=named),
                hint_text=hint,
            )
            if other.reason is Reason.EXTERNAL_RAY_WORK
            else other
        )
        for other in explanation.others
    )
    return msgspec.structs.replace(explanation, others=tuple(others))
