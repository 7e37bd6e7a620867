"""Figures: every latency, speed and rate of a run, computed from its records alone."""
