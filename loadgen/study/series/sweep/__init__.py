"""Sweep: one workload at many points, each a run directory with its verdict."""
