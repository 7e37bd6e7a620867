"""Roofline: the best that a model on a machine can do, and figures compared with that."""
