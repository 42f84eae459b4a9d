"""Sends spans to an OpenTelemetry collector over HTTP. Imports OpenTelemetry: loaded where traces are on."""

from __future__ import annotations

import os
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from schedulemesh.config.traces import TraceSettings
from schedulemesh.runtime.traces.spans import AttemptSpan
from schedulemesh.version import VERSION

_NS = 1_000_000_000


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
        self._exporter = OTLPSpanExporter(
            endpoint=settings.endpoint,
            headers=_headers(settings.headers_env),
            timeout=settings.timeout_s,
        )

    def send(self, spans: Sequence[AttemptSpan]) -> bool:
        """Send spans; returns whether the collector has taken them. Blocks."""
        result = self._exporter.export([self._readable(span) for span in spans])
        return result is SpanExportResult.SUCCESS

    def _readable(self, span: AttemptSpan) -> ReadableSpan:
        return ReadableSpan(
            name=span.name,
            context=_context(span.trace_id, span.span_id),
            parent=None if span.parent_id is None else _context(span.trace_id, span.parent_id),
            resource=self._resource,
            attributes=span.attributes,
            start_time=round(span.start * _NS),
            end_time=round(span.end * _NS),
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.OK),
        )


def _context(trace_id: int, span_id: int) -> SpanContext:
    sampled = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=sampled)


def _headers(variable: str) -> dict[str, str]:
    """The headers in an environment variable."""
    pairs = (pair.partition("=") for pair in os.environ.get(variable, "").split(",") if variable)
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}
