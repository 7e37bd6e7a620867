"""Trace schedule: which requests of a trace are sent, and when: window, caps, speed, jitter, idle cap."""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.base import parsing
from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS
from loadgen.base.errors import UsageError
from loadgen.base.text import quote_value
from loadgen.features.traces.trace_rows import TraceRows
from loadgen.figures.workloads import find_grid_ns
from loadgen.plan.planned_requests import CAPS, ScheduleFacts
from loadgen.plan.profile import Profile

_WINDOW = "--trace-window {}: give START:END in seconds, as 600:1200; either may be left out"


TraceWindow = tuple[float | None, float | None]  # seconds after its begin; None: its first, or last, request


def parse_window(text: str) -> TraceWindow:
    """Parse `--trace-window`, START:END in seconds; "" is the whole trace; raises UsageError."""
    if not text:
        return None, None
    start, colon, end = text.partition(":")
    try:
        start_s, end_s = (float(bound) if bound else None for bound in (start, end))
    except ValueError:
        raise UsageError(_WINDOW.format(quote_value(text))) from None
    last_s = parsing.YEAR_S if end_s is None else end_s
    if not colon or not 0 <= (start_s or 0.0) < last_s <= parsing.YEAR_S:
        raise UsageError(_WINDOW.format(quote_value(text)))
    return start_s, end_s


class TraceSelection(msgspec.Struct, frozen=True):
    """The rows of a trace that are sent: indices of its columns, and lengths; int64[requests]."""

    places: Int64
    input_lens: Int64
    output_lens: Int64
    skipped: dict[str, int]
    clipped: int
    rounds: Int64 | None = None  # int64[requests], how often each one's session was sent before; None: never

    @classmethod
    def select(
        cls, rows: TraceRows, profile: Profile, window: TraceWindow, most: int | None
    ) -> TraceSelection:
        """Select a window's first `most` rows; raises UsageError if none is left.

        Rows above the longest lengths are skipped and counted (`trace_too_long` is skip), else clipped.
        """
        begin, end = (
            len(rows) if bound_s is None else int(np.searchsorted(rows.at_ns, round(bound_s * SECOND_NS)))
            for bound_s in (window[0] or 0.0, window[1])
        )
        inside, places = slice(begin, end), np.arange(begin, end)
        prompts, answers = rows.input_lens[inside], rows.output_lens[inside]
        most_prompt = profile.trace_max_input_len or parsing.MOST_TOKENS
        most_answer = profile.trace_max_output_len or parsing.MOST_TOKENS
        skipped: dict[str, int] = {}
        if profile.trace_too_long == "skip":
            kept = (prompts <= most_prompt) & (answers <= most_answer)
            if most is not None:  # the rows up to and with the last one that is sent
                wanted = int(np.searchsorted(np.cumsum(kept), most)) + 1
                places, prompts, answers = places[:wanted], prompts[:wanted], answers[:wanted]
                kept = kept[:wanted]
            long = prompts > most_prompt
            counts = {CAPS[0]: long.sum(), CAPS[1]: ((answers > most_answer) & ~long).sum()}
            skipped = {why: int(count) for why, count in counts.items() if count}
            places, prompts, answers = places[kept], prompts[kept], answers[kept]
        places, prompts, answers = places[:most], prompts[:most], answers[:most]
        cut = (prompts > most_prompt) | (answers > most_answer)
        if not len(places):
            if inside.start >= inside.stop:
                last_s = rows.at_ns[-1] / SECOND_NS
                raise UsageError(
                    f"--trace-window {profile.trace_window!r}: no request of {rows.file} is in it: its last "
                    f"comes {last_s:.6g} s after the first"
                )
            why = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
            raise UsageError(
                f"--trace {rows.file}: no request is left ({why}): raise the limit, or pass --trace-too-long "
                "clip"
            )
        return cls(
            places,
            np.minimum(prompts, most_prompt),
            np.minimum(answers, most_answer),
            skipped,
            int(cut.sum()),
        )


def make_schedule(
    rows: TraceRows, places: Int64, profile: Profile, window: TraceWindow, name: str, rng: np.random.Generator
) -> tuple[Int64, ScheduleFacts, list[str]]:
    """Make the due times (ns after the start) of the rows at `places`, with facts and notes on them.

    `name` is the trace's format. In order: window, jitter (all that is drawn from `rng`), speed, idle cap;
    --duration drops later rows. Raises UsageError if no request is left.
    """
    at_ns = rows.at_ns[places]
    grid_ns, notes = find_grid_ns(rows.at_ns), list[str]()
    start_s, end_s = window
    begin_ns = at_ns[0] if start_s is None else round(start_s * SECOND_NS)
    after_ns = at_ns - begin_ns
    spread = profile.trace_jitter == "uniform" and grid_ns > 0
    if spread:
        after_ns = np.sort(after_ns + rng.integers(0, grid_ns, len(after_ns)))
    elif profile.trace_jitter == "uniform":
        notes.append("--trace-jitter has no effect: the trace's times are on no grid")
    offsets_ns = np.rint(after_ns / profile.speed_up).astype(np.int64)
    cut_ns = 0
    if profile.trace_idle_cap is not None:
        gaps_ns = np.diff(offsets_ns, prepend=0)  # also before the first
        capped_ns = np.minimum(gaps_ns, round(profile.trace_idle_cap * SECOND_NS))
        offsets_ns, cut_ns = np.cumsum(capped_ns), int((gaps_ns - capped_ns).sum())
    if profile.duration is not None:
        offsets_ns = offsets_ns[: np.searchsorted(offsets_ns, profile.duration_ns)]
    count = len(offsets_ns)
    if not count:
        raise UsageError(f"--duration {profile.duration:g}: no request of {rows.file} is due before it ends")
    span_s = int(offsets_ns[-1] - offsets_ns[0]) / SECOND_NS
    facts = ScheduleFacts(
        format=name,
        span_s=span_s,
        rate_per_s=(count - 1) / span_s if span_s else 0.0,
        instants=len(np.unique(at_ns[:count])),
        requests=count,
        grid_s=grid_ns / SECOND_NS,
        spread=spread,
        speed_up=profile.speed_up,
        start_s=start_s or 0.0,
        end_s=end_s,
        idle_cap_s=profile.trace_idle_cap,
        idle_cut_s=cut_ns / SECOND_NS,
    )
    return offsets_ns, facts, notes
