"""Roofline: what a model on a machine could do at best, and a run's figures compared with that."""
