"""Basis: what an attribution rests on, what the server reports as means alone, and what would show more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from loadgen.engines import engines
from loadgen.facts.run_facts import Facts
from loadgen.features.attribution.attribution import Attribution
from loadgen.features.attribution.part_times import format_ms
from loadgen.features.attribution.parts import BEFORE_SENT, EVIDENCE, OF_EACH_REQUEST, PARTS, EvidenceKind
from loadgen.verdict.client_checks import PAUSED_S

BY_MEANS = "*"  # marks a column whose parts are means
_MEANS = ("queue", "prefill", "decode", "inference")  # histograms of a ServerWindow


def list_kinds(found: Attribution) -> list[EvidenceKind]:
    """List the kinds of evidence that there were, in their order."""
    return [kind for kind in EVIDENCE if kind.key in found.evidence]


def describe_basis(found: Attribution) -> Iterator[str]:
    """Yield a line on the evidence, if there is any."""
    if labels := ", ".join(kind.label for kind in list_kinds(found)):
        yield f"evidence: {labels}"


def list_reasons(found: Attribution) -> Iterator[str]:
    """Yield the parts that each kind of evidence showed; one that few requests had, what no other did."""
    shown = {key for rows in (found.ttft, found.gaps) for key, sum_ns in rows.sum_parts().items() if sum_ns}
    if own := _name_parts(BEFORE_SENT, shown):
        yield f"{own}: this client's own times"
    kinds = list_kinds(found)
    left = shown.difference(*(kind.parts for kind in kinds))
    for kind in EVIDENCE:
        if parts := _name_parts(kind.parts, shown if kind in kinds else left):
            yield f"{parts}: {kind.label}"
            left.difference_update(kind.parts)


def _name_parts(keys: Sequence[str], shown: Set[str]) -> str:
    return ", ".join(part.label for part in PARTS if part.key in keys and part.key in shown)


def describe_means(facts: Facts, found: Attribution) -> Iterator[str]:
    """Yield the means of the server's histograms, where it reports no request's own times, and their mark."""
    window = facts.own_window
    if window is None or set(OF_EACH_REQUEST) & set(found.evidence):
        return
    means = ((name, getattr(window, name)) for name in _MEANS)
    known = ", ".join(f"{name} {format_ms(mean.mean_ms)} ms" for name, mean in means if mean is not None)
    if known:
        yield f"the server's means over the run: {known}"
    if found.mean_ttft is not None:
        yield f"{BY_MEANS} parts of this mean are the server's own means: they divide no single request"


def list_remedies(facts: Facts, found: Attribution) -> Iterator[str]:
    """Yield what would show more, of each kind of evidence that there was not, if it can be had."""
    if (stopped_s := facts.client.stopped_s) > PAUSED_S:
        yield (
            f"the client did not run for {stopped_s:.2g} s at once, and read late what came meanwhile: pause "
            "neither it nor its container, and leave it a core"
        )
    missing = [kind for kind in EVIDENCE if kind.key not in found.evidence]
    server = engines.find_by_name(facts.server.engine)
    if set(OF_EACH_REQUEST) & set(found.evidence):
        missing = [kind for kind in missing if kind.key not in OF_EACH_REQUEST]
    else:
        if server.own_times:
            yield f"{server.own_times}: it then reports each request's queue and prefill"
    if facts.own_window is not None:  # which counts no preemptions
        missing = [kind for kind in missing if kind.key != "preemptions"]
    # Received: it says why too few came. Our own servers export none.
    if server.ours or (facts.spans is not None and facts.spans.received):
        missing = [kind for kind in missing if kind.key != "spans"]
    had = [kind.remedy for kind in missing if facts.client.transport not in kind.transports]
    yield from filter(None, dict.fromkeys(had))
