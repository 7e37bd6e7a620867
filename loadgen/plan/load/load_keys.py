"""Load keys: the keys of a profile that change its load over time, or make it of several classes."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from pydantic import BaseModel, Field, field_validator

from loadgen.base import bounds
from loadgen.base.arrays import Float64
from loadgen.plan.key_roles import OfLoad
from loadgen.plan.load import bursts, load_schedule
from loadgen.plan.load.bursts import Bursts
from loadgen.plan.load.load_schedule import LoadSchedule

_MOST_CLASSES = 100
_NAME = re.compile(r"[\w.+-]+")
Rate = Annotated[float, Field(ge=0, le=1e9)]
# A profile whose load does not change.
NO_SHAPE = {
    "schedule": "",
    "bursts": "",
    "ramp_up_strategy": None,
    "ramp_up_start_rps": None,
    "ramp_up_end_rps": None,
}


class RampEnds(msgspec.Struct, frozen=True):
    """The rates of vLLM's ramp, in requests per second, and its strategy."""

    begin: float
    end: float
    exponential: bool

    def mean_rate_per_s(self, requests: int) -> float:
        """Requests per second over a ramp of this many, on average."""
        return 1 / float(np.mean(1 / self.rates_per_s(max(requests, 2))[1:]))

    def rates_per_s(self, requests: int, first: int | None = None) -> Float64:
        """The rate at each of `requests`, or at the `first` of them: `_get_current_request_rate` of vLLM."""
        progress = np.arange(requests if first is None else first) / max(requests - 1, 1)
        if self.exponential:
            return np.asarray(self.begin * (self.end / self.begin) ** progress)
        return np.asarray(self.begin + (self.end - self.begin) * progress)


class RequestClass(BaseModel, extra="forbid", frozen=True, defer_build=True):
    """One class of requests: its share of them, and their lengths in tokens."""

    name: Annotated[str, Field(min_length=1, max_length=40)]
    share: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]  # percent of the requests
    input_len: Annotated[int, Field(ge=1, le=bounds.MOST_TOKENS)]
    output_len: Annotated[int, Field(ge=1, le=bounds.MOST_TOKENS)]
    range_ratio: str = "0.0"  # as a profile's

    @field_validator("name")
    @classmethod
    def _word(cls, value: str) -> str:
        if _NAME.fullmatch(value) is None:
            raise ValueError("a name is of letters, digits and . _ + -")
        return value

    @field_validator("share", mode="before")
    @classmethod
    def _percent(cls, value: Any) -> Any:
        """A share may be written 30%."""
        return value.strip().removesuffix("%") if isinstance(value, str) else value


class LoadKeys(BaseModel, frozen=True, defer_build=True):
    """How the load changes over time, and which classes of requests it has."""

    schedule: OfLoad[str] = ""  # stages, as "rate 2 for 60s, 8 for 120s" or "concurrency 1 to 64 over 120s"
    bursts: OfLoad[str] = ""  # as "50 every 10s", on top of the rate
    # vLLM's: the rate from the first request to the last, by their index.
    ramp_up_strategy: OfLoad[Literal["linear", "exponential"] | None] = None
    ramp_up_start_rps: OfLoad[Rate | None] = None
    ramp_up_end_rps: OfLoad[Rate | None] = None
    classes: OfLoad[Annotated[tuple[RequestClass, ...], Field(max_length=_MOST_CLASSES)]] = ()

    @field_validator("schedule")
    @classmethod
    def _parsed(cls, value: str) -> str:
        if value:
            load_schedule.parse(value)
        return value

    @field_validator("bursts")
    @classmethod
    def _periodic(cls, value: str) -> str:
        if value:
            bursts.parse(value)
        return value

    @field_validator("classes")
    @classmethod
    def _whole(cls, value: tuple[RequestClass, ...]) -> tuple[RequestClass, ...]:
        names = [each.name for each in value]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise ValueError(f"class {twice} is given twice: give each a name of its own")
        shares = sum(each.share for each in value)
        if value and abs(shares - 100) > 1e-6:
            raise ValueError(f"the shares of the classes sum to {shares:.10g} %: make them 100 %")
        return value

    @property
    def stages(self) -> LoadSchedule | None:
        """The stages of the schedule; None: there is none."""
        return load_schedule.parse(self.schedule) if self.schedule else None

    @property
    def periodic(self) -> Bursts | None:
        """The bursts; None: there are none."""
        return bursts.parse(self.bursts) if self.bursts else None

    @property
    def ramp(self) -> RampEnds | None:
        """vLLM's ramp; None: there is none, or it lacks an end."""
        begin, end = self.ramp_up_start_rps, self.ramp_up_end_rps
        if self.ramp_up_strategy is None or begin is None or end is None:
            return None
        return RampEnds(begin, end, self.ramp_up_strategy == "exponential")

    @property
    def shaped(self) -> bool:
        """Whether the planned rate, or the limit of a closed loop, changes during the run."""
        return bool(self.schedule or self.bursts or self.ramp_up_strategy)

    @property
    def shape_words(self) -> list[str]:
        """How the load changes over time, in words; empty where it does not."""
        words = [self.schedule] * bool(self.schedule)
        words += [f"bursts of {self.bursts}"] * bool(self.bursts)
        if (ramp := self.ramp) is not None:
            words.append(f"{self.ramp_up_strategy} ramp from {ramp.begin:g} to {ramp.end:g} requests/s")
        return words
