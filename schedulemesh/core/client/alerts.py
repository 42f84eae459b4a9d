"""Checks the settings of alerts that a scheduler is created with, and finds the receivers that they name."""

from __future__ import annotations

import os

import msgspec

from schedulemesh.config.alert_receivers import ReceiverRef
from schedulemesh.config.alerts import AlertSettings, parse_alert_settings
from schedulemesh.core.transport.user_code import job_folders
from schedulemesh.metrics.alert_rules import check_rule_ids
from schedulemesh.plugins.discovery import RECEIVER_GROUP, load_class, resolve


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
