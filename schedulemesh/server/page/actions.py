"""What the page can change: the call that each action makes, who may make it, and what it asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from schedulemesh.api.call import Call
from schedulemesh.api.nodes import CordonNode, Drain
from schedulemesh.api.policies import ChangePolicy
from schedulemesh.api.pools import ResizePool
from schedulemesh.api.queue import ChangeQueuedTask
from schedulemesh.api.tasks import CancelTasks
from schedulemesh.api.tokens import RevokeToken
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_priority, parse_timeout
from schedulemesh.domain.resources import (
    Amounts,
    Resources,
    is_memory,
    parse_resources,
    size_of,
)
from schedulemesh.domain.task import ENDED_STATES
from schedulemesh.domain.tokens import LOCAL, Role
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.server.listings import Row
from schedulemesh.server.page.entries import InvalidEntryError
from schedulemesh.server.page.settings_fields import policy_call, pool_call
from schedulemesh.server.page.words import MB_OF_GB

#: The most tasks that one form changes; the queue shows as many on a page.
MAX_TARGETS = 50
#: What inputs are called of which there are several, with the kind of resource or the name of the field
#: after it.
QUOTA, POLICY, POOL = "quota.", "policy.", "pool."


class ActionForm(NamedTuple):
    """What a browser has sent of a change."""

    #: The ids of the tasks or nodes, or the name of the pool, the policy or the token.
    targets: tuple[str, ...]
    #: What was entered, by the name of the input; those that are empty are left out.
    values: Mapping[str, str]
    #: The id of the form: sending it twice changes nothing more.
    request_id: str
    client: str

    def entered(self, prefix: str) -> dict[str, str]:
        """What was entered in inputs of this prefix, by what comes after it."""
        return {
            name.removeprefix(prefix): text
            for name, text in self.values.items()
            if name.startswith(prefix)
        }

    def id_of(self, number: int) -> str:
        """The id of the request for one of its targets."""
        return f"{self.request_id}-{number}"


class Requested(NamedTuple):
    """A call of a form, and the targets that it is about."""

    targets: tuple[str, ...]
    call: Call


class Action(NamedTuple):
    """Something that the page can change."""

    name: str
    #: "task", "node", "pool", "policy" or "token".
    subject: str
    call: type[Call]
    #: Makes the calls of a form. Raises InvalidRequestError.
    calls: Callable[[ActionForm], list[Requested]]
    #: Whether submitters may not do it, although they may make the call.
    for_operators: bool = False
    #: What it asks for besides the targets: the name of the input, or what the names of several begin with.
    input_name: str = ""
    #: Whether it is made only with that.
    needs_input: bool = False

    def is_allowed(self, role: Role) -> bool:
        """Whether a role may do it, at least to its own tasks."""
        return self.call.allows(role) and not (self.for_operators and role is Role.SUBMITTER)


def action_named(name: str) -> Action:
    """The action of this name. Raises InvalidRequestError."""
    if name not in _ACTIONS:
        raise InvalidEntryError("wrong_action", value=name, allowed=", ".join(_ACTIONS))
    return _ACTIONS[name]


def actions_of_task(caller: TokenCaller, task: Row) -> list[Action]:
    """What a caller may do to a task now; ``task``: a row of it, with ``state`` or ``phase``."""
    state = task.get("state") or task.get("phase")
    if state in (*ENDED_STATES, "ending") or not _is_in_reach(caller, task):
        return []
    names = ["cancel"]
    if state == "queued":
        hold = "release" if task["held"] else "hold"
        names = [hold, *(("front",) if task["position"] > 1 else ()), "priority", "cancel"]
    elif state == "running":
        names = ["priority", "cancel"]
    return _allowed(caller, names)


def actions_of_array(caller: TokenCaller, array: Row) -> list[Action]:
    """What a caller may do to the members of an array that have not ended."""
    if array["state"] in ENDED_STATES or not _is_in_reach(caller, array):
        return []
    return actions_of_queue(caller)


def actions_of_node(caller: TokenCaller, node: Row) -> list[Action]:
    """What a caller may do to a node now."""
    if caller.role is Role.POOL_OPERATOR:
        return []
    if node["in_window"]:
        return []
    if node["draining"]:
        return _allowed(caller, ["undrain"])
    return _allowed(caller, ["uncordon" if node["cordoned"] else "cordon", "drain"])


def actions_of_pool(caller: TokenCaller, pool: Row) -> list[Action]:
    """What a caller may do to a pool now."""
    drain = "drain_pool" if pool["state"] == "open" else "undrain_pool"
    if caller.role is Role.POOL_OPERATOR:
        return _allowed(caller, [drain] if pool["name"] in caller.token.pools else [])
    return _allowed(caller, ["quota", "pool", drain])


def actions_of_policies(caller: TokenCaller) -> list[Action]:
    """What a caller may do to a policy."""
    return _allowed(caller, ["policy"])


def actions_of_token(caller: TokenCaller, token: Row) -> list[Action]:
    """What a caller may do to a token. The one of this session, and the one of the server's own machine, are
    not revoked from here: whoever did so would lock themselves out.
    """
    if token["name"] in (caller.token.name, LOCAL):
        return []
    return _allowed(caller, ["revoke"])


def actions_of_queue(caller: TokenCaller) -> list[Action]:
    """What a caller may do to several waiting tasks, at least to its own."""
    return _allowed(caller, ["hold", "release", "front", "priority", "cancel"])


def actions_of_running(caller: TokenCaller) -> list[Action]:
    """What a caller may do to several running tasks, at least to its own."""
    return _allowed(caller, ["priority", "cancel"])


def _allowed(caller: TokenCaller, names: Sequence[str]) -> list[Action]:
    return [action for name in names if (action := _ACTIONS[name]).is_allowed(caller.role)]


def _is_in_reach(caller: TokenCaller, task: Row) -> bool:
    """Whether a task is one of those that a token may change, as the supervisor checks it again."""
    token = caller.token
    if token.role is Role.POOL_OPERATOR:
        return task["pool_name"] in token.pools
    if token.role is not Role.SUBMITTER:
        return True
    return task["owner"] == token.owner and (not token.pools or task["pool_name"] in token.pools)


def _cancelled(form: ActionForm) -> list[Requested]:
    # In one call, so that none of them starts where another has made room.
    call = CancelTasks(task_ids=form.targets, request_id=form.id_of(0))
    return [Requested(form.targets, call)]


def _changed(form: ActionForm, *, last_first: bool = False, **changes: object) -> list[Requested]:
    """A change of each task; with the last of the queue first, none of them starts meanwhile where another is
    held, and those that move to the front keep their order.
    """
    requested = [
        Requested(
            (task_id,),
            ChangeQueuedTask(task_id=task_id, request_id=form.id_of(number), **changes),  # type: ignore[arg-type]
        )
        for number, task_id in enumerate(form.targets)
    ]
    return requested[::-1] if last_first else requested


def _prioritized(form: ActionForm) -> list[Requested]:
    return _changed(form, priority=priority_in(form))


def priority_in(form: ActionForm) -> float:
    """The priority that was entered. Raises InvalidRequestError."""
    text = form.values.get("priority", "")
    return parse_priority(_number(text))


def _number(text: str) -> object:
    """A number that was entered; another text as it is."""
    try:
        return float(text)
    except ValueError:
        return text


def amount_in(kind: str, text: str) -> object:
    """The amount that was entered of a kind of resource: memory in GB or as a size with its unit, of which
    the MB; what is no number as it is. Raises InvalidRequestError for a text that is no memory.
    """
    number = _number(text)
    if not is_memory(kind):
        return number
    megabytes = number * MB_OF_GB if isinstance(number, float) else size_of(text)
    if megabytes is None:
        raise InvalidEntryError("wrong_memory", kind=kind, value=text)
    return megabytes


def _cordoned(form: ActionForm, *, cordoned: bool) -> list[Requested]:
    return [
        Requested(
            (node_id,),
            CordonNode(node_id=node_id, cordoned=cordoned, request_id=form.id_of(number)),
        )
        for number, node_id in enumerate(form.targets)
    ]


def _drained(form: ActionForm, field: str, *, drained: bool = True) -> list[Requested]:
    """The start or end of a drain; ``field``: "node_id" or "pool_name"."""
    deadline_s = _deadline(form) if drained else None
    return [
        Requested(
            (name,),
            Drain(
                **{field: name},
                drained=drained,
                deadline_s=deadline_s,
                client=form.client,
                request_id=form.id_of(number),
            ),
        )
        for number, name in enumerate(form.targets)
    ]


def _deadline(form: ActionForm) -> float | None:
    """The seconds that were entered, such as "30m"; None: none were."""
    text = form.values.get("deadline")
    return None if text is None else parse_timeout(_number(text), "deadline")


def _resized(form: ActionForm) -> list[Requested]:
    """Another quota of pools: of each kind of resource what was entered."""
    resources = _quota(form)
    return [
        Requested(
            (name,), ResizePool(name=name, resources=resources, request_id=form.id_of(number))
        )
        for number, name in enumerate(form.targets)
    ]


def _quota(form: ActionForm) -> Resources:
    """The quota that was entered. Raises InvalidRequestError."""
    amounts = {kind: amount_in(kind, text) for kind, text in form.entered(QUOTA).items()}
    quota: dict[str, object] = {
        kind: amounts.pop(kind) for kind in ("cpu", "memory", "gpu") if kind in amounts
    }
    quota["custom"] = amounts
    return parse_resources(quota, "the quota")


def quota_in(form: ActionForm) -> Amounts:
    """The quota that was entered. Raises InvalidRequestError."""
    return _quota(form).public()


def fields_in(action: Action, form: ActionForm) -> list[tuple[str, str]]:
    """The fields of a policy or a pool that were entered, each with what was."""
    if action.input_name not in (POLICY, POOL):
        return []
    return sorted(form.entered(action.input_name).items())


def _policy_changed(form: ActionForm) -> list[Requested]:
    entered = form.entered(POLICY)
    return [
        Requested((name,), policy_call(name, entered, form.client, form.id_of(number)))
        for number, name in enumerate(form.targets)
    ]


def _pool_changed(form: ActionForm) -> list[Requested]:
    entered = form.entered(POOL)
    return [
        Requested((name,), pool_call(name, entered, form.id_of(number)))
        for number, name in enumerate(form.targets)
    ]


def _revoked(form: ActionForm) -> list[Requested]:
    return [
        Requested(
            (name,), RevokeToken(name=name, client=form.client, request_id=form.id_of(number))
        )
        for number, name in enumerate(form.targets)
    ]


#: Everything that the page can change.
ACTIONS = (
    Action("cancel", "task", CancelTasks, _cancelled),
    Action(
        "hold", "task", ChangeQueuedTask, lambda form: _changed(form, held=True, last_first=True)
    ),
    Action("release", "task", ChangeQueuedTask, lambda form: _changed(form, held=False)),
    Action(
        "front",
        "task",
        ChangeQueuedTask,
        lambda form: _changed(form, to_front=True, last_first=True),
        for_operators=True,
    ),
    Action(
        "priority",
        "task",
        ChangeQueuedTask,
        _prioritized,
        input_name="priority",
        needs_input=True,
    ),
    Action("cordon", "node", CordonNode, lambda form: _cordoned(form, cordoned=True)),
    Action("uncordon", "node", CordonNode, lambda form: _cordoned(form, cordoned=False)),
    Action("drain", "node", Drain, lambda form: _drained(form, "node_id"), input_name="deadline"),
    Action("undrain", "node", Drain, lambda form: _drained(form, "node_id", drained=False)),
    Action(
        "drain_pool",
        "pool",
        Drain,
        lambda form: _drained(form, "pool_name"),
        input_name="deadline",
    ),
    Action("undrain_pool", "pool", Drain, lambda form: _drained(form, "pool_name", drained=False)),
    Action("quota", "pool", ResizePool, _resized, input_name=QUOTA, needs_input=True),
    Action("pool", "pool", ResizePool, _pool_changed, input_name=POOL, needs_input=True),
    Action("policy", "policy", ChangePolicy, _policy_changed, input_name=POLICY, needs_input=True),
    Action("revoke", "token", RevokeToken, _revoked),
)
_ACTIONS: Mapping[str, Action] = {action.name: action for action in ACTIONS}


def targets_in(names: Sequence[str], action: Action) -> tuple[str, ...]:
    """What a form is about, each once. Raises InvalidRequestError for no name, and for too many."""
    targets = tuple(dict.fromkeys(parse_name(name, f"id of a {action.subject}") for name in names))
    most = MAX_TARGETS if action.subject == "task" else 1
    if not 1 <= len(targets) <= most:
        raise InvalidEntryError("wrong_targets", most=most, count=len(targets))
    return targets
