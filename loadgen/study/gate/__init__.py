"""Gate: is a new build slower than its base by more than a margin, with error rates that are known."""
