"""Export: the requests of a run as rows, in files that other programs read."""
