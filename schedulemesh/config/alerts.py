"""Settings of alerts: which rules there are, and who receives the alerts."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

import msgspec

from schedulemesh.domain.kinds import is_a
from schedulemesh.domain.numbers import MAX_DURATION_S, parse_flag, parse_number, parse_positive
from schedulemesh.errors import InvalidRequestError, nearest, shown

Kind = TypeVar("Kind", bound=msgspec.Struct)

#: The largest magnitude of a threshold.
_MOST = 1e15


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
            force(self, "for_s", parse_number(self.for_s, "for_s", 0.0, MAX_DURATION_S))
        if self.severity is not None:
            force(self, "severity", _severity(self.severity))


class AlertSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which alerts a scheduler raises, and how. Raises ValueError for values that are not valid."""

    #: False: no rule is evaluated.
    enabled: bool = True
    #: Seconds between two evaluations.
    interval_s: float = 15.0
    #: Changes of rules, by their ids.
    rules: dict[str, RuleSettings] = {}  # msgspec copies it

    def __post_init__(self) -> None:
        """Convert to exact values and check the ranges."""
        force = msgspec.structs.force_setattr
        force(self, "enabled", parse_flag(self.enabled, "enabled"))
        force(self, "interval_s", parse_positive(self.interval_s, "interval_s", MAX_DURATION_S))
        force(self, "rules", _rules(self.rules))


def _rules(given: object) -> dict[str, RuleSettings]:
    if not isinstance(given, Mapping):
        raise InvalidRequestError(f"rules must map ids to settings, not {shown(given)}")
    return {str(rule_id): _rule(own, f"rules[{rule_id!r}]") for rule_id, own in given.items()}


def _rule(given: object, what: str) -> RuleSettings:
    """The settings of a rule; True and False switch it on and off."""
    if is_a(given, bool):
        return RuleSettings(enabled=given)
    return struct_of(RuleSettings, given, what)


def struct_of(kind: type[Kind], given: object, what: str) -> Kind:
    """Settings from a mapping of their fields. Raises InvalidRequestError."""
    if is_a(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise InvalidRequestError(f"{what} must have fields, not {shown(given)}")
    allowed = kind.__struct_fields__
    for key in given:
        if key not in allowed:
            raise InvalidRequestError(
                f"{what} has the unknown field {shown(key)}{nearest(str(key), allowed)}; it takes "
                + ", ".join(allowed)
            )
    return kind(**given)


def parse_alert_settings(given: object) -> AlertSettings:
    """Parse the argument ``alerts``: AlertSettings, or a mapping of their fields; None: the defaults; False:
    no alerts. Raises InvalidRequestError.
    """
    if given is None or given is True:
        return AlertSettings()
    if given is False:
        return AlertSettings(enabled=False)
    return struct_of(AlertSettings, given, "alerts")


def _severity(given: object) -> Severity:
    try:
        return Severity(given)
    except ValueError:
        allowed = ", ".join(severity.value for severity in Severity)
        raise InvalidRequestError(f"severity is {shown(given)}; allowed are {allowed}") from None
