"""Simulated campaigns, from recorded runs and from made ones."""
