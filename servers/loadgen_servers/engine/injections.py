"""Injections: the stalls that a file asks the engine to make on purpose, and when each of them is due.

{"seed": 1, "skip": 1, "injections": [
  {"kind": "slow_step", "ms": 120, "at_s": [1.5, 3]},
  {"kind": "prefill", "ms": 400, "steps": 4, "requests": [10]},
  {"kind": "preemption", "ms": [50, 200], "per_s": 0.5},
  {"kind": "queue", "ms": 80, "share": 0.05}]}
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Kind = Literal["http", "queue", "prefill", "slow_step", "preemption"]
_MOST_MS = 600_000.0
_Ms = Annotated[float, Field(gt=0, le=_MOST_MS)]
_WHEN = ("at_s", "per_s", "requests", "share")


class Injection(BaseModel):
    """Stalls of one kind: how long each is, and when they come. Requests are counted from 0, after `skip`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    ms: _Ms | tuple[_Ms, _Ms]  # of two, each is drawn evenly between them
    steps: Annotated[int, Field(ge=1)] = 1  # over which a prefill is divided
    at_s: tuple[Annotated[float, Field(ge=0)], ...] = ()  # seconds after the first request that counts
    per_s: Annotated[float, Field(ge=0, le=1000)] = 0.0  # at random times, so many a second
    requests: tuple[Annotated[int, Field(ge=0)], ...] = ()  # of these requests
    share: Annotated[float, Field(ge=0, le=1)] = 0.0  # of requests drawn at random

    @model_validator(mode="after")
    def check(self) -> Self:
        """Refuse what says in two ways when the stalls come, or in none."""
        if sum(bool(getattr(self, name)) for name in _WHEN) != 1:
            raise ValueError(f"give one of {', '.join(_WHEN)}")
        if self.steps != 1 and self.kind != "prefill":
            raise ValueError("only a prefill has steps")
        if isinstance(self.ms, tuple) and self.ms[0] > self.ms[1]:
            raise ValueError("ms: the first of two is the lower one")
        return self


_MOST_BYTES = 16 << 20  # of a file of injections


class InjectionFile(BaseModel):
    """All that a file asks for; the same seed draws the same stalls."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = 0
    skip: Annotated[int, Field(ge=0)] = 0  # requests before the first that counts, as a client's warm-up
    injections: tuple[Injection, ...]


def read_injections(path: Path) -> InjectionFile:
    """Read a file of injections; raises ValueError for what cannot be read or is not one."""
    try:
        if not path.is_file():  # a pipe or a device may never end
            raise OSError(
                errno.EINVAL, "it is not a regular file" if path.exists() else os.strerror(errno.ENOENT)
            )
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise OSError(errno.EFBIG, f"it is larger than {_MOST_BYTES >> 20} MiB")
        return InjectionFile.model_validate_json(raw)
    except OSError as error:
        raise ValueError(f"--inject {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"--inject {path}: {place}: {first['msg']}".replace(": : ", ": ")) from None


@dataclass
class Draws:
    """When the stalls of one injection are due, and how long each one is."""

    injection: Injection
    drawn: random.Random
    _times_s: Iterator[float] = field(init=False)
    _next_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._times_s = self._list_times()
        self._next_s = next(self._times_s)

    def _list_times(self) -> Iterator[float]:
        yield from sorted(self.injection.at_s)
        at_s = 0.0
        while self.injection.per_s:
            at_s += self.drawn.expovariate(self.injection.per_s)
            yield at_s
        yield float("inf")

    def is_due(self, now_s: float) -> bool:
        """Whether one is due by now; each time counts once."""
        if now_s < self._next_s:
            return False
        self._next_s = next(self._times_s)
        return True

    def chooses(self, number: int) -> bool:
        """Whether the request with this number is one of those to be stalled."""
        injection = self.injection
        return number in injection.requests or (injection.share > 0 and self.drawn.random() < injection.share)

    def draw_ns(self) -> int:
        """Draw how long the next stall is."""
        ms = self.injection.ms
        return round(1e6 * (self.drawn.uniform(*ms) if isinstance(ms, tuple) else ms))


def make_draws(asked: InjectionFile) -> list[Draws]:
    """The draws of each injection: what one draws does not depend on the others."""
    return [Draws(one, random.Random(f"{asked.seed}/{at}")) for at, one in enumerate(asked.injections)]
