"""Time estimate: how long a run takes at least, by a preset or at the roofline."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from loadgen.base.errors import UsageError
from loadgen.plan import request_sources
from loadgen.plan.profile import Profile
from loadgen.run.command.options import Options


def at_best_s(options: Options, workload: Profile) -> float | None:
    """Estimate the seconds of a cell by a preset's steps or at the roofline, warm-up included.

    None if lengths, or both preset and machine or model, are unknown.

    A trace takes at least as long as the window that is named; what a file holds is not known before.
    """
    if request_sources.find_source(workload) != request_sources.RANDOM:
        return _window_s(workload)
    if workload.input_dist or workload.output_dist:
        return workload.duration
    if (steps := _steps(options)) is None:
        return None
    if workload.ladder is None:
        return _run_s(steps, workload)
    rungs = (workload.model_copy(update={"input_len": length}) for length in workload.ladder)
    return sum(_run_s(steps, rung) for rung in rungs)


def simulated_s(options: Options, workload: Profile) -> float | None:
    """Estimate the seconds of a run on the embedded engine, by the preset's steps; None without one."""
    from loadgen.run import embedded_engine

    return None if embedded_engine.preset_steps(options) is None else at_best_s(options, workload)


class TimeLeft(msgspec.Struct, frozen=True):
    """Seconds that the rest of a series takes, as far as they are known."""

    seconds: float = 0.0
    unknown: int = 0  # steps whose time is not known
    at_best: bool = False  # for some steps only the roofline is known: they take longer

    @property
    def words(self) -> str:
        """The time in words: about 3 min, or at least 40 s."""
        least = self.unknown or self.at_best
        return f"{'at least' if least else 'about'} {format_duration(self.seconds)}"


class Steps(Protocol):
    """How long prompts and tokens take at least, in milliseconds."""

    def prefill_ms(self, tokens: int, /) -> float | None: ...

    def tpot_ms(self, batch: float, context: float, /) -> float: ...


def _steps(options: Options) -> Steps | None:
    """Find the preset's steps, which are what a simulation takes, else those of the machine's roofline."""
    from loadgen.roofline import estimate, machines  # no campaign without `hardware` needs them
    from loadgen.run import embedded_engine

    if (of_preset := embedded_engine.preset_steps(options)) is not None:
        return of_preset
    if options.hardware is None or options.model is None:
        return None
    config = Path(options.model_config) if options.model_config is not None else None
    try:
        return estimate.estimate_ceiling(
            options.model, machines.find_machine(options.hardware), config=config
        )
    except UsageError:
        return None


def _run_s(steps: Steps, workload: Profile) -> float:
    """Estimate prompts one after the other, then tokens in batches as large as the load allows."""
    count, warmups = workload.num_prompts or 0, workload.warmups
    batch = float(min(workload.max_concurrency or count or 1, count or workload.max_concurrency or 1))
    context = workload.prefix_len + workload.input_len + workload.output_len / 2
    prefill_s = (steps.prefill_ms(workload.prefix_len + workload.input_len) or 0.0) / 1e3
    each_s = prefill_s + workload.output_len * steps.tpot_ms(batch, context) / 1e3 / batch
    if workload.duration is not None:
        return workload.duration + warmups * each_s
    return max(count * each_s, count / workload.mean_rate_per_s) + warmups * each_s


def _window_s(workload: Profile) -> float | None:
    """Estimate the seconds in which the requests of a file are sent at least, where the profile says so."""
    begin, _, end = workload.trace_window.partition(":")
    if workload.timed and end:
        try:
            length_s = (float(end) - float(begin or 0)) / workload.speed_up
        except ValueError:
            return None  # the plan refuses it by name
        return length_s if workload.duration is None else min(length_s, workload.duration)
    return workload.duration


def format_duration(seconds: float) -> str:
    """Format a time as people say it: 40 s, 12 min, 2 h 10 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest:02d} min" if hours else f"{minutes} min"
