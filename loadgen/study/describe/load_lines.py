"""Load lines: the figures of a workload in words, in lines of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.base.text import clean_line, format_count, label_lines
from loadgen.features.data.data_command import describe_lengths
from loadgen.figures.workloads.arrival_scales import ArrivalFigures
from loadgen.figures.workloads.fidelity import WorkloadFigures, format_value
from loadgen.figures.workloads.reuse_distances import ReuseFigures
from loadgen.figures.workloads.session_shape import SessionShape

_PARTS = (0.5, 0.9)  # of what is reused, for which sizes are named


def render_load(found: WorkloadFigures) -> str:
    """Render the figures of a workload as lines of 80 columns, a label before each."""
    return "\n".join(label_lines((label, clean_line(text)) for label, text in list_parts(found)))


def list_parts(found: WorkloadFigures) -> Iterator[tuple[str, str]]:
    """Yield (label, text) of all that is known of a workload, and its notes."""
    yield "workload", f"{found.name}; {format_count(found.requests, 'request')}"
    if found.arrivals is not None:
        yield "arrivals", describe_arrivals(found.arrivals)
        if found.arrivals.scales:
            yield "dispersion", _describe_scales(found.arrivals)
    lengths = found.lengths
    yield "prompts", describe_lengths(lengths.input, found.requests, "known only to the server")
    yield "answers", describe_lengths(lengths.output, found.requests, "as long as the model makes them")
    if lengths.rank_correlation is not None:
        yield "together", f"rank correlation of prompt and answer {lengths.rank_correlation:+.2f}"
    if found.reuse is not None:
        yield "prefix reuse", _describe_reuse(found.reuse)
        if found.reuse.distances:
            yield "reused after", _describe_distances(found.reuse)
    if found.sessions is not None:
        yield from _list_sessions(found.sessions)
    for note in found.notes:
        yield "note", note


def describe_arrivals(found: ArrivalFigures) -> str:
    """Return span, rate, instants and evenness of arrivals in words."""
    if found.rate_per_s is None:
        return "all at once"
    parts = [f"{found.span_s:,.1f} s, {found.rate_per_s:.4g} requests/s"]
    if found.grid_s:
        parts.append(f"{format_count(found.instants, 'instant')} on a grid of {found.grid_s:g} s")
    if found.gap_cv is not None:
        parts.append(f"coefficient of variation of the gaps {found.gap_cv:.2f} (Poisson: 1)")
    return "; ".join(parts)


def _describe_scales(found: ArrivalFigures) -> str:
    """Return the index of dispersion at each scale."""
    scales = ", ".join(f"{format_value(scale.index)} over {scale.window}" for scale in found.scales)
    return f"{scales}: variance / mean of the arrivals in a window (Poisson: 1)"


def _describe_reuse(found: ReuseFigures) -> str:
    """Return the reuse of a cache without a limit, and the sizes that reach parts of it."""
    text = f"{100 * found.share:.1f} % of the prompt tokens, in a cache without a limit"
    if not found.share:
        return text
    sizes = (_find_size(found, part * found.share) for part in _PARTS)
    parts = ", ".join(
        f"{100 * part:.0f} % of it in {size:,.0f} tokens" for part, size in zip(_PARTS, sizes, strict=True)
    )
    measured = f"; of {100 * found.measured:.2g} % of the blocks" if found.measured < 1 else ""
    return f"{text} ({found.unique_tokens:,} tokens); {parts}, by last use (LRU){measured}"


def _find_size(found: ReuseFigures, share: float) -> float:
    """Return the smallest measured size of a cache that reuses a share, at most what keeps all blocks."""
    reached = [size for size, own in zip(found.sizes, found.shares, strict=True) if own >= share - 1e-12]
    return min(float(reached[0] if reached else found.sizes[-1]), found.unique_tokens)


def _describe_distances(found: ReuseFigures) -> str:
    """Return what lies between two uses of a reused token, in tokens and in time."""
    low, middle, high = found.distances
    text = f"{middle:,.0f} other tokens (P10 {low:,.0f}, P90 {high:,.0f})"
    if not found.gaps_s:
        return text
    low, middle, high = found.gaps_s
    return f"{text}, {middle:,.4g} s (P10 {low:,.4g}, P90 {high:,.4g})"


def _list_sessions(found: SessionShape) -> Iterator[tuple[str, str]]:
    """Yield (label, text) of sessions: how many, their requests, pauses, and sub-agents."""
    each = found.requests
    many = f"P50 {each.p50:,}, P90 {each.p90:,}, max {each.most:,} requests; mean {each.mean:,.1f}"
    if each.least == each.most:
        many = f"{format_count(each.most, 'request')} each"
    yield "sessions", f"{found.sessions:,}; {many}"
    if found.delays_s:
        low, middle, high = found.delays_s
        pauses = f"P10 {low:,.3g}, P50 {middle:,.3g}, P90 {high:,.3g} s before a request"
        yield "pauses", f"{pauses}; {found.delay_sum_s:,.0f} s in all"
    if len(found.by_depth) > 1:
        yield "by depth", ", ".join(f"{depth}: {count:,}" for depth, count in enumerate(found.by_depth))
