"""Quality lines: a candidate's quality, and what a reference file has, as text in 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from loadgen.base.text import WIDTH, format_count, wrap_text
from loadgen.features.quality.divergence import estimate_divergence
from loadgen.features.quality.quality_record import CANDIDATE, FIGURES, REFERENCE, MeanInterval, Quality
from loadgen.features.quality.quality_verdict import bound_share, describe_tail, judge_quality
from loadgen.features.quality.reference_file import ReferenceContents

_LABEL = 24  # columns
_LABELS = {figure.key: figure.label for figure in FIGURES}


def list_quality_lines(quality: Quality, margin: float) -> list[str]:
    """List a quality as lines of 80 columns: the verdict, the figures, and doubts with what to do."""
    verdict = _describe_verdict(quality, margin)
    lines = wrap_text(f"{quality.candidate} held to {quality.reference}: {verdict}", width=WIDTH)
    lines += [f"  {label:<{_LABEL}}{value}" for label, value in _list_figures(quality, margin)]
    reasons: dict[str, list[str]] = {}
    for key, label in _LABELS.items():
        if getattr(quality, key) is None and key in quality.why:
            reasons.setdefault(quality.why[key], []).append(label)
    for reason, names in reasons.items():
        if reason not in quality.doubts:
            lines += wrap_text(f"no {', '.join(names)}: {reason}", width=WIDTH)
    for doubt in quality.doubts:
        lines += wrap_text(f"doubt: {doubt}", width=WIDTH)
    return lines


def list_reference_lines(contents: ReferenceContents, path: Path) -> list[str]:
    """List what a reference file has as lines of 80 columns."""
    answers = [line.answer for line in contents.answers]
    lines = [
        f"{path}: {format_count(len(answers), 'answer')} of {contents.header.model}, "
        f"{contents.tokens:,} tokens, {format_count(len(contents.segments), 'segment')} of text"
    ]
    floor = estimate_divergence(answers, [line.own for line in contents.answers])
    if floor is not None:
        lines.append(f"  {_LABELS['noise_floor']:<{_LABEL}}{_format_interval(floor, 4)} nats a token")
    if contents.damage:
        lines += wrap_text(f"the rest of the file is left out: {contents.damage}", width=WIDTH)
    return lines


def _describe_verdict(quality: Quality, margin: float) -> str:
    """Return the verdict in words, or that there is none without a KL divergence."""
    verdict = judge_quality(quality, margin)
    return "no KL divergence" if verdict is None else verdict.text


def _list_figures(quality: Quality, margin: float) -> Iterator[tuple[str, str]]:
    """Yield the label and value of each figure that there is."""
    if (kl := quality.kl) is not None:
        yield f"KL({kl.direction})", f"{_format_interval(kl, 4)} nats a token"
        yield "", f"{kl.tokens:,} tokens of {format_count(kl.answers, 'answer')}"
        if kl.highest:
            unseen = bound_share(0, kl.answers)
            yield "worst answer", f"{kl.highest[0]:.3g} nats a token; at most {100 * unseen:.2g} % of prompts"
            yield "", "are worse (95 %)"
            if tail := describe_tail(kl, margin):
                yield "", tail
        yield "self check", f"{_format_interval(kl.self_check, 4)} (1 is expected)"
    if quality.noise_floor is not None:
        yield _LABELS["noise_floor"], f"{_format_interval(quality.noise_floor, 4)} nats a token"
    if quality.agreement is not None:
        share = quality.agreement
        percent = MeanInterval(mean=100 * share.mean, low=100 * share.low, high=100 * share.high)
        yield _LABELS["agreement"], f"{_format_interval(percent, 1)} % of the text's tokens"
    if quality.perplexity is not None:
        both = f"{quality.perplexity[CANDIDATE]:.4g}, reference {quality.perplexity[REFERENCE]:.4g}"
        yield "perplexity", both
    if quality.perplexity_ratio is not None:
        yield _LABELS["perplexity_ratio"], _format_interval(quality.perplexity_ratio, 4)
    if quality.bits_per_byte is not None:
        candidate, reference = (quality.bits_per_byte[side] for side in (CANDIDATE, REFERENCE))
        yield _LABELS["bits_per_byte"], f"{_format_interval(candidate, 3)}, reference"
        yield "", _format_interval(reference, 3)


def _format_interval(interval: MeanInterval, digits: int) -> str:
    """Format a mean ± half its interval, or with both ends where these are unequally far."""
    off = abs(interval.mean - (interval.low + interval.high) / 2)
    if off > interval.half / 4:
        return f"{interval.mean:.{digits}f} ({interval.low:.{digits}f} to {interval.high:.{digits}f})"
    return f"{interval.mean:.{digits}f} ± {interval.half:.{digits}f}"
