"""Sends spans to an OpenTelemetry collector over HTTP. Imports OpenTelemetry: loaded where traces are on."""

from __future__ import annotations

import os
from collections.abc import Sequence

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from schedulemesh.config.traces import TraceSettings
from schedulemesh.errors import encodable
from schedulemesh.runtime.traces.spans import AttemptSpan, Reception
from schedulemesh.version import VERSION

_NS = 1_000_000_000
#: The status of an answer to spans that are not to be sent again, by the protocol (OTLP/HTTP, "Failures"):
#: they are not valid, or too many together.
_REFUSALS = (400, 413)


class Collector:
    """A connection to a collector."""

    def __init__(self, settings: TraceSettings, name: str, namespace: str) -> None:
        self._resource = Resource.create(
            {
                "service.name": "schedulemesh",
                "service.instance.id": f"{namespace}/{name}",
                "service.version": VERSION,
                **settings.attributes,
            }
        )
        #: The status of the last answer; None: there was none.
        self._status: int | None = None
        self._session = requests.Session()
        self._session.hooks["response"].append(self._note_answer)
        self._scope = InstrumentationScope("schedulemesh", VERSION)
        self._exporter = OTLPSpanExporter(
            endpoint=settings.endpoint,
            headers=_headers(settings.headers_env),
            timeout=settings.timeout_s,
            session=self._session,
        )

    def send(self, spans: Sequence[AttemptSpan]) -> Reception:
        """Send spans; returns what became of them. Blocks."""
        self._status = None
        result = self._exporter.export([self._readable(span) for span in spans])
        if result is SpanExportResult.SUCCESS:
            return Reception.TAKEN
        return Reception.REFUSED if self._status in _REFUSALS else Reception.MISSED

    def _note_answer(
        self, response: requests.Response, *_arguments: object, **_options: object
    ) -> None:
        self._status = response.status_code

    def _readable(self, span: AttemptSpan) -> ReadableSpan:
        return ReadableSpan(
            name=encodable(span.name),
            context=_context(span.trace_id, span.span_id),
            parent=None if span.parent_id is None else _context(span.trace_id, span.parent_id),
            resource=self._resource,
            instrumentation_scope=self._scope,
            attributes={name: _text(value) for name, value in span.attributes.items()},
            start_time=round(span.start * _NS),
            end_time=round(span.end * _NS),
            status=Status(StatusCode.ERROR, encodable(span.error))
            if span.error
            else Status(StatusCode.OK),
        )


def _text(value: str | float) -> str | int | float:
    """The value of an attribute, which can be encoded as UTF-8."""
    return encodable(value) if isinstance(value, str) else value


def _context(trace_id: int, span_id: int) -> SpanContext:
    sampled = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=sampled)


def _headers(variable: str) -> dict[str, str]:
    """The headers in an environment variable."""
    pairs = (pair.partition("=") for pair in os.environ.get(variable, "").split(",") if variable)
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}
