"""Settings of traces: where attempts to run tasks are sent as OpenTelemetry spans."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from schedulemesh.domain.labels import parse_labels
from schedulemesh.domain.numbers import parse_timeout
from schedulemesh.errors import InvalidRequestError, shown


class TraceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An OpenTelemetry collector. Raises ValueError for values that are not valid."""

    #: Where it takes spans over HTTP, such as ``http://collector:4318/v1/traces``.
    endpoint: str
    #: The environment variable of the supervisor with headers for it, ``name=value,name=value``; empty: none.
    headers_env: str = ""
    #: Further attributes of the resource, such as ``{"deployment.environment": "prod"}``.
    attributes: dict[str, str] = {}
    #: Seconds for which a request to it may take.
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        """Check the values."""
        url = urlsplit(self.endpoint) if isinstance(self.endpoint, str) else None
        if url is None or url.scheme not in ("http", "https") or not url.hostname:
            raise InvalidRequestError(
                f"endpoint of traces is {shown(self.endpoint)}; it must be the address to which a collector "
                "takes spans over HTTP, such as 'http://collector:4318/v1/traces'"
            )
        force = msgspec.structs.force_setattr
        force(self, "attributes", parse_labels(self.attributes, "attributes"))
        force(self, "timeout_s", parse_timeout(self.timeout_s, "timeout_s"))


def parse_trace_settings(value: object) -> TraceSettings | None:
    """Parse a setting: an address, TraceSettings or None. Raises InvalidRequestError."""
    if value is None or isinstance(value, TraceSettings):
        return value
    if isinstance(value, str):
        return TraceSettings(endpoint=value)
    raise InvalidRequestError(
        f"traces must be the address of a collector or TraceSettings(...), not {shown(value)}"
    )
