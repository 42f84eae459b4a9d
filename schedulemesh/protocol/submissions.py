"""The submissions of jobs and leases from the arguments of a call, for every way to a scheduler."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import msgspec

from schedulemesh.api.tasks import SubmitTask
from schedulemesh.config.alternatives import Amount, parse_placement, resources_or_bundles
from schedulemesh.config.groups import parse_bundles, parse_strategy
from schedulemesh.domain.agent import (
    AgentSpec,
    parse_start_limits,
    with_alternatives,
)
from schedulemesh.domain.containers import as_elements
from schedulemesh.domain.kinds import is_a
from schedulemesh.domain.labels import Selector, parse_labels, parse_selector
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_duration, parse_flag, parse_timeout
from schedulemesh.domain.payloads import (
    RUN_DRIVER,
    JobPayload,
    LeasePayload,
    PackedModule,
    parse_over_claim,
)
from schedulemesh.domain.resources import NOTHING, Resources, parse_resources, sum_of
from schedulemesh.domain.task import PARSERS, TaskSpec, parse_task
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.errors import InvalidRequestError

_GROUPS = "a list of placement groups, each a list of bundles such as [[{'cpu': 1}, {'cpu': 1}]]"


class Submitter(msgspec.Struct, frozen=True, kw_only=True):
    """Who submits."""

    #: As the scheduler records it.
    client: str
    #: The owner of a task for which none is given.
    owner: str
    #: The task with which the submitted one ends; empty: none.
    parent: str = ""


class RunnerCode(msgspec.Struct, frozen=True, kw_only=True):
    """The agent that runs the driver of one job, packed: its class, its arguments and its Ray options."""

    class_key: str
    arguments_key: str
    #: As JSON.
    options: str
    #: The bytes of the class and of the arguments, by their keys.
    blobs: dict[str, bytes]
    #: The key of the archive of the driver's working directory, and how its name ends; empty: there is none.
    folder_key: str = ""
    folder_suffix: str = ""
    #: The modules that are sent with it.
    modules: tuple[PackedModule, ...] = ()


def job_request(arguments: Mapping[str, object], by: Submitter, code: RunnerCode) -> SubmitTask:
    """The submission of a job from the arguments of ``submit_job``, by name. Raises InvalidRequestError."""
    need, bundles = parse_need(arguments.get("resources"), arguments.get("bundles"))
    pool_name, selector = parse_pool(arguments.get("pool_name"), arguments.get("pool_selector"))
    on_preempted = arguments.get("on_preempted")
    node_labels, others = parse_placement(arguments, resources_or_bundles)
    agent = AgentSpec(
        name="",
        pool_name=pool_name,
        resources=NOTHING if need is None else need,
        labels=parse_labels(arguments.get("labels")),
        class_key=code.class_key,
        arguments_key=code.arguments_key,
        options=code.options,
        bundles=bundles,
        payload=_job(arguments, code),
        node_labels=node_labels,
        start_limits=parse_start_limits(arguments.get("start_limits")),
    )
    how = {"run": RUN_DRIVER, "on_preempted": "requeue" if on_preempted is None else on_preempted}
    task = _task({**arguments, **how}, by)
    submitted = _submitted(arguments, by, with_alternatives(agent, others), task)
    return SubmitTask(
        submission=msgspec.structs.replace(
            submitted,
            default_resources=need is None,
            selector=selector,
            dry_run=parse_flag(arguments.get("dry_run", False), "dry_run"),
        ),
        blobs=code.blobs,
    )


def lease_request(arguments: Mapping[str, object], by: Submitter, holder_job: str) -> SubmitTask:
    """The submission of a lease from the arguments of ``lease``, by name. ``holder_job``: the Ray job with
    which it ends; empty: none. ``grace_s``: where none is given; None: as the policy says. Raises
    InvalidRequestError.
    """
    groups = _groups(arguments.get("groups"))
    bundles = tuple(need for group in groups for need in group)
    strategy, label = arguments.get("strategy"), arguments.get("same_label")
    grace, ttl_s = arguments.get("grace_s"), arguments.get("ttl_s")
    lease = LeasePayload(
        strategy="" if strategy is None else parse_strategy(strategy, "strategy"),
        same_label="" if label is None else parse_name(label, "same_label"),
        parts=len(groups),
        holder_job=holder_job,
        grace_s=None if grace is None else parse_duration(grace, "grace_s"),
        ttl_s=None if ttl_s is None else parse_duration(ttl_s, "ttl_s"),
    )
    node_labels, others = parse_placement(arguments, _groups_of_fallback, ("groups",))
    agent = AgentSpec(
        name="",
        pool_name=parse_name(arguments.get("pool"), "the pool's name"),
        resources=sum_of(bundles),
        labels=parse_labels(arguments.get("labels")),
        bundles=bundles,
        node_labels=node_labels,
        payload=lease,
    )
    agent = with_alternatives(agent, others)
    return SubmitTask(submission=_submitted(arguments, by, agent, _task(arguments, by)))


def parse_pool(pool_name: object, pool_selector: object) -> tuple[str, Selector]:
    """The pool's name, or an empty one and the selector that chooses among pools. Raises
    InvalidRequestError.
    """
    if pool_name is None and pool_selector is None:
        raise InvalidRequestError("name a pool, or give a pool_selector that chooses one")
    if pool_name is not None and pool_selector is not None:
        raise InvalidRequestError("give a pool or a pool_selector, not both")
    if pool_name is None:
        return "", parse_selector(pool_selector)
    return parse_name(pool_name, "the pool's name"), ()


def parse_need(
    resources: object, bundles: object
) -> tuple[Resources | None, tuple[Resources, ...]]:
    """What an agent takes in all (None: its pool's default), and its bundles if it names any. Raises
    InvalidRequestError.
    """
    need = None if resources is None else parse_resources(resources)
    if bundles is None:
        return need, ()
    parts = parse_bundles(bundles)
    total = sum_of(parts)
    if need is not None and need != total:
        raise InvalidRequestError(
            f"resources are {need}, but the bundles make {total}; leave resources out, or make both the same"
        )
    return total, parts


def parse_wait(wait: object) -> tuple[bool, float | None]:
    """Whether the call waits until the task runs, and the most seconds (None: no limit). Raises
    InvalidRequestError.
    """
    if wait is None or is_a(wait, bool):
        return bool(wait), None
    return True, parse_timeout(wait, "wait")


def _submitted(
    arguments: Mapping[str, object], by: Submitter, agent: AgentSpec, task: TaskSpec
) -> TaskSubmitted:
    """What every submission of a task has."""
    until_runs, wait_s = parse_wait(arguments.get("wait", False))
    request_id = arguments.get("request_id")
    return TaskSubmitted(
        agent=agent,
        task=task,
        request_id=uuid.uuid4().hex if request_id is None else parse_name(request_id, "request_id"),
        client=by.client,
        queue=parse_flag(arguments.get("queue", False), "queue") or until_runs,
        until_runs=until_runs,
        wait_s=wait_s,
    )


def _task(arguments: Mapping[str, object], by: Submitter) -> TaskSpec:
    fields = {name: arguments.get(name) for name in PARSERS}
    if fields["owner"] is None:
        fields["owner"] = by.owner or None
    return parse_task({**fields, "parent": by.parent or None})


def _job(arguments: Mapping[str, object], code: RunnerCode) -> JobPayload:
    grace_s, strategy, over_claim = map(arguments.get, ("grace_s", "strategy", "over_claim"))
    return JobPayload(
        grace_s=None if grace_s is None else parse_duration(grace_s, "grace_s"),
        strategy="" if strategy is None else parse_strategy(strategy, "strategy"),
        over_claim="" if over_claim is None else parse_over_claim(over_claim),
        folder_key=code.folder_key,
        folder_suffix=code.folder_suffix,
        modules=code.modules,
    )


def _groups_of_fallback(fields: Mapping[str, object], what: str) -> Amount:
    """The amounts of an alternative of a lease."""
    if "groups" not in fields:
        return None, ()
    groups = _groups(fields["groups"], f"{what}['groups']")
    bundles = tuple(need for group in groups for need in group)
    return sum_of(bundles), bundles


def _groups(groups: object, what: str = "groups") -> Sequence[tuple[Resources, ...]]:
    elements = as_elements(groups, what, _GROUPS)
    if not elements:
        raise InvalidRequestError(f"{what} is empty; it must be {_GROUPS}")
    # Its holder claims in Ray what it asked for, by itself.
    parsed_groups = [
        parse_bundles(group, f"{what}[{i}]", covering=True) for i, group in enumerate(elements)
    ]
    sizes = sorted({len(group) for group in parsed_groups})
    if len(sizes) > 1:
        raise InvalidRequestError(
            f"groups have {sizes[0]} to {sizes[-1]} bundles; all groups of one lease have the same number, "
            "so ask for a lease of each size"
        )
    return parsed_groups
