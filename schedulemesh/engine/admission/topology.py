"""What a task may ask of the topology, and what is said where it may not, or where no domain has room."""

from __future__ import annotations

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.payloads import AgentPayload, GangPayload, JobPayload
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.sentences import Sentence, did_you_mean, say
from schedulemesh.domain.topology import TopologyRequest
from schedulemesh.engine.admission.needs import bundles_of
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.placement.group_choice import makes_groups
from schedulemesh.engine.placement.placers import NoPlacement
from schedulemesh.engine.state.mesh_state import MeshState


def invalid_topology(
    state: MeshState,
    submission: TaskSubmitted,
    pool_name: str,
    request: TopologyRequest,
    need: Resources,
) -> Refused | None:
    """The refusal of a new task that asks for what the policy does not declare, or for what no placement can
    be, or no group of its pool; None: it does not.
    """
    error = (
        _wrong_kind(submission.agent)
        or _only_reserved(state, pool_name, submission.agent)
        or _undeclared(request, state.policy.topology_levels)
        or _wrong_order(request, state.policy.topology_levels)
        or _wrong_size(state, request, submission.agent, need)
    )
    if error is None:
        return None
    return Refused(reason=Reason.INVALID_TOPOLOGY, error_text=error, hint_text=say("topology_hint"))


def _wrong_kind(agent: AgentSpec) -> Sentence | None:
    """That a task of this kind has no members to be placed together."""
    payload = agent.payload
    if isinstance(payload, GangPayload) and payload.replicas:
        return say("topology_of_elastic")
    if isinstance(payload, AgentPayload) or payload.adopts:
        return say("topology_of_one")
    return None


def _only_reserved(state: MeshState, pool_name: str, agent: AgentSpec) -> Sentence | None:
    """That its pool has no group for it but reserved ones, whose shapes have no topology."""
    spec = state.ledger.accounts[pool_name].spec.groups
    if spec is None or makes_groups(spec) or isinstance(agent.payload, JobPayload):
        return None
    return say("topology_of_reserved", pool=pool_name)


def _undeclared(request: TopologyRequest, levels: tuple[str, ...]) -> Sentence | None:
    for level in request.levels:
        if level not in levels:
            declared = say("names", names=list(levels)) if levels else say("none_yet")
            hint = did_you_mean(level, levels)
            return say("no_such_level", level=level, hint=hint, levels=declared)
    return None


def _wrong_order(request: TopologyRequest, levels: tuple[str, ...]) -> Sentence | None:
    """That a level is wider than one inside of which it is to be."""
    pairs = (
        (request.required, request.preferred),
        (request.required, request.slice_level),
        (request.preferred, request.slice_level),
    )
    for wider, narrower in pairs:
        if wider and narrower and levels.index(narrower) < levels.index(wider):
            return say("level_is_wider", level=narrower, other=wider)
    return None


def _wrong_size(
    state: MeshState, request: TopologyRequest, agent: AgentSpec, need: Resources
) -> Sentence | None:
    """That slices do not divide the members evenly."""
    if not request.slice_size:
        return None
    members = len(bundles_of(state, agent, need))
    if members == 1 or members % request.slice_size == 0:
        return None
    return say("uneven_slices", size=request.slice_size, members=members)


def why_no_domain(placement: NoPlacement) -> Sentence:
    """That no domain of a level has room, and which one has the most; or how far a search came."""
    level, need = placement.level, placement.needed
    if placement.trials:
        return say("no_domain_tried", level=level, trials=placement.trials)
    if placement.slices_placed:
        placed, slices = placement.slices_placed, placement.slices
        return say("no_slices", level=level, need=need, placed=placed, slices=slices)
    if placement.slices and not placement.short:
        return say("no_slices_at_once", level=level, slices=placement.slices)
    code = "no_domain" if placement.short else "no_domain_of_nodes"
    return say(code, level=level, need=need, domain=placement.domain, free=placement.free)
