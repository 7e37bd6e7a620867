"""Trace settings: which trace is sent, and what is changed of it."""

from functools import partial
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, Field

from loadgen.base import parsing
from loadgen.base.parsing import integer_between, number_between
from loadgen.settings.conflicts import replays_trace
from loadgen.settings.setting import TRACES, Conflict, Given, Makes, Requirement, Setting

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

_TWO_SOURCES = "--trace and {other} are two sources of requests: leave out one of them"
_OF_A_TRACE = Requirement(
    replays_trace, "{flag} applies to a trace: pass --trace FILE, or leave it out", Given.WRITTEN
)
_ALONE = (
    "--trace-replay {trace_replay} and --no-self-timed, which sends each request on its own, are two: leave "
    "out one of them"
)


_UNTIMED = (
    "--trace-jitter spreads requests of one instant, and those of sessions wait for responses: leave it out, "
    "or add --trace-replay recorded"
)


# fmt: off
_trace = partial(Setting, Makes.LOAD, group=TRACES, rules=(_OF_A_TRACE,))
_most = partial(_trace, read=integer_between(1, parsing.MOST_TOKENS), metavar="N")


class TraceKeys(BaseModel, frozen=True, defer_build=True):
    """The settings of which trace is sent, and how it is changed."""

    trace: Annotated[str, _trace("send a trace's requests at its times; of ServeGen, a directory",
        metavar="FILE", names_server=True,
        rules=(Conflict("dataset_path", _TWO_SOURCES), Conflict("dataset_name", _TWO_SOURCES)),
        common=True)] = ""
    trace_format: Annotated[TraceFormat, _trace(f"format of the trace: {', '.join(_TRACES)} (default: by the "
        "rows' keys)", metavar="NAME")] = ""
    self_timed: Annotated[bool, _trace("send at the trace's times (default), not by rate and "
        "concurrency")] = True
    trace_replay: Annotated[Literal["recorded", "closed"], _trace("order of a trace's requests. closed: "
        "those of a session wait for responses (default for agents); recorded: at the trace's times",
        rules=(_OF_A_TRACE, Conflict(lambda values: values["self_timed"] is False, _ALONE)))] = "recorded"
    # Either end may be left out.
    trace_window: Annotated[str, _trace("part of the trace to send, in its seconds, as 600:1200",
        metavar="START:END")] = ""
    speed_up: Annotated[float, Field(gt=0.0, le=1e6), _trace("factor that the trace is sent "
        "faster by (default 1)", metavar="X")] = 1.0
    trace_max_input_len: Annotated[int | None, _most("most prompt tokens of a trace's request")] = None
    trace_max_output_len: Annotated[int | None, _most("most output tokens of a trace's request")] = None
    trace_too_long: Annotated[Literal["skip", "clip"], _trace("skip or clip longer requests of a trace "
        "(default skip)")] = "skip"
    trace_idle_cap: Annotated[float | None, _trace("longest pause without a request in a trace, in "
        "seconds; longer ones are cut", read=number_between(0, parsing.YEAR_S), metavar="S")] = None
    trace_jitter: Annotated[Literal["none", "uniform"], _trace("spread a trace's requests of one instant "
        "over the grid of its times: uniform, or none (default)",
        rules=(_OF_A_TRACE, Conflict(lambda values: values["trace_replay"] == "closed", _UNTIMED)))] = "none"
# fmt: on
