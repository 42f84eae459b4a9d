"""Settings of alerts: which rules there are, and who receives the alerts (see ``alert_receivers``)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

import msgspec

from schedulemesh.config.alert_receivers import Mail, ReceiverRef, Webhook, member_of
from schedulemesh.config.notices import NoticeRoute
from schedulemesh.domain.containers import as_elements
from schedulemesh.domain.kinds import is_a, is_list
from schedulemesh.domain.names import as_text
from schedulemesh.domain.numbers import (
    MAX_TIMEOUT_S,
    parse_flag,
    parse_number,
    parse_positive,
)
from schedulemesh.errors import InvalidRequestError, nearest, shown

Kind = TypeVar("Kind", bound=msgspec.Struct)

#: The largest magnitude of a threshold.
_MOST = 1e15
#: The least seconds between two evaluations.
_MIN_INTERVAL_S = 0.01


class Severity(str, Enum):
    """How urgent an alert is."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class RuleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a scheduler changes of one rule; None: as the rule says."""

    #: False: the rule is not evaluated.
    enabled: bool = True
    threshold: float | None = None
    #: Seconds for which the condition has to hold.
    for_s: float | None = None
    severity: Severity | None = None

    def __post_init__(self) -> None:
        """Convert to exact values and check the ranges."""
        force = msgspec.structs.force_setattr
        force(self, "enabled", parse_flag(self.enabled, "enabled"))
        if self.threshold is not None:
            force(self, "threshold", parse_number(self.threshold, "threshold", -_MOST, _MOST))
        if self.for_s is not None:
            force(self, "for_s", parse_number(self.for_s, "for_s", 0.0, MAX_TIMEOUT_S))
        if self.severity is not None:
            force(self, "severity", member_of(Severity, self.severity, "severity"))


class AlertSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which alerts a scheduler raises, and how. Raises ValueError for values that are not valid."""

    #: False: no rule is evaluated.
    enabled: bool = True
    #: Seconds between two evaluations.
    interval_s: float = 15.0
    #: Seconds for which a preemption and a lost state count as recent.
    recent_s: float = 300.0
    #: Changes of rules, by their ids.
    rules: dict[str, RuleSettings] = {}
    #: Who is sent the alerts.
    webhooks: tuple[Webhook, ...] = ()
    mail: tuple[Mail, ...] = ()
    #: Which of them are told what happens to tasks.
    notices: tuple[NoticeRoute, ...] = ()
    #: Receivers of one's own: import paths ``module:Class``, or names of installed ones.
    receivers: tuple[str | ReceiverRef, ...] = ()

    def __post_init__(self) -> None:
        """Convert to exact values and check the ranges."""
        force = msgspec.structs.force_setattr
        force(self, "enabled", parse_flag(self.enabled, "enabled"))
        interval_s = parse_number(self.interval_s, "interval_s", _MIN_INTERVAL_S, MAX_TIMEOUT_S)
        force(self, "interval_s", interval_s)
        force(self, "recent_s", parse_positive(self.recent_s, "recent_s", MAX_TIMEOUT_S))
        force(self, "rules", _rules(self.rules))
        force(self, "webhooks", _addressees(Webhook, self.webhooks, "webhooks", "a webhook"))
        force(self, "mail", _addressees(Mail, self.mail, "mail", "mail"))
        force(self, "receivers", _receivers(self.receivers))
        routes = as_elements(self.notices, "notices", "a list of routes")
        force(
            self,
            "notices",
            tuple(struct_of(NoticeRoute, one, "a route of notices") for one in routes),
        )
        receivers = (self.webhooks, self.mail, self.refs)
        names = [one.name for kind in receivers for one in kind]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InvalidRequestError(
                f"two receivers of alerts are called {twice[0]!r}; give each a name of its own"
            )

    def check_routes(self) -> None:
        """Raise InvalidRequestError for a route to a receiver that does not exist; its receivers have been
        found.
        """
        names = [one.name for kind in (self.webhooks, self.mail, self.refs) for one in kind]
        for name in (name for route in self.notices for name in route.to if name not in names):
            there = f"; there are {', '.join(names)}" if names else "; there are no receivers"
            raise InvalidRequestError(
                f"notices go to the unknown receiver {name!r}{nearest(name, names)}{there}"
            )

    @property
    def refs(self) -> tuple[ReceiverRef, ...]:
        """The receivers that were found; see ``resolved``."""
        return tuple(one for one in self.receivers if isinstance(one, ReceiverRef))

    def public(self) -> AlertSettings:
        """The settings without secrets, for clients."""
        return msgspec.structs.replace(
            self,
            webhooks=tuple(webhook.public() for webhook in self.webhooks),
            mail=tuple(mail.public() for mail in self.mail),
            receivers=tuple(msgspec.structs.replace(ref, sys_path=()) for ref in self.refs),
        )


def _rules(value: object) -> dict[str, RuleSettings]:
    if not isinstance(value, Mapping):
        raise InvalidRequestError(f"rules must map ids to settings, not {shown(value)}")
    return {
        str(rule_id): _rule(settings, f"rules[{rule_id!r}]") for rule_id, settings in value.items()
    }


def _addressees(kind: type[Kind], value: object, field: str, what: str) -> tuple[Kind, ...]:
    """Webhooks or mail. An error shows nothing of what was given: it may contain a secret."""
    if not is_list(value):
        raise InvalidRequestError(f"{field} must be a list of {field}, not a {_kind(value)}")
    elements = as_elements(value, field, "a list")
    for one in elements:
        if not is_a(one, kind) and not isinstance(one, Mapping):
            raise InvalidRequestError(
                f"{what} must have fields, such as {kind.__struct_fields__[0]}; it is a {_kind(one)}"
            )
    return tuple(struct_of(kind, one, what) for one in elements)


def _kind(value: object) -> str:
    return type(value).__name__


def _receivers(value: object) -> tuple[str | ReceiverRef, ...]:
    receivers: list[str | ReceiverRef] = []
    for one in as_elements(value, "receivers", "a list of receivers"):
        text = as_text(one)
        if text is not None:
            receivers.append(text)
        elif is_a(one, ReceiverRef):
            receivers.append(one)
        else:
            raise InvalidRequestError(
                f"a receiver of alerts is 'module:Class' or the name of an installed one, not {shown(one)}"
            )
    return tuple(receivers)


def _rule(value: object, what: str) -> RuleSettings:
    """The settings of a rule; True and False switch it on and off."""
    if is_a(value, bool):
        return RuleSettings(enabled=value)
    return struct_of(RuleSettings, value, what)


def struct_of(kind: type[Kind], value: object, what: str) -> Kind:
    """Settings from a mapping of their fields. Raises InvalidRequestError."""
    if is_a(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise InvalidRequestError(f"{what} must have fields, not {shown(value)}")
    allowed = kind.__struct_fields__
    for key in value:
        if key not in allowed:
            raise InvalidRequestError(
                f"{what} has the unknown field {shown(key)}{nearest(str(key), allowed)}; it takes "
                + ", ".join(allowed)
            )
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in value:
            raise InvalidRequestError(f"{what} must have the field {field.name}")
    return kind(**value)


def parse_alert_settings(value: object, environ: Mapping[str, str] | None) -> AlertSettings:
    """Parse the argument ``alerts``: AlertSettings, or a mapping of their fields; None: the defaults; False:
    no alerts. Secrets are read from the environment (None: they are not needed). Raises
    InvalidRequestError.
    """
    if value is None or value is True:
        return AlertSettings()
    if value is False:
        return AlertSettings(enabled=False)
    settings = struct_of(AlertSettings, value, "alerts")
    if environ is None:
        return settings
    return msgspec.structs.replace(
        settings,
        webhooks=tuple(webhook.with_secrets(environ) for webhook in settings.webhooks),
        mail=tuple(mail.with_secrets(environ) for mail in settings.mail),
    )
