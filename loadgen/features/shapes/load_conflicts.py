"""Load conflicts: keys of a profile that ask for two loads at once, refused by the names of both."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from loadgen.base.errors import UsageError
from loadgen.settings import load_schedule
from loadgen.settings.load_schedule import LEAST_RATE_PER_S
from loadgen.settings.load_settings import ClassKeys, ShapeKeys
from loadgen.settings.table import join_rows
from loadgen.settings.validation import find_flag

Values = Mapping[str, Any]
_RAMP = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
_ENDS = "--ramp-up-start-rps and --ramp-up-end-rps"
_MADE = (None, "random")
_LENGTHS = ("input_len", "output_len", "range_ratio")
_DISTRIBUTIONS = ("input_dist", "output_dist")


def check(values: Values, typed: Collection[str] = ()) -> None:
    """Raises UsageError of the first pair of keys that do not go together, or a key without what it needs.

    `values` are a profile's, by key; `typed` are those given as flags or keywords.
    """
    for rule in _RULES:
        for message in rule(values, typed):
            raise UsageError(message)


def is_stepped(values: Values) -> bool:
    """Whether a schedule is one of concurrency."""
    return str(values.get("schedule") or "").strip().startswith("concurrency")


def _rates(values: Values) -> list[str]:
    """The flags that each give a rate."""
    rate = values.get("request_rate")
    named = ["--schedule"] * bool(values.get("schedule"))
    named += ["--ramp-up-strategy"] * bool(values.get("ramp_up_strategy"))
    return named + ["--request-rate"] * (rate is not None and math.isfinite(rate))


def _two_rates(values: Values, _: Collection[str]) -> Iterator[str]:
    named = _rates(values)
    if len(named) > 1:
        yield f"{named[0]} and {named[1]} are two loads: leave out one of them"


def _two_traces(values: Values, _: Collection[str]) -> Iterator[str]:
    trace = values.get("trace") or values.get("dataset_name") == "timed_trace"
    named = [flag for flag in _rates(values) if flag != "--request-rate"]
    named += ["--bursts"] * bool(values.get("bursts"))
    if trace and values.get("self_timed") is not False and named:
        yield (
            f"{named[0]} and a trace's own times are two loads: pass --no-self-timed to send the trace's "
            f"requests by {named[0]}"
        )


def _ramp(values: Values, _: Collection[str]) -> Iterator[str]:
    strategy, begin, end = (values.get(key) for key in _RAMP)
    if strategy is None:
        if begin is not None or end is not None:
            yield f"{_ENDS} are of a ramp: pass --ramp-up-strategy linear or exponential"
        return
    if begin is None or end is None:
        yield f"--ramp-up-strategy {strategy} needs {_ENDS}"
    elif not end > 0:
        yield f"--ramp-up-end-rps {end:g}: give a rate above 0"
    elif small := next((key for key in _RAMP[1:] if 0 < values[key] < LEAST_RATE_PER_S), ""):
        yield f"{find_flag(small)} {values[small]:g}: a rate is 0, or from 1e-9 to 1e9 requests per second"
    elif begin > end:
        yield (
            f"--ramp-up-start-rps {begin:g} is more than --ramp-up-end-rps {end:g}: for a falling rate write "
            f'--schedule "rate {begin:g} to {end:g} over 60s"'
        )
    elif strategy == "exponential" and not begin:
        yield "--ramp-up-start-rps 0: no exponential ramp begins at 0: give a rate above it, or use linear"
    elif values.get("duration") is not None and values.get("num_prompts") is None:
        yield (
            "--ramp-up-strategy goes from the first request to the last: pass --num-prompts, or by time "
            f'--schedule "rate {begin:g} to {end:g} over {values["duration"]:g}s"'
        )


def _own_duration(values: Values, _: Collection[str]) -> Iterator[str]:
    if values.get("schedule"):
        all_s, asked_s = load_schedule.parse_schedule(values["schedule"]).duration_s, values.get("duration")
        if asked_s is not None and not math.isclose(asked_s, all_s):
            yield f"--duration {asked_s:g} and the stages of --schedule, {all_s:g} s in all: leave out one"


def _own_limit(values: Values, _: Collection[str]) -> Iterator[str]:
    if not is_stepped(values):
        return
    if values.get("bursts"):
        yield "--bursts goes with a rate, and --schedule has a concurrency: leave out one of them"
    most = int(load_schedule.parse_schedule(values["schedule"]).most)
    if values.get("max_concurrency") not in (None, most):
        yield (
            f"--max-concurrency {values['max_concurrency']} and the concurrency of --schedule are two: "
            "leave out one of them"
        )


def _burst_ramp(values: Values, _: Collection[str]) -> Iterator[str]:
    """A ramp by request has a rate at each of its requests, and how many these are bursts would decide."""
    if values.get("bursts") and values.get("ramp_up_strategy") is not None:
        begin, end = (values.get(key) or 0 for key in _RAMP[1:])
        yield (
            "--bursts do not go with --ramp-up-strategy, whose rate is by request: write the ramp by time, "
            f'as --schedule "rate {begin:g} to {end:g} over 60s"'
        )


def _ladder(values: Values, typed: Collection[str]) -> Iterator[str]:
    for row in join_rows(ShapeKeys, ClassKeys):
        if values.get("ladder") and values.get(row.name):
            yield f"{row.option} does not apply to a ladder: each of its lengths is measured under one load"


def _classes(values: Values, typed: Collection[str]) -> Iterator[str]:
    if not values.get("classes"):
        return
    name = values.get("dataset_name")
    if values.get("trace") or name not in _MADE or (values.get("dataset_path") and name is None):
        yield "--class is of random prompts, and the data set has prompts of its own: leave out one of them"
    for key in (*_LENGTHS, *_DISTRIBUTIONS):
        if key in typed or (key in _DISTRIBUTIONS and values.get(key)):
            flag = find_flag(key)
            yield f"{flag} and --class both give lengths: write them into each class, as input_len=500"
    if values.get("prompt_format") == "text-vllm-0.9":
        yield "--class: vLLM 0.9 has no classes: use --prompt-format text-vllm"


_RULES: tuple[Callable[[Values, Collection[str]], Iterator[str]], ...] = (
    *(_two_rates, _two_traces, _ramp, _burst_ramp, _own_duration, _own_limit, _ladder, _classes),
)
