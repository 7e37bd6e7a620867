"""Roofline: what a model on a machine could do at best, and figures held against that."""
