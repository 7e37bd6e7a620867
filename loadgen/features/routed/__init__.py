"""Routed: servers behind a router, whose counters are read and reconciled by role."""
