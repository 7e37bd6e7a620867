"""Trace settings: which trace is sent, and what is changed of it."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Literal, get_args

from loadgen.base import parsing
from loadgen.base.parsing import integer_between, number_between
from loadgen.settings.conflicts import replays_trace
from loadgen.settings.setting import (
    TRACES,
    Conflict,
    Given,
    Identity,
    KeyRows,
    Makes,
    Values,
    setting,
)

TraceFormat = Literal[
    "",
    "mooncake",
    "bailian",
    "azure-2023",
    "azure-2024",
    "burstgpt",
    "weka",
    "servegen",
    "timed",
    "tracelab",
    "otel",
    "workload",
]
_TRACES = tuple(name for name in get_args(TraceFormat) if name)
_N = {"read": integer_between(1, parsing.MOST_TOKENS), "metavar": "N"}

_TWO_SOURCES = "--trace and {other} are two sources of requests: leave out one of them"
_OF_A_TRACE = Conflict(
    replays_trace, "{flag} applies to a trace: pass --trace FILE, or leave it out", Given.WRITTEN
)
_ALONE = (
    "--trace-replay {trace_replay} and --no-self-timed, which sends each request on its own, are two: leave "
    "out one of them"
)


_UNTIMED = (
    "--trace-jitter spreads requests of one instant, and those of sessions wait for answers: leave it out, "
    "or add --trace-replay recorded"
)


def _sends_sessions(values: Values) -> bool:
    return bool(values["trace_replay"] == "closed")


def _sends_alone(values: Values) -> bool:
    """Whether requests of a trace are sent by rate or concurrency, without their sessions."""
    return values["self_timed"] is False


# fmt: off
_trace = partial(setting, Makes.LOAD, group=TRACES, needs=(_OF_A_TRACE,))


class TraceKeys(KeyRows, frozen=True):
    """The settings of which trace is sent, and how it is changed."""

    trace: str = _trace("", "send a trace's requests at its times; of ServeGen, a directory",
        metavar="FILE", names_server=True, compared=Identity.AS_READ, replaces=("turns", "think_time"),
        needs=(), not_with=(Conflict("dataset_path", _TWO_SOURCES), Conflict("dataset_name", _TWO_SOURCES)),
        common=True)
    trace_format: TraceFormat = _trace("", f"format of the trace: {', '.join(_TRACES)} (default: by the "
        "rows' keys)", choices=_TRACES, metavar="NAME", compared=Identity.AS_READ)
    self_timed: bool = _trace(True, "send at the trace's times (default), not by rate and concurrency",
        action=argparse.BooleanOptionalAction)
    trace_replay: Literal["recorded", "closed"] = _trace("recorded",
        "order of a trace's requests. closed: those of a session wait for answers (default for agents); "
        "recorded: at the trace's times",
        choices=("recorded", "closed"), not_with=(Conflict(_sends_alone, _ALONE),))
    # Either end may be left out.
    trace_window: str = _trace("", "part of the trace to send, in its seconds, as 600:1200",
        metavar="START:END")
    speed_up: float = _trace(1.0, "factor that the trace is sent faster by (default 1)", read=float,
        metavar="X", above=0.0, most=1e6)
    trace_max_input_len: int | None = _trace(None, "most prompt tokens of a trace's request", **_N)
    trace_max_output_len: int | None = _trace(None, "most output tokens of a trace's request", **_N)
    trace_too_long: Literal["skip", "clip"] = _trace("skip", "skip or clip longer requests of a trace "
        "(default skip)", choices=("skip", "clip"))
    trace_idle_cap: float | None = _trace(None, "longest pause without a request in a trace, in seconds; "
        "longer ones are cut", read=number_between(0, parsing.YEAR_S), metavar="S")
    trace_jitter: Literal["none", "uniform"] = _trace("none",
        "spread a trace's requests of one instant over the grid of its times: uniform, or none (default)",
        choices=("none", "uniform"), not_with=(Conflict(_sends_sessions, _UNTIMED),))
# fmt: on
