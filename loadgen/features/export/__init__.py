"""Export: a run in files that other programs read."""
