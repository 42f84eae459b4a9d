"""What a change would do, before it is made: the tasks and GPUs that it touches, and the work at stake."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from starlette.datastructures import QueryParams

from schedulemesh.api.nodes import ListNodes
from schedulemesh.api.pages import PageQuery
from schedulemesh.api.policies import GetPolicy
from schedulemesh.api.pools import ListPools
from schedulemesh.api.preemption import EvaluatePreemption
from schedulemesh.api.tasks import ExplainTask
from schedulemesh.api.tokens import ListTokens
from schedulemesh.domain.arrays import members_named, parse_indices
from schedulemesh.domain.priorities import UnknownPriorityClassError
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.request_ids import new_request_id
from schedulemesh.domain.resources import is_memory, parse_resources
from schedulemesh.domain.sentences import say
from schedulemesh.domain.tokens import Role
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.answers import Evaluated, Explained
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.server.listings import Row
from schedulemesh.server.page.actions import (
    MAX_TARGETS,
    POLICY,
    POOL,
    QUOTA,
    Action,
    ActionForm,
    action_named,
    amount_in,
    priority_in,
    targets_in,
)
from schedulemesh.server.page.entries import InvalidEntryError
from schedulemesh.server.page.links import ARRAY, link, link_to_task
from schedulemesh.server.page.members import tasks_meant, tasks_with
from schedulemesh.server.page.nodes import agents_named
from schedulemesh.server.page.reads import ScreenReads, together
from schedulemesh.server.page.settings_fields import (
    POLICIES,
    SettingsField,
    policy_fields,
    pool_fields,
)
from schedulemesh.server.page.words import MB_OF_GB, WORDS, Words, by_kind
from schedulemesh.server.problems import Problem, beyond_role

#: The tasks of which is read when they were saved, and those for which is evaluated whom they may evict.
_SAVES_READ, _EVALUATED = 20, 5
#: Characters of an input: rules by labels, as JSON, are long.
_MOST_ENTERED = 8_000
#: The screens on which is chosen what is to be changed.
_AFTER = {"task": "/queue", "node": "/nodes", "pool": "/", "policy": "/policy", "token": "/audit"}
_BY_TASK = (("task_id", False),)
#: Phases in which a task has work that can be lost.
_AT_WORK = ("running", "preempting")


class Touched(NamedTuple):
    """A task that a change touches."""

    row: Row
    #: Seconds since its start, or since its state was last saved; None: it does not run.
    unsaved_s: float | None


class Effect(NamedTuple):
    """What a change does to tasks."""

    tasks: Sequence[Touched]
    #: How many there are, those included that are not listed, and how many are listed.
    total: int
    listed: int
    #: What those that run hold, and the most GPU-seconds of work that is not saved.
    gpus: float
    unsaved_gpu_s: float


class Foreseen(NamedTuple):
    """Whom a task may evict with another priority, by the dry run of the decision."""

    task_id: str
    #: Each with the work that its eviction can lose.
    victims: Sequence[Any]
    #: Why it evicts nobody; empty: it does, or nobody has to be evicted.
    reason: str


async def confirmation(reader: ScreenReads, query: QueryParams) -> Mapping[str, Any]:
    """What the template ``change.html`` shows of a change. Raises Problem and InvalidRequestError."""
    action = action_named(query.get("do", ""))
    check_role(action, reader.caller)
    form = form_of(query.multi_items(), action, new_request_id(), reader.caller.client)
    form = await with_own_class(reader, form)
    error = (
        ""
        if not form.values and action.needs_input
        else _error(action, form, WORDS[reader.language])
    )
    view = {
        "action": action,
        "form": form,
        "error": error,
        "is_ready": not error and bool(form.values or not action.needs_input),
        "effect": None,
        "pool": None,
        "node": None,
        "foreseen": (),
        "inputs": (),
        "fields": (),
        "after": after(action, form.targets),
        "form_was_sent": bool(form.values),
    }
    return {**view, **await _ABOUT[action.subject](reader, action, form)}


def after(action: Action, targets: Sequence[str]) -> str:
    """Where to go on after a change, or without it: to the task, or to the screen that it was chosen on."""
    if action.subject != "task":
        return _AFTER[action.subject]
    if len(targets) == 1:
        return link_to_task(targets[0])
    arrays = {named[0] if (named := members_named(one)) else "" for one in targets}
    return _AFTER["task"] if len(arrays) > 1 or "" in arrays else link(ARRAY, ("id", arrays.pop()))


def check_role(action: Action, caller: TokenCaller) -> None:
    """Raise Problem where a role may not do something."""
    if action.is_allowed(caller.role):
        return
    least = Role.OPERATOR if action.for_operators else action.call.least_role
    raise beyond_role(caller, least)


def form_of(
    fields: Sequence[tuple[str, str]], action: Action, request_id: str, client: str
) -> ActionForm:
    """What fields of a form or a query ask for. Raises InvalidRequestError."""
    names = [value for name, value in fields if name == "id"]
    if action.subject == "task":
        names += _members_entered(dict(fields))
    targets = targets_in(names, action)
    values = {
        name: value.strip()[:_MOST_ENTERED]
        for name, value in fields
        if value.strip() and _is_input(name, action.input_name)
    }
    return ActionForm(targets, values, request_id, client)


async def with_own_class(reader: ScreenReads, form: ActionForm) -> ActionForm:
    """The form with the number that an own class of the policy stands for."""
    try:
        if "priority" in form.values:
            priority_in(form)
    except UnknownPriorityClassError:
        classes = (await reader.facts(GetPolicy()))["policy"]["priority_classes"]
        number = classes.get(form.values["priority"])
        if number is not None:
            return form._replace(values={**form.values, "priority": f"{number:.17g}"})
    except InvalidRequestError:
        pass  # it is said where the form is shown
    return form


def _members_entered(fields: Mapping[str, str]) -> list[str]:
    """The members of an array that were entered by their indices. Raises InvalidRequestError."""
    array_id, indices = fields.get("array", ""), fields.get("members", "").replace(" ", "")
    return [f"{array_id}[{parse_indices(indices).written()}]"] if array_id and indices else []


def _is_input(name: str, input_name: str) -> bool:
    """Whether a field is an input of an action; see ``Action.input_name``."""
    return name.startswith(input_name) if input_name.endswith(".") else name == input_name


def _error(action: Action, form: ActionForm, words: Words) -> str:
    """What is wrong with what was entered; empty: nothing."""
    try:
        action.calls(form)
    except InvalidRequestError as error:
        return words.error(error)
    return ""


async def _of_tasks(reader: ScreenReads, action: Action, form: ActionForm) -> Mapping[str, Any]:
    meant = await tasks_meant(reader, form.targets)
    effect = await _effect(reader, meant.rows, meant.total)
    effect = effect._replace(listed=meant.listed)
    view: dict[str, Any] = {"effect": effect, "missing": meant.missing}
    if action.name == "priority" and "priority" in form.values:
        view["foreseen"] = await _foreseen(reader, meant.rows, form)
    return view


async def _of_node(reader: ScreenReads, _action: Action, form: ActionForm) -> Mapping[str, Any]:
    nodes = await reader.rows(ListNodes())
    node = next((row for row in nodes if row["node_id"] == form.targets[0]), None)
    if node is None:
        error = say("no_node_now", node=form.targets[0])
        raise Problem(404, Reason.NODE_NOT_FOUND.value, error)
    agents = await agents_named(reader, dict.fromkeys(node["agents"]))
    task_ids = [task_id for agent in agents for task_id in agent["tasks"]]
    rows = await tasks_with(reader, "task_id", task_ids[:MAX_TARGETS])
    effect = await _effect(reader, rows.items, len(task_ids))
    return {"node": node, "effect": effect}


async def _of_pool(reader: ScreenReads, action: Action, form: ActionForm) -> Mapping[str, Any]:
    pools = await reader.rows(ListPools())
    pool = next((row for row in pools if row["name"] == form.targets[0]), None)
    if pool is None:
        error = say("no_pool_now", pool=form.targets[0])
        raise Problem(404, Reason.POOL_NOT_FOUND.value, error)
    if action.name == "quota":
        return {"pool": pool, "inputs": _quota_inputs(pool, form)}
    if action.name == "pool":
        fields = pool_fields(pool, form.entered(POOL))
        return {"pool": pool, **_changed_fields(form, POOL, fields)}
    page = await reader.page(
        "tasks",
        PageQuery(
            fields=(("pool_name", form.targets), ("phase", ("starting", *_AT_WORK))),
            order=_BY_TASK,
            limit=MAX_TARGETS,
        ),
    )
    return {"pool": pool, "effect": await _effect(reader, page.items, page.total)}


async def _of_policy(reader: ScreenReads, _action: Action, form: ActionForm) -> Mapping[str, Any]:
    name = form.targets[0]
    if name not in POLICIES:
        raise InvalidEntryError("wrong_policy", value=name, allowed=", ".join(POLICIES))
    fields = (await policy_fields(reader, form.entered(POLICY)))[name]
    return {"policy_name": name, **_changed_fields(form, POLICY, fields)}


def _changed_fields(
    form: ActionForm, prefix: str, fields: Sequence[SettingsField]
) -> Mapping[str, Any]:
    """The fields, and the form with those only that were entered otherwise than they are."""
    values = {f"{prefix}{one.name}": one.entered or "" for one in fields if one.is_changed}
    view: dict[str, Any] = {"fields": fields, "changed": [one for one in fields if one.is_changed]}
    if form.values and not values:
        view["is_ready"] = False
    return {**view, "prefix": prefix, "form": form._replace(values=values)}


async def _of_token(reader: ScreenReads, _action: Action, form: ActionForm) -> Mapping[str, Any]:
    rows = await reader.rows(ListTokens())
    token = next((row for row in rows if row["name"] == form.targets[0]), None)
    if token is None:
        error = say("no_token_now", token=form.targets[0])
        raise Problem(404, Reason.TOKEN_NOT_FOUND.value, error)
    return {"token": token}


def _quota_inputs(pool: Row, form: ActionForm) -> list[Mapping[str, Any]]:
    """The kinds of resources of a pool's quota: how much it has, what is in use, and what was entered."""
    quota, used = by_kind(pool["resources"]), by_kind(pool["used"])
    kinds = dict.fromkeys(("gpu", "cpu", "memory", *quota))
    return [_quota_input(kind, quota.get(kind, 0.0), used.get(kind, 0.0), form) for kind in kinds]


def _quota_input(kind: str, now: float, used: float, form: ActionForm) -> Mapping[str, Any]:
    """The input of a kind of resource: its quota as it is entered, and as it would be; None: nothing is
    entered.
    """
    name = f"{QUOTA}{kind}"
    # With all digits, so that what nobody changes stays exactly as it is.
    unchanged = f"{now / MB_OF_GB if is_memory(kind) else now:.12g}"
    entered = form.values.get(name, "" if form.values else unchanged)
    try:
        then = amount_in(kind, entered or "0")
    except InvalidRequestError:
        then = entered
    return {
        "kind": kind,
        "name": name,
        "in_gb": is_memory(kind),
        "now": now,
        "used": used,
        "entered": entered,
        "then": then if form.values else None,
    }


async def _effect(reader: ScreenReads, rows: Sequence[Row], total: int) -> Effect:
    """What a change of these tasks touches. Work is counted since the last save, of as many as that is read
    of, and since the start of the others.
    """
    at_work = [row for row in rows if row["phase"] in _AT_WORK][:_SAVES_READ]
    now, *answers = await together(
        reader.now(),
        *(reader.answer(ExplainTask(task_id=row["task_id"])) for row in at_work),
    )
    saved_at = {
        answer.explanation.task.task_id: answer.explanation.saved_at
        for answer in answers
        if isinstance(answer, Explained)
    }
    touched = [Touched(row, _unsaved_s(row, saved_at, now)) for row in rows]
    gpus = [row["resources"].get("gpu", 0.0) if row["phase"] != "queued" else 0.0 for row in rows]
    lost = sum(one.unsaved_s * gpu for one, gpu in zip(touched, gpus, strict=True) if one.unsaved_s)
    return Effect(touched, total, len(rows), sum(gpus), lost)


def _unsaved_s(row: Row, saved_at: Mapping[str, float | None], now: float) -> float | None:
    started_at: float | None = row["started_at"]
    if row["phase"] not in _AT_WORK or started_at is None:
        return None
    return max(0.0, now - max(started_at, saved_at.get(row["task_id"]) or 0.0))


async def _foreseen(reader: ScreenReads, rows: Sequence[Row], form: ActionForm) -> list[Foreseen]:
    """Whom each of the first waiting tasks may evict with the priority that was entered."""
    try:
        priority = priority_in(form)
    except InvalidRequestError:
        return []
    waiting = [row for row in rows if row["phase"] == "queued"][:_EVALUATED]
    evaluations = [
        EvaluatePreemption(
            priority=priority,
            pool_name=row["pool_name"],
            labels=row["labels"],
            resources=parse_resources(row["resources"]),
        )
        for row in waiting
    ]
    answers = await together(*map(reader.answer, evaluations))
    return [
        _foreseen_of(row, answer.evaluation)
        for row, answer in zip(waiting, answers, strict=True)
        if isinstance(answer, Evaluated)
    ]


def _foreseen_of(row: Row, evaluation: Any) -> Foreseen:
    candidates = {one.task_id: one for one in evaluation.candidates}
    victims = [candidates[task_id] for task_id in evaluation.victims if task_id in candidates]
    reason = "" if victims or evaluation.reason is None else evaluation.reason.value
    return Foreseen(row["task_id"], victims, reason)


#: What is shown of a change, by what is changed.
_ABOUT: Mapping[str, Callable[[ScreenReads, Action, ActionForm], Awaitable[Mapping[str, Any]]]] = {
    "task": _of_tasks,
    "node": _of_node,
    "pool": _of_pool,
    "policy": _of_policy,
    "token": _of_token,
}
