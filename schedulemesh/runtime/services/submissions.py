"""Submissions: from a request for a task to an agent that runs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice

import msgspec

from schedulemesh.api.tasks import SubmitMany, SubmitTask
from schedulemesh.domain.payloads import GangPayload, LeasePayload
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.admission.decide import pool_for
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.outcomes import (
    Accepted,
    Done,
    Pending,
    ProbeNeeded,
    Refused,
    RequestOutcome,
)
from schedulemesh.engine.state.agents import Agent
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.transaction import Step
from schedulemesh.errors import InvalidRequestError, JournalError
from schedulemesh.protocol.answers import GroupPlace, MemberPlace, Response, Responses, WithHandles
from schedulemesh.runtime.agents.gangs import processes_of
from schedulemesh.runtime.alerts.notices import check_notify
from schedulemesh.runtime.backend import Refs
from schedulemesh.runtime.handlers import handler
from schedulemesh.runtime.services.decision_log import log_refusal
from schedulemesh.runtime.services.restarts import with_real_restarts
from schedulemesh.runtime.services.running import RunningSupervisor, Service
from schedulemesh.store.journal import InDoubtError

#: Characters of its pool's name in the name of an agent that was submitted without one.
_POOL_CHARS = 200
#: Bundles of submissions that are decided in one step; one without bundles counts as one.
_PORTION = 100
#: Seconds for groups that are being removed to be gone before a submission is decided that they may make room
#: for; it takes milliseconds.
_REMOVED_S = 5.0
#: Why a task waits in the queue whatever room there is.
_WAITS_WHATEVER_IS_FREE = frozenset((Reason.DEPENDENCY, Reason.BEHIND_QUEUE_HEAD))


class SubmissionService(Service):
    """Answers submissions when the agent runs, or cannot."""

    def __init__(self, running: RunningSupervisor) -> None:
        super().__init__(running)
        self._receivers = running.alerts.receivers

    @handler
    async def submit_task(self, request: SubmitTask, refs: Refs) -> Response | WithHandles:
        """A submission of a client. Raises InvalidRequestError where its label ``notify`` names nobody."""
        self._check_notify(request.submission)
        return await self.submit(request.submission, request.blobs, refs)

    async def submit(
        self, stimulus: s.TaskSubmitted, blobs: Mapping[str, bytes], refs: Refs
    ) -> Response | WithHandles:
        """A submission: answered when the agent runs, or cannot."""
        for class_key in stimulus.agent.class_keys:
            class_bytes = await self._executor.code.class_bytes(class_key, blobs)
            if class_bytes is None:
                return Response(outcome=ProbeNeeded(class_key=class_key))
            # The journal forgets classes that nothing refers to; this process may remember them for longer.
            blobs = {**blobs, class_key: class_bytes}
        self._executor.code.expect(stimulus.agent.arguments_key, blobs)
        references = self._executor.references
        stimulus = references.given_with(self._with_name(stimulus), refs)
        with references.held_for(stimulus.agent, refs):
            outcome = await self._admitted(stimulus, blobs)
        references.release_unused(self._reactor.state)
        return self._with_handle(outcome)

    @handler
    async def submit_many(self, request: SubmitMany, refs: Refs) -> WithHandles:
        """Many submissions, which become durable together unless they are large: answered when each is.

        Raises InvalidRequestError as ``submit_task``.
        """
        for submission in request.submissions:
            self._check_notify(submission)
        references, code = self._executor.references, self._executor.code
        blobs = await self._with_known_classes(request)
        with ExitStack() as holding_references:
            stimuli: list[s.TaskSubmitted] = []
            names: set[str] = set()
            for stimulus, submission_refs in zip(
                request.submissions, _shares(request, refs), strict=True
            ):
                code.expect(stimulus.agent.arguments_key, blobs)
                named_stimulus = references.given_with(
                    self._with_name(stimulus, names), submission_refs
                )
                names.add(named_stimulus.agent.name)
                holding_references.enter_context(
                    references.held_for(named_stimulus.agent, submission_refs)
                )
                stimuli.append(named_stimulus)
            steps = await self._decided_in_portions(stimuli, blobs)
            decided = zip(stimuli, steps, strict=True)
            outcomes = await asyncio.gather(
                *(self._outcome(stimulus, step, blobs) for stimulus, step in decided)
            )
        references.release_unused(self._reactor.state)
        return _together([self._with_handle(outcome) for outcome in outcomes])

    def _check_notify(self, submission: s.TaskSubmitted) -> None:
        if submission.task is not None:
            check_notify(submission.task.labels, self._receivers)

    async def _decided_in_portions(
        self, stimuli: Sequence[s.TaskSubmitted], blobs: Mapping[str, bytes]
    ) -> list[Step]:
        """What is decided about each, in portions between which others are served. Where the journal cannot
        be written any more, those that are not decided yet are refused. Raises JournalError where none is.
        """
        steps: list[Step] = []
        for portion in _portions(stimuli):
            keys = {
                key for one in portion for key in (*one.agent.class_keys, one.agent.arguments_key)
            }
            # What else there is was stored with the first of them.
            stored = {key: data for key, data in blobs.items() if key in keys or not steps}
            try:
                steps += await self._reactor.steps(portion, stored)
            except JournalError as error:
                if not steps or isinstance(error, InDoubtError):
                    raise
                why = Refused(reason=Reason.JOURNAL_UNAVAILABLE, error_text=str(error))
                at = self._reactor.now()
                steps += [Step(outcome=why, stimulus=one, at=at) for one in stimuli[len(steps) :]]
                break
            # Others are served between two portions, also where nothing had to be written.
            await asyncio.sleep(0)
        return steps

    async def _with_known_classes(self, request: SubmitMany) -> dict[str, bytes]:
        """The request's bytes, with those of classes that are known from before."""
        blobs = dict(request.blobs)
        keys = {key for submission in request.submissions for key in submission.agent.class_keys}
        for class_key in keys:
            class_bytes = await self._executor.code.class_bytes(class_key, blobs)
            if class_bytes is None:
                raise InvalidRequestError(f"the bytes of class {class_key} are not known")
            blobs[class_key] = class_bytes
        return blobs

    async def answered(self, request_id: str) -> Response | WithHandles:
        """The first answer to a repeated submission."""
        outcome = await self._answers.outcome(request_id)
        return self._with_handle(await with_real_restarts(self._reactor, outcome))

    async def _admitted(
        self, stimulus: s.TaskSubmitted, blobs: Mapping[str, bytes]
    ) -> RequestOutcome:
        """What becomes of a submission."""
        await self._wait_for_removed_groups(stimulus)
        step = await self._started_at_once(stimulus, blobs)
        if step is None:
            step = await self._reactor.step(stimulus, blobs)
        return await self._outcome(stimulus, step, blobs)

    async def _started_at_once(
        self, stimulus: s.TaskSubmitted, blobs: Mapping[str, bytes]
    ) -> Step | None:
        """The step of a lease that gets a free group: its admission and its start become durable together,
        while Ray is asked whether something runs in the group. None: nothing was decided, because it gets
        none, or one that has to be prepared.
        """
        if not isinstance(stimulus.agent.payload, LeasePayload):
            return None
        await self._reactor.until_consistent()
        leases, group_id = self._executor.leases, self._free_group(stimulus)
        if group_id is None:
            return None
        vacated = asyncio.ensure_future(leases.is_vacant(group_id))
        await asyncio.sleep(0)  # Ray is asked now, and answers while the rest is computed
        await self._reactor.until_consistent()
        # Others may have got it meanwhile.
        if self._free_group(stimulus) != group_id or not leases.may_be_vacant(group_id):
            vacated.cancel()
            return None
        # From here it decides before it awaits, so the group is still free.
        started = s.AgentReported(
            agent_name=stimulus.agent.name, incarnation=self._reactor.state.next_incarnation
        )
        step = (await self._reactor.steps((stimulus, started), blobs))[0]
        if not await vacated:
            await leases.replace(group_id)
        return step

    def _free_group(self, stimulus: s.TaskSubmitted) -> str | None:
        """The free placement group that a submission would get now; None: it would get none."""
        groups = self._reactor.state.groups.by_id.values()
        if not any(group.free for group in groups):
            return None
        outcome = self._reactor.engine.handle(_tried(stimulus), self._reactor.now()).outcome
        if not isinstance(outcome, Accepted) or outcome.preempted:
            return None
        return outcome.group_id

    async def _outcome(
        self, stimulus: s.TaskSubmitted, step: Step, blobs: Mapping[str, bytes]
    ) -> RequestOutcome:
        """The final outcome of a submission that was decided in this step."""
        while isinstance(step.outcome, ProbeNeeded):
            class_key = step.outcome.class_key
            failed = await self._executor.code.probe(class_key, blobs[class_key], stimulus.agent)
            if failed is not None:
                return failed
            step = await self._reactor.step(stimulus, blobs)
        outcome: RequestOutcome = step.outcome or Done()
        log_refusal(stimulus, outcome)
        if isinstance(outcome, Pending) and stimulus.request_id is not None:
            outcome = await self._answers.outcome(stimulus.request_id)
        return await with_real_restarts(self._reactor, outcome)

    async def _wait_for_removed_groups(self, stimulus: s.TaskSubmitted) -> None:
        """Where it would evict or be refused, wait for the room of groups that are being removed."""
        state = self._reactor.state
        if not state.groups.ending or (stimulus.request_id or "") in state.answers:
            return
        outcome = (await self._reactor.step(_tried(stimulus))).outcome
        if isinstance(outcome, Refused) and outcome.reason in _WAITS_WHATEVER_IS_FREE:
            return
        if not isinstance(outcome, Accepted) or outcome.preempted:
            await self._groups.removed_from(state.groups, _REMOVED_S)

    def _with_handle(self, outcome: RequestOutcome) -> Response | WithHandles:
        """The outcome of a submission, with its group and the agent's Ray handle."""
        reply = Response(outcome=outcome, group=self._group_of(outcome))
        if not isinstance(outcome, Accepted):
            return reply
        agent = _agent_of(self._reactor.state, outcome)
        if agent is None or isinstance(agent.spec.payload, LeasePayload):
            return reply
        processes = processes_of(self._reactor.state, agent)
        if isinstance(agent.spec.payload, GangPayload):
            members = tuple(
                MemberPlace(name=p.spec.name, node_id=p.node_id, resources=p.spec.resources)
                for p in processes
            )
            reply = msgspec.structs.replace(reply, members=members)
        handles = [self._agents.handle(p.spec.name, p.incarnation) for p in processes]
        return WithHandles(reply, handles)

    def _group_of(self, outcome: RequestOutcome) -> GroupPlace | None:
        """The name and nodes of the placement group that a submission got."""
        if not isinstance(outcome, Accepted) or outcome.group_id is None:
            return None
        state = self._reactor.state
        group, agent = state.groups.by_id.get(outcome.group_id), _agent_of(state, outcome)
        place = GroupPlace(
            name=self._groups.name(outcome.group_id),
            node_ids=() if group is None else group.node_ids,
        )
        slot = self._groups.slot(outcome.group_id)
        if slot is None or agent is None or not isinstance(agent.spec.payload, LeasePayload):
            return place
        return msgspec.structs.replace(place, ray_id=slot.ray_id, shape=slot.shape)

    def _with_name(self, stimulus: s.TaskSubmitted, taken: Collection[str] = ()) -> s.TaskSubmitted:
        """An agent without a name gets one that begins with its pool's. ``taken``: by others of a request."""
        agent = stimulus.agent
        if agent.name:
            return stimulus
        engine = self._reactor.engine
        pool = pool_for(engine.state, engine.strategies, stimulus) or ""
        name, in_use = "", (engine.state.agents, engine.state.queue.agent_names, taken)
        while not name or any(name in names for names in in_use):
            name = f"{pool[:_POOL_CHARS]}-agent-{secrets.token_hex(3)}"
        named = msgspec.structs.replace(agent, name=name, pool_name=pool)
        return msgspec.structs.replace(stimulus, agent=named)


def _agent_of(state: MeshState, accepted: Accepted) -> Agent | None:
    """The agent that a submission got, or one of its name that runs its task now; None: it has ended, though
    another may have its name.
    """
    agent = state.agents.get(accepted.agent_name)
    if agent is None or agent.incarnation == accepted.incarnation:
        return agent
    return agent if accepted.task_id in state.running.on_agent(agent.spec.name) else None


def _tried(stimulus: s.TaskSubmitted) -> s.TaskSubmitted:
    """The same submission as a dry run."""
    return msgspec.structs.replace(stimulus, dry_run=True, request_id=None)


def _portions(stimuli: Sequence[s.TaskSubmitted]) -> Iterator[list[s.TaskSubmitted]]:
    """The submissions in portions, each of which has up to so many bundles, or is a single one with more."""
    portion: list[s.TaskSubmitted] = []
    size = 0
    for stimulus in stimuli:
        bundles = max(1, len(stimulus.agent.bundles))
        if portion and size + bundles > _PORTION:
            yield portion
            portion, size = [], 0
        portion.append(stimulus)
        size += bundles
    if portion:
        yield portion


def _shares(request: SubmitMany, refs: Refs) -> Iterator[Refs]:
    """The object references of each submission."""
    direct_refs, nested_refs = iter(refs[0]), iter(refs[1])
    for direct_count, nested_count in request.references or [(0, 0)] * len(request.submissions):
        yield list(islice(direct_refs, direct_count)), list(islice(nested_refs, nested_count))


def _together(answers: Sequence[Response | WithHandles]) -> WithHandles:
    """Many answers as one."""
    responses: list[Response] = []
    handles: list[list[object]] = []
    for answer in answers:
        if isinstance(answer, WithHandles):
            if not isinstance(answer.answer, Response):
                raise TypeError(f"a submission cannot be answered by {answer.answer!r}")
            responses.append(answer.answer)
            handles.append(answer.handles)
        else:
            responses.append(answer)
            handles.append([])
    counts = [len(submission_handles) for submission_handles in handles]
    together = [handle for submission_handles in handles for handle in submission_handles]
    return WithHandles(Responses(responses=responses, handles=counts), together)
