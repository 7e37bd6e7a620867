"""Verdict: whether a run can be believed: evidence, the rules of doubts, and the verdict."""
