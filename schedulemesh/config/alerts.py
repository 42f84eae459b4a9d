"""Settings of alerts: which rules there are, and who receives the alerts."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from schedulemesh.domain.containers import as_elements
from schedulemesh.domain.kinds import is_a, is_list
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import (
    MAX_TIMEOUT_S,
    parse_flag,
    parse_number,
    parse_positive,
    parse_timeout,
)
from schedulemesh.errors import InvalidRequestError, nearest, shown

Kind = TypeVar("Kind", bound=msgspec.Struct)

#: The largest magnitude of a threshold.
_MOST = 1e15
#: The least seconds between two evaluations.
_MIN_INTERVAL_S = 0.01
#: Characters of an address.
_MAX_URL = 2048


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
            force(self, "severity", _severity(self.severity))


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """An address to which alerts are sent as JSON. Raises ValueError for one that cannot be used."""

    #: ``http://`` or ``https://``.
    url: str
    #: The key of the signature; empty: requests are not signed.
    secret: str = ""
    #: The environment variable that contains the secret, read where the scheduler is created.
    secret_env: str = ""
    #: How metrics and the log call it; empty: by its host.
    name: str = ""
    #: Seconds until an attempt that is not answered has failed.
    timeout_s: float = 5.0

    def __post_init__(self) -> None:
        """Convert to exact values and check them."""
        force = msgspec.structs.force_setattr
        host = _checked_host(self.url)
        name = parse_name(self.name, "the webhook's name") if self.name else host
        force(self, "name", name)
        secret = as_text(self.secret)
        if secret is None or not secret.isprintable():
            raise InvalidRequestError(f"the secret of webhook {name!r} must be a printable text")
        if as_text(self.secret_env) is None:
            raise InvalidRequestError(f"the secret_env of webhook {name!r} must be a text")
        force(self, "timeout_s", parse_timeout(self.timeout_s, "timeout_s"))

    def __repr__(self) -> str:
        """The webhook without its secret and its path, which may contain one."""
        return f"Webhook(name={self.name!r}, url={_without_path(self.url)!r})"

    def with_secret(self, environ: Mapping[str, str]) -> Webhook:
        """The webhook with the secret that the environment contains. Raises InvalidRequestError."""
        if not self.secret_env or self.secret:
            return self
        if not environ.get(self.secret_env):
            raise InvalidRequestError(
                f"webhook {self.name!r} takes its secret from the environment variable {self.secret_env}, "
                "which is not set"
            )
        return msgspec.structs.replace(self, secret=environ[self.secret_env])

    def public(self) -> Webhook:
        """The webhook without its secret and its path."""
        return msgspec.structs.replace(self, url=_without_path(self.url), secret="")


class ReceiverRef(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver supplied by the user: a subclass of AlertReceiver."""

    name: str
    #: Its import path ``module:Class``.
    path: str
    #: Entries of ``sys.path`` of the job that named it, for importing its module.
    sys_path: tuple[str, ...] = ()


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
        force(self, "webhooks", _webhooks(self.webhooks))
        force(self, "receivers", _receivers(self.receivers))
        names = [webhook.name for webhook in self.webhooks] + [ref.name for ref in self.refs]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InvalidRequestError(
                f"two receivers of alerts are called {twice[0]!r}; give each a name of its own"
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
            receivers=tuple(msgspec.structs.replace(ref, sys_path=()) for ref in self.refs),
        )


def _rules(value: object) -> dict[str, RuleSettings]:
    if not isinstance(value, Mapping):
        raise InvalidRequestError(f"rules must map ids to settings, not {shown(value)}")
    return {
        str(rule_id): _rule(settings, f"rules[{rule_id!r}]") for rule_id, settings in value.items()
    }


def _webhooks(value: object) -> tuple[Webhook, ...]:
    """The webhooks. An error shows nothing of what was given: it may contain a secret."""
    if not is_list(value):
        raise InvalidRequestError(f"webhooks must be a list of webhooks, not a {_kind(value)}")
    elements = as_elements(value, "webhooks", "a list of webhooks")
    for one in elements:
        if not is_a(one, Webhook) and not isinstance(one, Mapping):
            raise InvalidRequestError(
                f"a webhook must have fields, such as url and secret_env; it is a {_kind(one)}"
            )
    return tuple(struct_of(Webhook, one, "a webhook") for one in elements)


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


def _checked_host(value: object) -> str:
    """The host of a webhook's address. Raises InvalidRequestError where it is no such address."""
    url = as_text(value)
    if (
        url is None
        or not url.isascii()
        or not url.isprintable()
        or " " in url
        or len(url) > _MAX_URL
    ):
        raise _bad_url(value, "it must be a text of printable ASCII characters without spaces")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # its text may contain a part of the address
        raise _bad_url(value, "its host or its port is not valid") from None
    if parts.scheme not in ("http", "https"):
        raise _bad_url(value, "it must begin with http:// or https://")
    if not host or port == 0:
        raise _bad_url(value, "it must name a host, and a port if it is not the usual one")
    if parts.username is not None:
        raise _bad_url(value, "it must not contain a user; the secret signs each request")
    if parts.fragment:
        raise _bad_url(value, "it must not have a fragment (#)")
    return host


def _bad_url(value: object, why: str) -> InvalidRequestError:
    """The error; it shows no more of the address than its scheme, which contains no secret."""
    scheme, colon, _ = (as_text(value) or "").partition("://")
    begin = f", which begins with {scheme[:40]!r}," if colon else ""
    return InvalidRequestError(f"the webhook's url{begin} cannot be used: {why}")


def _without_path(url: str) -> str:
    parts = urlsplit(url)
    hidden = "/..." if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{parts.netloc}{hidden}"


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
    webhooks = tuple(webhook.with_secret(environ) for webhook in settings.webhooks)
    return msgspec.structs.replace(settings, webhooks=webhooks)


def _severity(raw: object) -> Severity:
    try:
        return Severity(raw)
    except ValueError:
        allowed = ", ".join(severity.value for severity in Severity)
        raise InvalidRequestError(f"severity is {shown(raw)}; allowed are {allowed}") from None
