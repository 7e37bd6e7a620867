"""Roofline findings: signs that a run was faster than its machine can be, or far slower than it should be."""

from __future__ import annotations

from loadgen.roofline import bound
from loadgen.validity import run_roofline
from loadgen.validity.evidence import RunEvidence

BEYOND, SLOW, LEAST_MS = bound.TOLERANCE, bound.SLOW, bound.LEAST_MS


def beyond_roofline(case: RunEvidence) -> str:
    """Tokens came faster than memory delivers weights, or a prompt was computed faster than arithmetic is."""
    known, engine = case.facts.ceiling, case.facts.as_run
    if known is None:
        return ""
    speculative = engine is not None and engine.speculative != ""
    return bound.impossible(known, *run_roofline.figures(case.facts, case.metrics), speculative=speculative)


def slow_kernel(case: RunEvidence) -> str:
    """Tokens came so slowly that the weights were hardly read at all."""
    known = case.facts.ceiling
    return "" if known is None else bound.fallback(known, *run_roofline.figures(case.facts, case.metrics))
