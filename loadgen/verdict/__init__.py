"""Verdict: whether a run can be believed: evidence, doubts with remedies, and the verdict."""
