"""The request of a submission: a call's arguments, validated, as one message and the bytes to store."""

from __future__ import annotations

import json
import uuid
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import ray
from ray import ObjectRef

from schedulemesh.api.tasks import SubmitTask
from schedulemesh.api.values import client_name
from schedulemesh.client.arguments import check_constructor
from schedulemesh.client.origin import user_name
from schedulemesh.config.alternatives import parse_placement, resources_or_bundles
from schedulemesh.core.agent.function_agent import FunctionAgent
from schedulemesh.core.backend.ray_options import RayOptions, parse_options
from schedulemesh.core.client.gangs import (
    Gang,
    bundles_of,
    check_member,
    fallback_members,
    parse_gang,
)
from schedulemesh.core.client.run_request import named, positional, unwrap, with_run
from schedulemesh.core.transport.user_code import (
    ShippedArguments,
    ship_arguments,
    ship_class,
    ship_value,
)
from schedulemesh.domain.agent import (
    AgentSpec,
    Alternative,
    parse_start_limits,
    with_alternatives,
)
from schedulemesh.domain.labels import Selector, parse_labels
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.node_labels import NodeLabels
from schedulemesh.domain.numbers import parse_flag
from schedulemesh.domain.payloads import SINGLE_PROCESS, MemberSpec
from schedulemesh.domain.resources import NOTHING, Resources, sum_of
from schedulemesh.domain.task import PARSERS, TaskSpec, parse_task
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.errors import InvalidRequestError, shown
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.submissions import (
    Submitter,
    lease_request,
    parse_need,
    parse_pool,
    parse_wait,
)

#: Bytes of classes that were shipped already.
_shipped: weakref.WeakKeyDictionary[type, bytes] = weakref.WeakKeyDictionary()


class PreparedSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """A submission, ready to be sent."""

    request: SubmitTask
    #: Object references: whole arguments, and those within others.
    refs: tuple[list[ObjectRef], list[ObjectRef]]

    @property
    def submission(self) -> TaskSubmitted:
        """What the engine is to decide."""
        return self.request.submission

    def changed(self, **fields: object) -> PreparedSubmission:
        """The same with these fields of its submission."""
        submission = msgspec.structs.replace(self.submission, **fields)
        request = msgspec.structs.replace(self.request, submission=submission)
        return msgspec.structs.replace(self, request=request)


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the calling job."""

    namespace: str
    runtime_env: dict[str, object]
    #: The owner of its tasks as its token says; empty: it says none.
    owner: str = ""
    #: The task of this scheduler that this process runs for; empty: it runs for none.
    task_id: str = ""


def task_submission(caller: Caller, call: Mapping[str, object]) -> PreparedSubmission:
    """The submission of a task from the arguments of the call, by name. Raises InvalidRequestError."""
    call, run_blobs = with_run(call)
    task, blobs = described_task(call, caller.owner, parent_of(caller, call))
    return submission(caller, call, task, {**blobs, **run_blobs})


def lease_submission(caller: Caller, arguments: Mapping[str, object]) -> PreparedSubmission:
    """The submission of a lease from the arguments of the call, by name. It ends with the Ray job of this
    process, unless it is detached. Raises InvalidRequestError.
    """
    detached = parse_flag(arguments.get("detached", False), "detached")
    request = lease_request(
        arguments,
        submitter(caller, caller.task_id),
        holder_job="" if detached else ray.get_runtime_context().get_job_id(),
    )
    return PreparedSubmission(request=request, refs=([], []))


def described_task(
    arguments: Mapping[str, object], owner: str = "", parent: str = ""
) -> tuple[TaskSpec, dict[str, bytes]]:
    """The task that these arguments of a call describe, and the bytes to store with it. ``owner``: of a task
    for which none is given; empty: the user that this process runs as. ``parent``: the task with which it
    ends; empty: none.

    Raises InvalidRequestError naming what is wrong.
    """
    fields = {name: arguments.get(name) for name in PARSERS}
    if fields["owner"] is None:
        fields["owner"] = owner or user_name()
    fields["parent"] = parent or None
    payload = arguments.get("payload")
    if payload is None:
        return parse_task(fields), {}
    data = ship_value(payload, "the payload")
    key = key_of(data)
    return parse_task({**fields, "payload_key": key}), {key: data}


def parent_of(caller: Caller, arguments: Mapping[str, object]) -> str:
    """The task that the submitted one ends with; empty: none."""
    return "" if parse_flag(arguments.get("detached", False), "detached") else caller.task_id


def submitter(caller: Caller, parent: str) -> Submitter:
    """Who submits from this process. ``parent``: the task that the submitted one ends with; empty: none."""
    return Submitter(client=client_name(), owner=caller.owner or user_name(), parent=parent)


def submission(
    caller: Caller,
    arguments: Mapping[str, object],
    task: TaskSpec | None = None,
    blobs: Mapping[str, bytes] | None = None,
) -> PreparedSubmission:
    """The submission of an agent from the arguments of the call, by name, with a task if there is one.

    Raises InvalidRequestError.
    """
    gang = parse_gang(arguments)
    built = _all_built(arguments, gang)
    until_runs, wait_s = parse_wait(arguments.get("wait", False))
    new_agent = _agent(caller, arguments, gang, built)
    requested = TaskSubmitted(
        agent=new_agent.spec,
        default_resources=new_agent.default_resources,
        selector=new_agent.selector,
        choose_node=new_agent.choose_node,
        task=task,
        request_id=_name(arguments, "request_id") or uuid.uuid4().hex,
        dry_run=parse_flag(arguments.get("dry_run", False), "dry_run"),
        client=client_name(),
        queue=parse_flag(arguments.get("queue", False), "queue") or until_runs,
        until_runs=until_runs,
        wait_s=wait_s,
    )
    stored = dict(blobs or {})
    for one in built:
        stored.update(one.blobs)
    request = SubmitTask(submission=requested, blobs=stored)
    shipped = built[0].arguments
    return PreparedSubmission(request=request, refs=(list(shipped.refs), list(shipped.nested)))


def _all_built(arguments: Mapping[str, object], gang: Gang | None) -> tuple[_Built, ...]:
    """How each process of a call is built: one for all, or each member of a gang whose members differ. Raises
    InvalidRequestError.
    """
    if gang is not None and gang.members:
        return _members(arguments, gang)
    return (_built(arguments, gang),)


class _Agent(NamedTuple):
    """The agent that a call asks for, and what is left to the scheduler of it."""

    spec: AgentSpec
    #: Whether it gets the default resources of its pool.
    default_resources: bool
    #: What chooses its pool, where none is named; and whether the scheduler chooses its node.
    selector: Selector
    choose_node: bool


def _agent(
    caller: Caller,
    arguments: Mapping[str, object],
    gang: Gang | None,
    built: Sequence[_Built],
) -> _Agent:
    """The agent that a call asks for. Raises InvalidRequestError."""
    need, parts = _need(arguments.get("resources"), arguments.get("bundles"), gang)
    driver_bundle = _takes_first(arguments.get("driver_bundle", True), parts, gang)
    # The actor itself runs in the first bundle.
    own_need = (parts[0] if driver_bundle else NOTHING) if parts else need
    options = _options_of_all(caller, arguments, built, own_need, parts)
    pool_name, selector = parse_pool(arguments.get("pool_name"), arguments.get("pool_selector"))
    node_labels, others = _placement(arguments, options, gang)
    first = built[0]
    shipped = first.arguments
    agent = AgentSpec(
        name=_name(arguments, "agent_name") or "",
        pool_name=pool_name,
        resources=NOTHING if need is None else need,
        labels=parse_labels(arguments.get("labels")),
        class_key=first.spec.class_key,
        arguments_key=first.spec.arguments_key,
        options=options.encoded,
        restartable=not shipped.nested,
        bundles=parts,
        driver_bundle=driver_bundle,
        payload=SINGLE_PROCESS
        if gang is None
        else gang.spec(_specs(built) if gang.members else ()),
        references=len(shipped.refs) + len(shipped.nested),
        node_labels=node_labels,
        start_limits=parse_start_limits(arguments.get("start_limits")),
    )
    return _Agent(
        spec=with_alternatives(agent, others),
        default_resources=need is None,
        selector=selector,
        choose_node=options.choose_node or bool(node_labels or others),
    )


def _options_of_all(
    caller: Caller,
    arguments: Mapping[str, object],
    built: Sequence[_Built],
    own_need: Resources | None,
    parts: Sequence[Resources],
) -> RayOptions:
    """The Ray options of the first process, which all others have, too. Raises InvalidRequestError."""
    options = _options(caller, arguments, built[0], own_need)
    for rank in range(1, len(built)):
        if built[rank] is not built[rank - 1]:
            _check_alike(options, _options(caller, arguments, built[rank], parts[rank]), rank)
    return options


def _placement(
    arguments: Mapping[str, object], options: RayOptions, gang: Gang | None
) -> tuple[NodeLabels, tuple[Alternative, ...]]:
    """The nodes on which an agent or a gang may run, and its alternatives: of the call, or its Ray options.
    Raises InvalidRequestError.
    """
    if all(arguments.get(name) is None for name in ("label_selector", "fallback_strategy")):
        return options.node_labels, tuple(
            Alternative(node_labels=labels) for labels in options.fallback_labels
        )
    if options.selects_nodes:
        raise InvalidRequestError(
            "nodes are chosen by label in the call and in ray_options; say label_selector and "
            "fallback_strategy in one of the two"
        )
    if gang is None:
        return parse_placement(arguments, resources_or_bundles, common=options.model)
    amounts = partial(fallback_members, gang, arguments.get("resources"))
    return parse_placement(arguments, amounts, ("resources", "replicas"), options.model)


class _Built(msgspec.Struct, frozen=True, kw_only=True):
    """How one process is built: its class, and its arguments."""

    spec: MemberSpec
    #: The options of the class's ``@ray.remote``.
    beneath: Mapping[str, object]
    arguments: ShippedArguments
    blobs: dict[str, bytes]


def _built(arguments: Mapping[str, object], gang: Gang | None) -> _Built:
    """The class and arguments of a call, or of a member of a gang. Raises InvalidRequestError."""
    cls, beneath = unwrap(arguments.get("actor_class"))
    code = class_bytes(cls)
    args = positional(arguments.get("actor_args"), "actor_args")
    kwargs = named(arguments.get("actor_kwargs"), "actor_kwargs")
    check = check_constructor if gang is None else check_member
    check(cls, args, kwargs)
    what = (
        "the function and its arguments" if cls is FunctionAgent else "actor_args and actor_kwargs"
    )
    shipped = ship_arguments(args, kwargs, what)
    return _Built(
        spec=MemberSpec(class_key=key_of(code), arguments_key=key_of(shipped.data)),
        beneath=beneath,
        arguments=shipped,
        blobs={key_of(code): code, key_of(shipped.data): shipped.data},
    )


def _members(arguments: Mapping[str, object], gang: Gang) -> tuple[_Built, ...]:
    """Each member of a gang whose members differ, in the order of ranks."""
    alike: dict[int, _Built] = {}
    for fields in gang.members:
        if id(fields) not in alike:
            built = alike[id(fields)] = _built({**arguments, **fields}, gang)
            if built.arguments.refs or built.arguments.nested:
                raise InvalidRequestError(
                    "members of a gang that differ take no object references as arguments; pass what they "
                    "refer to, or have the members fetch it"
                )
    return tuple(alike[id(fields)] for fields in gang.members)


def _options(
    caller: Caller, arguments: Mapping[str, object], built: _Built, need: Resources | None
) -> RayOptions:
    """The Ray options of a process that takes these resources. Raises InvalidRequestError."""
    return parse_options(
        arguments.get("ray_options"), built.beneath, need, caller.runtime_env, caller.namespace
    )


def _check_alike(first: RayOptions, other: RayOptions, rank: int) -> None:
    """Raise InvalidRequestError where the member of this rank has other options than the first: all members
    are started with the same.
    """
    of_first, of_other = json.loads(first.encoded), json.loads(other.encoded)
    for name in sorted(of_first.keys() | of_other.keys()):
        if of_first.get(name) != of_other.get(name):
            raise InvalidRequestError(
                f"the class of the member of rank {rank} has {name} {shown(of_other.get(name))}, and that of "
                f"rank 0 {shown(of_first.get(name))}; all members of a gang have the same Ray options, so "
                f"give {name} in ray_options of the call, or the same in each @ray.remote"
            )


def _specs(built: Sequence[_Built]) -> tuple[MemberSpec, ...]:
    return tuple(one.spec for one in built)


def class_bytes(cls: type) -> bytes:
    """The class as it is shipped; made once. Raises InvalidRequestError."""
    data = _shipped.get(cls)
    if data is None:
        data = _shipped[cls] = ship_class(cls)
    return data


def _need(
    resources: object, bundles: object, gang: Gang | None
) -> tuple[Resources | None, tuple[Resources, ...]]:
    """What an agent takes in all (None: its pool's default), and its bundles if it names any; those of a gang
    are its members, and ``resources`` those of each member.
    """
    if gang is not None:
        each = bundles_of(gang, resources)
        return sum_of(each), each
    return parse_need(resources, bundles)


def _takes_first(driver_bundle: object, parts: Sequence[Resources], gang: Gang | None) -> bool:
    """Whether the agent itself takes the first of its bundles. Raises InvalidRequestError."""
    takes = parse_flag(driver_bundle, "driver_bundle")
    if not takes and gang is not None:
        raise InvalidRequestError(
            "driver_bundle=False is for an agent with several bundles; each member of a gang takes its own"
        )
    if not takes and len(parts) < 2:
        raise InvalidRequestError(
            f"driver_bundle=False leaves the first of several bundles free, and there are {len(parts)}; give "
            "bundles, or use a lease for placement groups without an agent"
        )
    return takes


def _name(arguments: Mapping[str, object], argument: str) -> str | None:
    value = arguments.get(argument)
    return None if value is None else parse_name(value, argument)
