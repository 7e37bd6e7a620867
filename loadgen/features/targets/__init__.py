"""Targets: several servers of one model that share the requests of a run."""
