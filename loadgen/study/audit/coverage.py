"""Coverage: what of a published run could be checked at all, from the figures that it has."""

from __future__ import annotations

from loadgen.roofline import bound
from loadgen.study.consistency import self_consistency
from loadgen.study.consistency.subject import AuditedRun

ROOFLINE, RELATIONS = CHECKABLE = ("roofline", "relations")


def unchecked(run: AuditedRun) -> tuple[str, ...]:
    """What could not be checked in a run: the roofline, the relations between its figures, or both.

    A run of ours was judged from every arrival: only its roofline may be lacking.
    """
    lacking = [ROOFLINE] * (not _has_roofline(run))
    if run.reported.run is None and not self_consistency.has_relations(run):
        lacking.append(RELATIONS)
    return tuple(lacking)


def _has_roofline(run: AuditedRun) -> bool:
    """Whether decoding or prefill could be compared with what the machine does at best."""
    if run.ceiling is None:
        return False
    figures, load = run.reported.figures, run.reported.load
    decoded = bound.decode(run.ceiling, figures, load)
    return decoded is not None or bound.prefill_excess(run.ceiling, figures, load) is not None
