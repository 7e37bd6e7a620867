"""Load settings: how many requests there are, of which classes, and when; and which are given up."""

import argparse
import math
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, field_validator

from loadgen.base import parsing
from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.base.parsing import integer_between, parse_with, refuse_blank, suggest_name
from loadgen.base.text import format_count, quote_value
from loadgen.settings.data_settings import is_stepped, is_timed, reads_data
from loadgen.settings.setting import (
    SHAPES,
    WORKLOAD,
    Conflict,
    Makes,
    Requirement,
    Setting,
    Values,
    convert_number,
    make_check,
)

if TYPE_CHECKING:
    from loadgen.settings.load_schedule import Bursts, LoadSchedule

VLLM_PROMPTS = 1000  # requests of `vllm bench serve` without a flag
_RAMP = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
# The keys that give times at which requests, or sessions, begin.
ARRIVALS = ("schedule", "bursts", "ramp_up_strategy", "request_rate")
_LEAST_SHARE = 1e-12  # as small as one can be written
_CANCEL_TIME = re.compile(parsing.TIME, re.ASCII)
_TOKENS = re.compile(r"([0-9]{1,10})\s*tok", re.ASCII)
_LONGEST_NS = 86_400_000_000_000
_MOST_TOKENS = 1 << 31
_CLASS_NAME = re.compile(r"[\w.+-]+")
_CANCEL_FORM = "write 2s, 500ms or 50tok"


class CancelPoint(msgspec.Struct, frozen=True):
    """When a request is cancelled: a time after it was sent, or after N messages with text."""

    after_ns: int = 0
    after_tokens: int = 0  # 0: the time decides

    def __str__(self) -> str:
        if self.after_tokens:
            return format_count(self.after_tokens, "token chunk")
        if self.after_ns < SECOND_NS // 10:
            return f"{self.after_ns / MS_NS:g} ms"
        return f"{self.after_ns / SECOND_NS:g} s"


def parse_cancel_rate(text: str) -> float:
    """Parse the share of requests to cancel, `10%` or `0.1`, from 1e-12 to 1; raises ValueError."""
    try:
        return parsing.parse_share(text, _LEAST_SHARE)
    except ValueError:  # what refuses a key shows its value already
        raise ValueError("no share of the requests: write 10% or 0.1, above 0 and up to 100%") from None


def parse_cancel_point(text: str) -> CancelPoint:
    """Parse when a request is cancelled, `1.5m` (within a day) or `50tok` (1 to 2³¹), else ValueError."""
    written = text.strip()
    if (tokens := _TOKENS.fullmatch(written)) is not None:
        if not 1 <= int(tokens[1]) <= _MOST_TOKENS:
            raise ValueError(f"a request is cancelled after 1 to {_MOST_TOKENS} tokens")
        return CancelPoint(after_tokens=int(tokens[1]))
    if _CANCEL_TIME.fullmatch(written) is None:
        raise ValueError(f"neither a time nor a whole number of tokens: {_CANCEL_FORM}; units ms, s, m, h")
    after_ns = round(parsing.parse_seconds(written) * SECOND_NS)
    if not 0 < after_ns <= _LONGEST_NS:
        raise ValueError("a request is cancelled after more than 0 s, and within a day")
    return CancelPoint(after_ns=after_ns)


class RequestClass(BaseModel, extra="forbid", frozen=True, defer_build=True):
    """One class of requests: its share of them, and their lengths in tokens."""

    name: Annotated[str, Field(min_length=1, max_length=40)]
    share: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]  # percent of the requests
    input_len: Annotated[int, Field(ge=1, le=parsing.MOST_TOKENS)]
    output_len: Annotated[int, Field(ge=1, le=parsing.MOST_TOKENS)]
    range_ratio: str = "0.0"  # as a profile's

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if _CLASS_NAME.fullmatch(value) is None:
            raise ValueError("a name is of letters, digits and . _ + -")
        return value

    @field_validator("share", mode="before")
    @classmethod
    def _drop_percent_sign(cls, value: Any) -> Any:
        """Drop the % of a share that is written as `30%`; shares are in percent."""
        return value.strip().removesuffix("%") if isinstance(value, str) else value


def parse_class(text: str) -> dict[str, str]:
    """Parse `--class name=long,share=30%,input_len=8000,output_len=200` to a table of texts.

    Raises ValueError for an unknown key, one given twice, and required ones that are missing.
    """
    known = RequestClass.model_fields
    table: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        key = key.replace("-", "_")
        if not equals or key not in known:
            raise ValueError(
                f"{quote_value(part)}{suggest_name(key, known)}: write KEY=VALUE, of {', '.join(known)}"
            )
        if key in table:
            raise ValueError(f"{quote_value(text)}: {key} is given twice")
        table[key] = value
    if missing := [key for key, field in known.items() if field.is_required() and key not in table]:
        raise ValueError(f"{quote_value(text)}: {' and '.join(missing)} missing")
    return table


def _check_classes(classes: tuple[RequestClass, ...]) -> tuple[RequestClass, ...]:
    """Return classes; raises ValueError if a name repeats or their shares do not sum to 100 %."""
    if not classes:
        return classes
    names = [each.name for each in classes]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise ValueError(f"class {twice} is given twice: give each a name of its own")
    shares = sum(each.share for each in classes)
    if abs(shares - 100) > 1e-6:
        raise ValueError(f"the shares of the classes sum to {shares:.10g} %: make them 100 %")
    return classes


def _parse_schedule(text: str) -> "LoadSchedule":
    from loadgen.settings import load_schedule  # numpy, which the parser does without

    return load_schedule.parse_schedule(text)


def _parse_bursts(text: str) -> "Bursts":
    from loadgen.settings import load_schedule

    return load_schedule.parse_bursts(text)


def _parse_warmups(text: str) -> int | str:
    """Parse `wave`, or a number of warm-up requests; raises ArgumentTypeError."""
    if text == "wave":
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{quote_value(text)} is neither a number nor `wave`")
    return integer_between(0, parsing.MOST_REQUESTS)(text)


def _explain_ramp(values: Values) -> str:
    """Explain what is wrong with the rates of a ramp; "" if nothing is, or a rate is missing."""
    strategy, begin, end = (values[key] for key in _RAMP)
    if begin is None or end is None:
        return ""
    if not end > 0:
        return f"--ramp-up-end-rps {end:g}: give a rate above 0"
    for name, rate in (("start", begin), ("end", end)):
        if 0 < rate < parsing.LEAST_RATE_PER_S:
            return f"--ramp-up-{name}-rps {rate:g}: a rate is 0, or from 1e-9 to 1e9 requests per second"
    if begin > end:
        return (
            f"--ramp-up-start-rps {begin:g} is more than --ramp-up-end-rps {end:g}: for a falling rate write "
            f'--schedule "rate {begin:g} to {end:g} over 60s"'
        )
    if strategy == "exponential" and not begin:
        return "--ramp-up-start-rps 0: no exponential ramp begins at 0: give a rate above it, or use linear"
    if values["duration"] is not None and values["num_prompts"] is None:
        return (
            "--ramp-up-strategy goes from the first request to the last: pass --num-prompts, or by time "
            f'--schedule "rate {begin:g} to {end:g} over {values["duration"]:g}s"'
        )
    return ""


def _find_other_duration(values: Values) -> str:
    """Return a schedule's total seconds as text if --duration contradicts them; else ""."""
    all_s, asked_s = _parse_schedule(values["schedule"]).duration_s, values["duration"]
    return "" if asked_s is None or math.isclose(asked_s, all_s) else f"{all_s:g}"


def _has_ramp_ends(values: Values) -> bool:
    return values["ramp_up_start_rps"] is not None and values["ramp_up_end_rps"] is not None


def _answers_whole(values: Values) -> bool:
    return values["stream"] is False


_TWO_LOADS = "{flag} and {other} are two loads: leave out one of them"
_OWN_TIMES = Conflict(
    is_timed,
    "{flag} and a trace's own times are two loads: pass --no-self-timed to send the "
    "trace's requests by {flag}",
)
_LADDER = Conflict(
    "ladder", "{flag} does not apply to a ladder: each of its lengths is measured under one load"
)
_OF_A_RAMP = Requirement(
    "ramp_up_strategy",
    "--ramp-up-start-rps and --ramp-up-end-rps are of a ramp: pass --ramp-up-strategy linear or exponential",
)
_HOW_MANY = "{flag} needs {other} %s or the like: how many are cancelled, and when"

# fmt: off
_shape = partial(Setting, Makes.LOAD, group=SHAPES)
_load = partial(Setting, Makes.LOAD, group=WORKLOAD)


class NameKeys(BaseModel, frozen=True, defer_build=True):
    """The name and description that a profile's file gives itself."""

    name: Annotated[str, Setting(Makes.NOTHING)] = ""
    description: Annotated[str, Setting(Makes.NOTHING)] = ""


class ShapeKeys(BaseModel, frozen=True, defer_build=True):
    """The settings of how the load changes over time."""

    schedule: Annotated[str, AfterValidator(make_check(_parse_schedule)), _shape("stages of the load, as "
        '"rate 2 for 60s, 8 for 60s"; also "rate 2 to 16 over 60s exponentially", "concurrency 1 to 64 '
        'over 120s, 64 for 60s": they are the duration', read=refuse_blank("`rate 2 for 60s, 8 for 120s`"),
        metavar="STAGES", rules=(
            Conflict("ramp_up_strategy", _TWO_LOADS), Conflict("request_rate", _TWO_LOADS), _OWN_TIMES,
            Conflict(_find_other_duration, "--duration {duration:g} and the stages of --schedule, {found} s "
                "in all: leave out one"), _LADDER), common=True)] = ""
    bursts: Annotated[str, AfterValidator(make_check(_parse_bursts)), _shape("requests at once, on top of "
        'the rate or alone, as "50 every 10s"', read=refuse_blank("`50 every 10s`"), metavar="BURSTS",
        rules=(_OWN_TIMES, Conflict(is_stepped, "--bursts goes with a rate, and --schedule has a "
            "concurrency: leave out one of them"), _LADDER))] = ""
    ramp_up_strategy: Annotated[Literal["linear", "exponential"] | None, _shape("course of the rate from "
        "the first request to the last, as in vLLM",
        rules=(
            Requirement(_has_ramp_ends, "--ramp-up-strategy {ramp_up_strategy} needs --ramp-up-start-rps and "
                "--ramp-up-end-rps"),
            Conflict("request_rate", _TWO_LOADS), _OWN_TIMES, Conflict(_explain_ramp, "{found}"),
            Conflict(lambda values: values["bursts"] and _has_ramp_ends(values),
                "--bursts do not go with --ramp-up-strategy, whose rate is by "
                'request: write the ramp by time, as --schedule "rate {ramp_up_start_rps:g} to '
                '{ramp_up_end_rps:g} over 60s"'),
            _LADDER))] = None
    ramp_up_start_rps: Annotated[float | None, Field(ge=0.0, le=parsing.MOST_RATE_PER_S), _shape(
        "requests per second at the first request", metavar="RPS", rules=(_OF_A_RAMP, _LADDER))] = None
    ramp_up_end_rps: Annotated[float | None, Field(ge=0.0, le=parsing.MOST_RATE_PER_S), _shape(
        "requests per second at the last request", metavar="RPS", rules=(_OF_A_RAMP, _LADDER))] = None


class ClassKeys(BaseModel, frozen=True, defer_build=True):
    """The setting that mixes several classes of requests."""

    classes: Annotated[tuple[RequestClass, ...], Field(max_length=100), AfterValidator(_check_classes),
        _shape('class of random requests, as "name=long,share=30%%,input_len=8000,output_len=200" '
        "(repeatable); the report has classes apart and together", flag="--class", action="append",
        read=parse_with(parse_class), metavar="CLASS", rules=(
            Conflict(reads_data, "--class is of random prompts, and the data set has prompts of its own: "
                "leave out one of them"),
            Conflict(lambda values: values["prompt_format"] == "text-vllm-0.9",
                "--class: vLLM 0.9 has no classes: use --prompt-format text-vllm"), _LADDER))] = ()


class CancelKeys(BaseModel, frozen=True, defer_build=True):
    """The settings that limit requests in prefill and cancel some requests on purpose."""

    prefill_concurrency: Annotated[int | None, _load("most requests that wait for their first token",
        read=integer_between(1, parsing.MOST_STREAMS), metavar="N", rank=1,
        rules=(Conflict(_answers_whole, "--prefill-concurrency: a whole response shows no first token: "
            "leave out --disable-stream"),))] = None
    cancel_rate: Annotated[str, BeforeValidator(convert_number),
        AfterValidator(make_check(parse_cancel_rate)),
        _load("share of the requests that are cancelled on purpose, as 10%% or 0.1",
        read=refuse_blank("10% or 0.1"), metavar="N%", rank=1,
        rules=(Requirement("cancel_after", _HOW_MANY % "2s"),))] = ""
    cancel_after: Annotated[str, AfterValidator(make_check(parse_cancel_point)), _load("point at which "
        "requests of --cancel-rate are cancelled: 2s after sending, or after 50tok",
        read=refuse_blank("2s or 50tok"), metavar="TIME|Ntok", rank=1,
        rules=(Requirement("cancel_rate", _HOW_MANY % "10%"),
            Conflict(
                lambda values: _answers_whole(values) and values["cancel_after"].strip().endswith("tok"),
                "--cancel-after {cancel_after}: a whole response has no tokens to count: give a time "
                "instead")))] = ""


class LoadKeys(BaseModel, frozen=True, defer_build=True):
    """The settings of how many requests are sent and how fast."""

    # None: as many as there is time for, or rows in a file
    num_prompts: Annotated[int | None, Field(ge=1, le=parsing.MOST_REQUESTS), _load(
        "number of requests (default 1000); a profile or a file has its own default", metavar="N",
        common=True)] = VLLM_PROMPTS
    max_concurrency: Annotated[int | None, Field(ge=1, le=parsing.MOST_STREAMS), _load(
        "most requests in flight (default: no limit)", metavar="N",
        rules=(Conflict(
            lambda values: is_stepped(values)
            and values["max_concurrency"] != int(_parse_schedule(values["schedule"]).most),
            "--max-concurrency {max_concurrency} and the concurrency of --schedule are two: leave out one of "
            "them"),), common=True)] = None
    request_rate: Annotated[float, Field(allow_inf_nan=True), _load("requests per second (default inf)",
        metavar="RPS",
        rules=(Conflict(is_timed, "--request-rate {request_rate:g} and {data} are two schedules: pass "
            "--speed-up X to change the trace's rate, or --no-self-timed to send its requests at "
            "--request-rate"),), common=True)] = math.inf
    burstiness: Annotated[float, Field(allow_inf_nan=True), _load("evenness of arrivals: 1 Poisson "
        "(default), <1 bursts, >1 even, inf constant", metavar="B")] = 1.0
    exact_rate: Annotated[bool, _load("scale random gaps so that N requests take N / rate seconds, as "
        "vLLM does (default); without it, and with --duration, gaps are sent as drawn")] = True
    duration: Annotated[float | None, Field(ge=0.001, le=parsing.YEAR_S), _load(
        "send for S seconds, instead of a number of prompts", metavar="S", common=True)] = None
    num_warmups: Annotated[Annotated[int, Field(ge=0, le=parsing.MOST_REQUESTS)] | Literal["wave"],
        Setting(Makes.CLIENT, "number of requests before the measured ones; `wave`: --max-concurrency of "
        "them", group=WORKLOAD, rank=2, read=_parse_warmups, metavar="N", common=True)] = 0


@dataclass(frozen=True)
class SeedOptions:
    """The setting of the seed of random numbers."""

    seed: Annotated[int | None, Setting(Makes.LOAD, "seed of the requests (default: random, recorded); it "
        "is printed too", group=WORKLOAD, rank=3,
        read=integer_between(-parsing.MOST_SEED, parsing.MOST_SEED), resumes=True, common=True)] = None
# fmt: on
