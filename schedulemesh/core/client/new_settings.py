"""The settings that a scheduler is created with, or looked for, from the arguments of the public classes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypedDict

import msgspec

from schedulemesh.config.alert_receivers import ReceiverRef
from schedulemesh.config.alerts import AlertSettings, parse_alert_settings
from schedulemesh.config.auth import AuthSettings, parse_auth
from schedulemesh.config.http import parse_http
from schedulemesh.config.settings import (
    DEFAULT_NAMESPACE,
    HistorySettings,
    JournalSettings,
    SchedulerSettings,
    parse_history_settings,
    parse_journal_settings,
    parse_state_path,
)
from schedulemesh.core.client.strategies import check_built_in, chosen_strategies
from schedulemesh.core.transport.user_code import job_folders
from schedulemesh.domain.language import language_of
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_flag, parse_timeout
from schedulemesh.engine.placement.strategies import POOL_STRATEGY
from schedulemesh.metrics.alert_rules import check_rule_ids
from schedulemesh.plugins.discovery import RECEIVER_GROUP, load_class, resolve
from schedulemesh.plugins.scheduling import SchedulingStrategyPlugin


class SchedulerOptions(TypedDict, total=False):
    """What RayScheduler and SimpleScheduler take by keyword only; RayScheduler says what each means."""

    detached: bool
    namespace: str | None
    state_path: str | os.PathLike[str] | None
    node_strategy: str
    pool_strategy: str
    strategies: Sequence[str | SchedulingStrategyPlugin]
    health_interval_s: float | None
    journal: JournalSettings | None
    http: bool | int | str | Mapping[str, object] | None
    history: HistorySettings | None
    alerts: AlertSettings | Mapping[str, object] | bool | None
    auth: str | None
    token: str | None


def parse_settings(
    name: object,
    namespace: object,
    state_path: object = None,
    *,
    detached: object = False,
    node_strategy: object = "bin_pack",
    pool_strategy: object = POOL_STRATEGY,
    strategies: object = (),
    health_interval_s: object = None,
    journal: object = None,
    http: object = None,
    history: object = None,
    alerts: object = None,
    auth: object = None,
    what: str = "the scheduler's name",
) -> SchedulerSettings:
    """The settings that these arguments say. Raises InvalidRequestError naming what is wrong.

    ``what``: how an error calls the name.
    """
    node_strategy, refs = chosen_strategies(node_strategy, strategies)
    interval_s = health_interval_s
    return SchedulerSettings(
        name=parse_name(name, what),
        namespace=DEFAULT_NAMESPACE if namespace is None else parse_name(namespace, "namespace"),
        detached=parse_flag(detached, "detached"),
        state_path=parse_state_path(state_path),
        node_strategy=node_strategy,
        pool_strategy=check_built_in("pool_strategy", pool_strategy),
        strategies=refs,
        health_interval_s=(
            None if interval_s is None else parse_timeout(interval_s, "health_interval_s")
        ),
        journal=parse_journal_settings(journal),
        http=parse_http(http, os.environ),
        history=parse_history_settings(history),
        language=language_of(os.environ),
        alerts=chosen_alerts(alerts),
        auth=AuthSettings(required=parse_auth(auth)),
    )


def chosen_alerts(alerts: object) -> AlertSettings:
    """The settings with their receivers found. Raises InvalidRequestError before anything is started."""
    settings = parse_alert_settings(alerts, os.environ)
    check_rule_ids(settings.rules)
    receivers = tuple(_found(one) if isinstance(one, str) else one for one in settings.receivers)
    settings = msgspec.structs.replace(settings, receivers=receivers)
    settings.check_routes()
    return settings


def _found(name: str) -> ReceiverRef:
    path = resolve(name, RECEIVER_GROUP)
    load_class(path, RECEIVER_GROUP)
    return ReceiverRef(name=name, path=path, sys_path=job_folders())
