"""Rows of answers, over Ray and over HTTP."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict


class ReportedMetric(TypedDict, total=False):
    """The newest values of one metric of an agent, or of all agents of a pool or with a label."""

    agent_name: str
    pool_name: str
    label: str
    label_value: str
    metric: str
    #: How many agents have reported it.
    agents: int
    #: How many values the following are made from.
    count: int
    last: float
    #: When the last and the first of these values arrived, in seconds since 1970.
    last_at: float
    since: float
    mean: float
    min: float
    max: float
    p50: float
    p95: float


class AlertInfo(TypedDict, total=False):
    """An alert; times are seconds since 1970."""

    #: The same from pending to resolved, and another one each time.
    id: str
    rule: str
    #: "pending", "firing" or "resolved".
    state: str
    severity: str
    labels: dict[str, str]
    #: The last value for which the condition held; None: infinite, a quota of 0 in use.
    value: float | None
    threshold: float
    summary: str
    #: What to do about it.
    action: str
    #: Since when the condition has held.
    active_at: float
    fired_at: float | None
    resolved_at: float | None


class ChangeInfo(TypedDict):
    """A change that was requested."""

    number: int
    #: In seconds since 1970.
    at: float
    #: The name of the request.
    call: str
    #: The name, the role and the owner of the token that came with it; empty: it came without one.
    token: str
    role: str
    owner: str
    #: Who requested it, for people: the token's name, or the user and host where it came without one.
    who: str
    #: Where it came from, as the caller said.
    address: str
    #: Its fields, without bytes and secrets.
    request: dict[str, Any]
    #: What it was about, before and after; None: it did not exist, or is not one thing.
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    #: "done", "refused", or "open": it was not answered yet, or the supervisor ended before it was.
    outcome: str
    reason: str
    error: str
