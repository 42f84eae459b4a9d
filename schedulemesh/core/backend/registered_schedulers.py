"""The schedulers of a Ray cluster, as Ray has them registered by name."""

from __future__ import annotations

import re

import ray

#: The calls of a supervisor that clients and agent hosts make.
CALLS = (
    "alive",
    "ask",
    "ask_as",
    "command_done",
    "hello",
    "http_serves",
    "last_saved",
    "poll",
    "recover",
    "agent_restarted",
    "report_metrics",
    "report_usage",
    "result_part",
    "shutdown",
    "start_phase",
    "withdraw",
    "work_saved",
)

#: What follows ``schedulemesh:`` in the names of the actors of agents: ``scheduler:agent#1``.
_AGENT = re.compile(r"[^:]*:.*#\d+", re.DOTALL)


def actor_name(name: str) -> str:
    """The Ray name of a scheduler's supervisor."""
    return f"schedulemesh:{name}"


def registered_schedulers(namespace: object = None) -> list[tuple[str, str]]:
    """Namespace and name of every scheduler of the cluster, or of one Ray namespace, ordered by them. One
    that cannot start, or does not answer, is among them.
    """
    prefix = actor_name("")
    named = sorted(
        (actor["namespace"], actor["name"].removeprefix(prefix))
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["name"].startswith(prefix) and namespace in (None, actor["namespace"])
    )
    plain = {each for each in named if ":" not in each[1]}
    return [each for each in named if each in plain or _is_scheduler(*each, plain)]


def _is_scheduler(namespace: str, name: str, plain: set[tuple[str, str]]) -> bool:
    """Whether an actor with a colon in its name is a supervisor: agents of a scheduler have one, too, and not
    all its methods.
    """
    if _AGENT.fullmatch(name) and (namespace, name.partition(":")[0]) in plain:
        return False
    try:
        handle = ray.get_actor(actor_name(name), namespace=namespace)
    except ValueError:
        return False  # it has ended meanwhile
    return all(hasattr(handle, call) for call in CALLS)
