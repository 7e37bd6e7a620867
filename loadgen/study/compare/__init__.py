"""Compare: runs grouped by load, each row against a baseline, with a verdict a figure."""
