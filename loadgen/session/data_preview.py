"""Preview: what a plan would send, in lines and as JSON, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from loadgen.arrays import Int64
from loadgen.clock import SECOND_NS
from loadgen.protocol.layout import wrapped
from loadgen.protocol.printable import printable
from loadgen.workload.data_facts import LengthFacts
from loadgen.workload.plan import Plan
from loadgen.workload.sources import TRACES

_LABEL = 14  # columns
_EXAMPLE_LETTERS = 300


class PlanPreview(msgspec.Struct, frozen=True):
    """A plan, and the lengths that a tokenizer counted of what the plan does not know.

    `counted` is int64[requests]; None where nothing was counted.
    """

    made: Plan
    counted: Int64 | None = None

    @property
    def input(self) -> LengthFacts | None:
        """The prompts' lengths, as planned or counted."""
        return self.made.facts.input if self.counted is None else LengthFacts.of(self.counted)

    def lines(self) -> Iterator[str]:
        """The preview in lines of 80 columns."""
        for label, text in self._parts():
            first, *more = wrapped(f"{label:<{_LABEL}}{text}", " " * _LABEL) or [label]
            yield from (first, *more)
        yield "example"
        yield from wrapped(f"  {_example(self.made)}", "  ", break_words=True)

    def _parts(self) -> Iterator[tuple[str, str]]:
        made, facts = self.made, self.made.facts
        form = made.requests.format
        sent = "sent" if form == facts.kind else f"sent as {form}"
        yield "kind", f"{facts.kind}, {sent} to {made.path}"
        if facts.file:
            yield "file", f"{facts.file} ({facts.file_digest[:12]}), {_many(facts.rows, 'row')}"
        trace = facts.kind in TRACES
        same = "with the prompt of an earlier one" if trace else "whose row an earlier one sends"
        again = f"; {facts.repeated:,} of them {same}" if facts.repeated else ""
        yield "requests", f"{len(made):,}{again}"
        for why, count in facts.skipped.items():
            yield "left out", f"{_many(count, 'row')}: {why}"
        if facts.clipped:
            yield "clipped", _many(facts.clipped, "request")
        how = " (by the tokenizer, without its chat template)" if self.counted is not None else ""
        unknown = "known only to the server; --tokenizer DIR counts them here"
        yield "prompts", _lengths(self.input, len(made), unknown) + how
        yield "answers", _lengths(facts.output, len(made), "as long as the model makes them")
        if facts.reuse is not None:
            yield (
                "prefix reuse",
                (
                    f"{100 * facts.reuse:.1f} % of the prompt tokens, in a cache that is empty at first and "
                    "without a limit"
                ),
            )
        yield "arrivals", _arrivals(made)
        for note in made.notes:
            yield "note", note
        yield "plan", f"{made.digest()}, seed {made.seed.value}"

    def json(self) -> dict[str, Any]:
        """The preview as JSON: times in seconds, lengths in tokens, null for what is not known."""
        made, facts = self.made, self.made.facts
        lengths = {"input": self.input, "output": facts.output}
        return {
            **facts.model_dump(mode="json", exclude={"input", "output"}),
            "prompt_format": made.requests.format,
            "requests": len(made),
            **{f"{way}_tokens": None if each is None else each.model_dump() for way, each in lengths.items()},
            "reuse": facts.reuse,
            "arrivals": _gaps(made),
            "notes": list(made.notes),
            "seed": made.seed.value,
            "plan_digest": made.digest(),
            "example": msgspec.json.decode(made.body(0)),
        }


def _many(number: int, noun: str) -> str:
    """A number with its noun: 1 row, 2,000 rows."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _lengths(lengths: LengthFacts | None, requests: int, unknown: str) -> str:
    if lengths is None:
        return unknown
    if lengths.least == lengths.most:
        text = f"{_many(lengths.most, 'token')} each"
    else:
        text = (
            f"P50 {lengths.p50:,}, P90 {lengths.p90:,}, P99 {lengths.p99:,}, max {lengths.most:,} tokens; "
            f"mean {lengths.mean:,.1f}, sd {lengths.sd:,.1f}, min {lengths.least:,}"
        )
    missing = requests - lengths.known
    return text + (f"; of {missing:,} {unknown}" if missing else "")


def _gaps(made: Plan) -> dict[str, Any] | None:
    """When requests are due: span, rate, different instants, and how even the gaps are; None: not planned.

    `gap_cv` is the gaps' standard deviation over their mean: 1 of a Poisson process, 0 of even gaps.
    """
    offsets_ns = made.offsets_ns
    if offsets_ns is None:
        return None
    gaps_ns = np.diff(offsets_ns)
    span_s = float(offsets_ns[-1] - offsets_ns[0]) / SECOND_NS if len(offsets_ns) else 0.0
    mean_ns = float(gaps_ns.mean()) if len(gaps_ns) else 0.0
    return {
        "span_s": span_s,
        "rate_per_s": len(gaps_ns) / span_s if span_s else None,
        "instants": len(np.unique(offsets_ns)),
        "gap_cv": float(gaps_ns.std()) / mean_ns if mean_ns else None,
    }


def _arrivals(made: Plan) -> str:
    """How requests come: one after another's answer, all at once, or at times."""
    gaps, schedule, limit = _gaps(made), made.facts.schedule, made.profile.max_concurrency
    at_most = "" if limit is None else f", {limit} at a time at most"
    if gaps is None:
        return f"as answers come, {'at most ' * made.profile.stepped}{limit} at a time"
    if gaps["rate_per_s"] is None:
        return f"all at once{at_most}"
    parts = [f"{gaps['span_s']:,.1f} s, {gaps['rate_per_s']:.4g} requests/s"]
    if schedule is not None:
        parts[0] = f"{schedule.format}, {parts[0]}"
        parts.append(f"{schedule.instants:,} instants in the file")
        if schedule.grid_s:
            spread = "spread over it" if schedule.spread else "sent as bursts: --trace-jitter uniform spreads"
            parts.append(f"a grid of {schedule.grid_s:g} s, {spread}")
    parts.append(f"coefficient of variation of the gaps {gaps['gap_cv']:.2f} (Poisson: 1)")
    return "; ".join(parts) + at_most


def _example(made: Plan) -> str:
    """The body of the first request, cut to a few lines."""
    text = printable(made.body(0).decode("utf-8", "replace"))
    more = len(text) - _EXAMPLE_LETTERS
    return text if more <= 0 else f"{text[:_EXAMPLE_LETTERS]}… and {more:,} characters more"
