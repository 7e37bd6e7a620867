"""OpenTelemetry: spans of agents and their calls of models, as a trace of sessions."""
