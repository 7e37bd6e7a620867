"""Consistency: what a run's own figures say of one another, for audits and comparisons alike."""
