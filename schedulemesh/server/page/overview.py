"""The overview: who uses what now, what waits, what was evicted, what alerts, and how the scheduler is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.datastructures import QueryParams

from schedulemesh.api.cluster import GetAbout
from schedulemesh.api.metrics import GetAlerts
from schedulemesh.api.nodes import ListNodes
from schedulemesh.api.pages import PageQuery
from schedulemesh.api.pools import ListCohorts, ListPools
from schedulemesh.api.preemption import ListPreemptions
from schedulemesh.config.alerts import Severity
from schedulemesh.domain.language import Language
from schedulemesh.metrics.alert_texts import sentences_of
from schedulemesh.server.listings import Row
from schedulemesh.server.page.actions import actions_of_pool
from schedulemesh.server.page.bars import bars_of_pool, bars_of_pools
from schedulemesh.server.page.links import link
from schedulemesh.server.page.reads import ScreenReads, together

#: The evictions that are looked at; of an hour with more, that there were so many is said.
_EVICTIONS = 500
_HOUR_S = 3600.0
#: Pools above which only the first bar of each is shown, and the rest is folded up.
_UNFOLDED = 6
#: How a node can be closed to new tasks: the fields of its row that say so, and the texts of that.
_CLOSED = ("in_window", "draining", "cordoned")
#: Alerts above which the others are folded up, so that the pools stay on the first screen.
_ALERTS = 3
#: Severities, the most urgent first.
_URGENCY = tuple(severity.value for severity in reversed(Severity))
_LONGEST_WAIT = PageQuery(order=(("queued_at", False), ("task_id", False)), limit=1)


async def overview(reader: ScreenReads, _query: QueryParams) -> Mapping[str, Any]:
    """What the template ``overview.html`` shows."""
    about, pools, cohorts, nodes, alerts, waiting, evictions = await together(
        reader.facts(GetAbout()),
        reader.rows(ListPools()),
        reader.rows(ListCohorts()),
        reader.rows(ListNodes()),
        reader.rows(GetAlerts()),
        reader.page("queue", _LONGEST_WAIT),
        reader.rows(ListPreemptions(limit=_EVICTIONS)),
    )
    closed = [closed_as(node) for node in nodes]
    return {
        "about": about,
        "pools": [
            {**_pool(pool), "actions": actions_of_pool(reader.caller, pool)}
            for pool in sorted(pools, key=lambda pool: str(pool["name"]))
        ],
        "is_folded": len(pools) > _UNFOLDED,
        "cohorts": [_cohort(cohort, cohorts, pools) for cohort in cohorts],
        "gpus": gpus_of_nodes(nodes),
        "nodes": {
            "count": len(nodes),
            "closed": {key: count for key in _CLOSED if (count := closed.count(key))},
        },
        "alerts": _firing(alerts, reader.language),
        "alerts_shown": _ALERTS,
        "oldest": waiting.items[0] if waiting.items else None,
        "failed_link": link("/timeline", ("span", "1h"), ("state", "failed")),
        "evictions": _of_last_hour(evictions, about["time"]),
    }


def _firing(alerts: Sequence[Row], language: Language) -> list[Mapping[str, Any]]:
    """The alerts that fire, the most severe first, and of these the newest."""
    firing = [_alert(alert, language) for alert in alerts if alert["state"] == "firing"]
    return sorted(firing, key=lambda one: (_URGENCY.index(one["severity"]), -one["active_at"]))


def _alert(alert: Row, language: Language) -> Mapping[str, Any]:
    english = (alert["summary"], alert["action"])
    summary, action = sentences_of(alert["rule"], alert["labels"], english, language)
    return {**alert, "summary": summary, "action": action}


def _pool(pool: Row) -> Mapping[str, Any]:
    loans = {**pool, "bars": bars_of_pool(pool)}
    loans["lent_to"] = sorted(pool["lent_to"].items())
    loans["borrowed_from"] = sorted(pool["borrowed_from"].items())
    return loans


def _cohort(cohort: Row, cohorts: Sequence[Row], pools: Sequence[Row]) -> Mapping[str, Any]:
    names = _pools_below(cohort, {str(one["name"]): one for one in cohorts})
    return {**cohort, "bars": bars_of_pools([pool for pool in pools if pool["name"] in names])}


def _pools_below(cohort: Row, cohorts: Mapping[str, Row]) -> set[str]:
    """The pools in a cohort and in those in it."""
    names = set(cohort["pools"])
    for below in cohort["cohorts"]:
        if below in cohorts:
            names |= _pools_below(cohorts[below], cohorts)
    return names


def closed_as(node: Row) -> str:
    """Why nothing starts on a node: the key of the text that says so; empty: it is open. One that is drained
    is cordoned, too, and a window drains its nodes.
    """
    return next((key for key in _CLOSED if node[key]), "")


def gpus_of_nodes(nodes: Sequence[Row]) -> Mapping[str, float]:
    """The GPUs of nodes: in all, free, free on nodes where nothing starts, and held by other Ray work."""
    closed = [node for node in nodes if closed_as(node)]
    return {
        "total": sum(node["total"].get("gpu", 0.0) for node in nodes),
        "free": sum(node["free"].get("gpu", 0.0) for node in nodes),
        "closed": sum(node["free"].get("gpu", 0.0) for node in closed),
        "other": sum(node["external_usage"].get("gpu", 0.0) for node in nodes),
    }


def _of_last_hour(evictions: Sequence[Row], now: float) -> Mapping[str, Any]:
    """How many evictions the last hour had, and the GPU-seconds of work that they lost."""
    recent = [row for row in evictions if row["decided_at"] > now - _HOUR_S]
    return {
        "count": len(recent),
        "or_more": len(recent) == _EVICTIONS,
        "lost_gpu_s": sum(row["lost_gpu_seconds"] or 0.0 for row in recent),
    }
