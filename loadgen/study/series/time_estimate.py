"""Time estimate: how long the rest of a series takes, by what is done, its loads, or the roofline."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec

from loadgen.base.errors import UsageError
from loadgen.facts.ceiling import Ceiling
from loadgen.features.roofline import estimate, machines
from loadgen.plan import request_sources
from loadgen.plan.profile import Profile
from loadgen.run import embedded_engine
from loadgen.run.command.options import Options
from loadgen.run.embedded_engine import PresetSteps
from loadgen.settings import data_settings


def estimate_at_best_s(options: Options, workload: Profile) -> float | None:
    """Estimate the seconds of a cell, warm-up included, by a preset's steps, else at the machine's roofline.

    None if there is neither. Of a file it is the length of the trace's window, at its speed-up and at most
    the duration, else the duration; of lengths that are distributed, the duration; None if that is not given.
    """
    if request_sources.find_source(workload) != data_settings.RANDOM:
        begin, _, end = workload.trace_window.partition(":")
        times = [] if workload.duration is None else [workload.duration]
        if workload.timed and end:
            try:
                times.append((float(end) - float(begin or 0)) / workload.speed_up)
            except ValueError:
                return None  # the plan refuses it by name
        return min(times, default=None)
    if workload.input_dist or workload.output_dist:
        return workload.duration
    if (steps := _find_steps(options)) is None:
        return None
    if workload.ladder is None:
        return _estimate_run_s(steps, workload)
    rungs = (workload.model_copy(update={"input_len": length}) for length in workload.ladder)
    return sum(_estimate_run_s(steps, rung) for rung in rungs)


class TimeLeft(msgspec.Struct, frozen=True):
    """Seconds that the rest of a series takes, as far as they are known."""

    seconds: float = 0.0
    unknown: int = 0  # steps whose time is not known
    at_best: bool = False  # for some steps only the roofline is known: they take longer

    @property
    def words(self) -> str:
        """The time in words: about 3 min, at least 40 s, less than 1 s of what rounds to 0; "" if unknown."""
        if not round(self.seconds):
            return "" if self.unknown else "less than 1 s"
        least = self.unknown or self.at_best
        return f"{'at least' if least else 'about'} {format_duration(self.seconds)}"

    @property
    def ending(self) -> str:
        """The words behind a line on how far a series is: "; about 3 min left"; "" of what rounds to 0."""
        return f"; {self.words} left" if round(self.seconds) else ""


class TimedStep(msgspec.Struct, frozen=True):
    """A step of a series, as its time is estimated."""

    workload: Profile
    options: Options
    setting: tuple[object, object]  # the same of a step and its repeats, which take the same time
    group: str = ""  # of steps from whose times another's can be estimated


@dataclass
class Pace:
    """Seconds that steps, and starts of servers by their names, took so far."""

    steps: list[tuple[TimedStep, float]] = field(default_factory=list)
    starts: list[tuple[str, float]] = field(default_factory=list)

    def estimate_left(self, left: Iterable[TimedStep], starts: Iterable[str] = ()) -> TimeLeft:
        """Estimate the time of the steps, and of the starts by their names, by the steps and starts so far.

        A start takes the median of those of its name, else of all, else nothing. A step without a like takes
        its time at best, or is counted as unknown.
        """
        every = [seconds for _, seconds in self.starts]
        waits = [[s for name, s in self.starts if name == start] or every for start in starts]
        total, unknown, at_best = sum(median(times) for times in waits if times), 0, False
        for step in left:
            seconds = self._estimate_step(step)
            if seconds is None:
                seconds = estimate_at_best_s(step.options, step.workload)
                at_best |= step.options.preset is None  # a preset's steps are what a simulation takes
            total += seconds or 0.0
            unknown += seconds is None
        return TimeLeft(total, unknown, at_best)

    def _estimate_step(self, step: TimedStep) -> float | None:
        """Estimate a step's seconds: median of its repeats, else its duration, else its requests at its rate.

        Else it is the median of the nearest workloads of its group, by requests per slot; None without any.
        """
        if same := [seconds for other, seconds in self.steps if other.setting == step.setting]:
            return median(same)
        workload = step.workload
        begun = workload.num_sessions or workload.num_prompts
        if workload.duration is not None:
            return workload.duration
        if math.isfinite(workload.request_rate) and begun:
            return begun / workload.request_rate
        done = [(other.workload, seconds) for other, seconds in self.steps if other.group == step.group]
        if not done:
            return None
        least = min(_measure_distance(other, workload) for other, _ in done)
        nearest = [timed for timed in done if _measure_distance(timed[0], workload) == least]
        # A request takes as long as there: the time goes with the requests of each slot.
        return median(seconds / _count_turns(other) for other, seconds in nearest) * _count_turns(workload)


def _count_turns(workload: Profile) -> float:
    """Count how many requests, or sessions, follow one another in each of a closed loop's slots."""
    count = workload.num_sessions or workload.num_prompts or 1
    return count / min(workload.max_concurrency or count, count)


def _measure_distance(one: Profile, other: Profile) -> float:
    """Sum the absolute logarithms of two workloads' ratios of concurrency, input and output length."""
    pairs = (
        (one.max_concurrency or 1, other.max_concurrency or 1),
        (one.input_len, other.input_len),
        (one.output_len, other.output_len),
    )
    return sum(abs(math.log(first / second)) for first, second in pairs)


def _find_steps(options: Options) -> PresetSteps | Ceiling | None:
    """Return the preset's steps, else those of the model on the machine's roofline; None if it has none."""
    if (of_preset := embedded_engine.find_preset_steps(options)) is not None:
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


def _estimate_run_s(steps: PresetSteps | Ceiling, workload: Profile) -> float:
    """Estimate the seconds of a run: prompts one after the other, tokens in batches as large as allowed."""
    count, warmups = workload.num_prompts or 0, workload.warmups
    batch = float(min(workload.max_concurrency or count or 1, count or workload.max_concurrency or 1))
    context = workload.prefix_len + workload.input_len + workload.output_len / 2
    prefill_s = (steps.prefill_ms(workload.prefix_len + workload.input_len) or 0.0) / 1e3
    each_s = prefill_s + workload.output_len * steps.tpot_ms(batch, context) / 1e3 / batch
    if workload.duration is not None:
        return workload.duration + warmups * each_s
    return max(count * each_s, count / workload.mean_rate_per_s) + warmups * each_s


def format_duration(seconds: float) -> str:
    """Format seconds as 40 s (below 90), 12 min or 2 h 10 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest:02d} min" if hours else f"{minutes} min"
