"""Attempts to run tasks as OpenTelemetry traces: the spans, and what sends them to a collector."""
