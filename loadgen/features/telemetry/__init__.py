"""Telemetry: a run's requests as OpenTelemetry spans and metrics, and its figures for Prometheus."""
