"""Load: the settings of how many requests there are and when, how that changes, and which are given up."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from loadgen.base import bounds
from loadgen.base.bounds import integer_between
from loadgen.base.parsing import parse_with, refuse_blank
from loadgen.base.text import quote_value
from loadgen.settings.setting import (
    NO_KEYWORD,
    SHAPES,
    WORKLOAD,
    Identity,
    KeyRows,
    Makes,
    OptionRows,
    setting,
)

if TYPE_CHECKING:
    from loadgen.settings.request_class import RequestClass

VLLM_PROMPTS = 1000  # requests of `vllm bench serve` without a flag
_RAMP = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
_USERS = ("users", "user_rate")
_RATES: dict[str, Any] = {"read": float, "least": 0.0, "most": 1e9, "metavar": "RPS"}


def _class(text: str) -> dict[str, str]:
    from loadgen.settings import request_class  # pydantic, which the parser does without

    return request_class.parse_class(text)


def _classes(value: tuple[RequestClass, ...]) -> tuple[RequestClass, ...]:
    from loadgen.settings import request_class

    return request_class.check_classes(value)


def _text_for(module: str, function: str) -> Callable[[str], str]:
    """A check of a text that is not empty, by a module with numpy, which the parser does without."""

    def check_text(text: str) -> str:
        if text:
            getattr(import_module(f"loadgen.settings.{module}"), function)(text)
        return text

    return check_text


def _write_number(value: Any) -> Any:
    """TOML and Python may give the share as a number."""
    return str(value) if type(value) in (int, float) else value


def _warmups(text: str) -> int | str:
    if text == "wave":
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{quote_value(text)} is neither a number nor `wave`")
    return integer_between(0, bounds.MOST_REQUESTS)(text)


# fmt: off
_shape = partial(setting, Makes.LOAD, group=SHAPES)
_load = partial(setting, Makes.LOAD, group=WORKLOAD)


class NameKeys(KeyRows, frozen=True):
    """What a profile's file says of itself."""

    name: str = setting(Makes.NOTHING, "", keyword=NO_KEYWORD, swept=False)
    description: str = setting(Makes.NOTHING, "", keyword=NO_KEYWORD, swept=False)


class ShapeKeys(KeyRows, frozen=True):
    """How the load changes over time."""

    schedule: str = _shape("", '"rate 2 for 60s, 8 for 120s", "rate 2 to 16 over 60s exponentially", '
        '"concurrency 1 to 64 over 120s, 64 for 60s": the stages are the duration',
        read=refuse_blank("`rate 2 for 60s, 8 for 120s`"), metavar="STAGES",
        check=_text_for("load_schedule", "parse_schedule"), arrivals=True, swept=False,
        replaces=("duration", "num_prompts", "request_rate", *_RAMP, *_USERS))
    bursts: str = _shape("", '"50 every 10s": at once, on top of the rate, or alone',
        read=refuse_blank("`50 every 10s`"), metavar="BURSTS",
        check=_text_for("load_schedule", "parse_bursts"),
        arrivals=True, replaces=_USERS)
    ramp_up_strategy: Literal["linear", "exponential"] | None = _shape(
        None, "the rate from the first request to the last, as in vLLM", choices=("linear", "exponential"),
        arrivals=True, replaces=("schedule", "request_rate", "duration", *_USERS))
    ramp_up_start_rps: float | None = _shape(None, "rate at the first request", **_RATES)
    ramp_up_end_rps: float | None = _shape(None, "rate at the last request", **_RATES)


class ClassKeys(KeyRows, frozen=True):
    """Which classes of requests there are."""

    classes: tuple[RequestClass, ...] = _shape(
        (), '"name=long,share=30%%,input_len=8000,output_len=200", once for each class of random requests; '
        "the report has them apart and together", flag="--class", action="append", read=parse_with(_class),
        metavar="CLASS", check=_classes,
        keyword="list[dict[str, Any]]", swept=False)  # name, share, input_len, output_len, range_ratio


class CancelKeys(KeyRows, frozen=True):
    """A cap on requests in prefill, and requests that are cancelled as planned."""

    prefill_concurrency: int | None = _load(None, "at most N requests waiting for their first token",
        read=integer_between(1, bounds.MOST_STREAMS), metavar="N", rank=1)
    cancel_rate: str = _load("", "of the requests that are cancelled on purpose, as 10%% or 0.1",
        read=refuse_blank("10% or 0.1"), metavar="N%", rank=1, convert=_write_number,
        check=_text_for("cancel_point", "parse_rate"), keyword="str | float")
    cancel_after: str = _load("", "when: 2s after sending, or after 50tok",
        read=refuse_blank("2s or 50tok"), metavar="TIME|Ntok", rank=1,
        check=_text_for("cancel_point", "parse_point"))


class LoadKeys(KeyRows, frozen=True):
    """How many requests there are, and how fast they are sent."""

    # None: as many as there is time for, or rows in a file
    num_prompts: int | None = _load(VLLM_PROMPTS,
        "requests in all (default: the profile's or the file's, else 1000)", read=int, metavar="N",
        least=1, most=bounds.MOST_REQUESTS, keyword="int | None", compared=Identity.AS_PLANNED,
        replaces=("num_sessions",))
    max_concurrency: int | None = _load(None, "most requests in flight (default: no limit)", read=int,
        metavar="N", least=1, most=bounds.MOST_STREAMS, keyword="int | None", compared=Identity.AS_PLANNED,
        replaces=_USERS)
    request_rate: float = _load(math.inf, "requests per second (default inf)", read=float, metavar="RPS",
        infinite=True, compared=Identity.AS_PLANNED, arrivals=True, replaces=("schedule", *_RAMP, *_USERS))
    burstiness: float = _load(1.0, "1 Poisson (default), <1 bursts, >1 even, inf constant", read=float,
        metavar="B", infinite=True, compared=Identity.AS_SPREAD)
    duration: float | None = _load(None, "send for S seconds, instead of a number of prompts", read=float,
        metavar="S", least=0.001, most=bounds.YEAR_S, keyword="float | None", compared=Identity.AS_PLANNED,
        replaces=("num_prompts", "num_sessions"))
    num_warmups: int | Literal["wave"] = setting(Makes.CLIENT, 0,
        "requests before the measured ones, or `wave`", group=WORKLOAD, rank=2, read=_warmups, metavar="N",
        least=0, most=bounds.MOST_REQUESTS)


class SeedOptions(OptionRows, frozen=True):
    """What random numbers are drawn from."""

    seed: int | None = setting(Makes.LOAD, None, "default: random, printed and recorded", group=WORKLOAD,
        rank=3, read=integer_between(-bounds.MOST_SEED, bounds.MOST_SEED), resumes=True,
        campaign="applies to the whole campaign: write it above the tables")
# fmt: on

# A profile whose load does not change.
NO_SHAPE: dict[str, Any] = {row.name: row.default for row in ShapeKeys.rows}
