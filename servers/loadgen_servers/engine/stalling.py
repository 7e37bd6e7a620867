"""Stalls on purpose: what a file asks for, the scheduler that does it, and the log of the truth.

{"seed": 1, "skip": 1, "injections": [
  {"kind": "slow_step", "ms": 120, "at_s": [1.5, 3]},
  {"kind": "prefill", "ms": 400, "steps": 4, "requests": [10]},
  {"kind": "preemption", "ms": [50, 200], "per_s": 0.5},
  {"kind": "queue", "ms": 80, "share": 0.05}]}
"""

from __future__ import annotations

import errno
import math
import os
import random
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Self

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from loadgen_servers.engine.scheduler import Scheduler, Sequence, Step, StepOutput
from loadgen_servers.log_file import open_log

Kind = Literal["http", "queue", "prefill", "slow_step", "preemption"]
_MOST_MS = 600_000.0
_Ms = Annotated[float, Field(gt=0, le=_MOST_MS)]
_WHEN = ("at_s", "per_s", "requests", "share")
_OF_REQUESTS: tuple[Kind, ...] = ("http", "queue", "prefill")  # the others are of a step


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


class StallRow(msgspec.Struct, frozen=True):
    """An injected stall, or a step's part of one, in CLOCK_MONOTONIC."""

    kind: str
    from_ns: int
    to_ns: int
    requests: list[int]  # the numbers of those that waited longer for it
    prefilled: int | None = None  # the number of the one whose prefill it was


class RequestRow(msgspec.Struct, frozen=True):
    """One request: when it came, was queued and scheduled, and when each of its tokens left."""

    number: int  # in order of arrival, from 0
    request_id: str  # its x-request-id; "" without one
    received_ns: int
    queued_ns: int
    scheduled_ns: int
    wrote_ns: list[int]  # right before the step's tokens were written
    kind: str = "request"


def open_truth_log(path: Path) -> Callable[[StallRow | RequestRow], None]:
    """Open a new log, its owner's alone, and return what appends a row to it; raises OSError."""
    fd = open_log(path)

    def append(row: StallRow | RequestRow) -> None:
        os.write(fd, msgspec.json.encode(row) + b"\n")  # at once: a server that is killed has logged all

    return append


class Known(msgspec.Struct):
    """What the log will have of a request."""

    number: int
    wrote_ns: list[int] = msgspec.field(default_factory=list)


class LongPrefill(msgspec.Struct):
    """A prefill that is made longer: by how much for all of its tokens, and how it is divided."""

    longer_ns: int
    steps: int
    tokens: int = 0  # to compute in all; 0 before its first step

    def most(self, left: int) -> int:
        """How many of the tokens that are left one step computes."""
        self.tokens = self.tokens or left
        return math.ceil(self.tokens / self.steps)


@dataclass
class StallingScheduler(Scheduler):
    """Schedules as it would, but holds requests back, lengthens steps and preempts as `draws` say.

    A request that is held before the queue (`http`), in it (`queue`) or after a preemption is in `held`
    until its time; others overtake it. A stall of a step comes with the first that decodes once it is due.
    """

    draws: Several[Draws] = ()
    skip: int = 0
    log: Callable[[StallRow | RequestRow], None] = lambda row: None
    held: dict[Sequence, int] = field(default_factory=dict)  # until when
    known: dict[Sequence, Known] = field(default_factory=dict)
    _arrived: int = 0
    _zero_ns: int | None = None  # the arrival of the first request that counts
    _long: dict[Sequence, LongPrefill] = field(default_factory=dict)
    _evicted: dict[Sequence, int] = field(default_factory=dict)  # since when, those that wait
    _owed: list[tuple[Draws, Sequence | None]] = field(default_factory=list)  # stalls of steps that are due

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, or hold it back for as long as is due to it."""
        self.known[sequence] = Known(self._arrived)
        number = self._arrived - self.skip
        self._arrived += 1
        if number >= 0:
            if self._zero_ns is None:
                self._zero_ns = sequence.arrived_ns
            self._stall(sequence, number, (sequence.arrived_ns - self._zero_ns) / 1e9)
        if sequence not in self.held:
            super().add(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Take a sequence out wherever it is."""
        self._forget(sequence)
        if self.held.pop(sequence, None) is None:
            super().abort(sequence)

    def wakes_ns(self) -> int | None:
        """When the first of those that are held may go on."""
        return min(self.held.values(), default=None)

    def begin(self, now_ns: int) -> Step | None:
        """The next step, with the stalls that are due."""
        for sequence in sorted(self.held, key=self.held.__getitem__):
            if self.held[sequence] <= now_ns:
                del self.held[sequence]
                self.waiting.append(sequence)
        slow = self._take_due(now_ns)
        step = super().begin(now_ns)
        self.queued += sum(sequence.queued_ns <= now_ns for sequence in self.held)
        if step is not None:
            self._lengthen_prefill(step)
            for draws in slow:
                self._extend(step, "slow_step", draws.draw_ns())
        return step

    def end(self, step: Step, now_ns: int) -> StepOutput:
        """Account for a step that is over, and log the requests that it finished."""
        ended = super().end(step, now_ns)
        for sequence in (*ended.decoded, *ended.first, *ended.finished):
            self.known[sequence].wrote_ns.append(now_ns)
        for sequence in ended.finished:
            known = self.known[sequence]
            times = (sequence.arrived_ns, sequence.queued_ns, sequence.scheduled_ns)
            self.log(RequestRow(known.number, sequence.request_id, *times, known.wrote_ns))
            self._forget(sequence)
        return ended

    def _stall(self, sequence: Sequence, number: int, now_s: float) -> None:
        """Hold a request back, or mark it, where something is due to it."""
        for draws in self.draws:
            kind = draws.injection.kind
            if kind not in _OF_REQUESTS:
                if draws.chooses(number):
                    self._owed.append((draws, sequence))
                continue
            if not (draws.chooses(number) or draws.is_due(now_s)):
                continue
            longer_ns = draws.draw_ns()
            if kind == "prefill":
                self._long[sequence] = LongPrefill(longer_ns, draws.injection.steps)
                continue
            from_ns = self.held.get(sequence, sequence.arrived_ns)
            self.held[sequence] = from_ns + longer_ns
            if kind == "http":
                sequence.queued_ns = from_ns + longer_ns
            self._note(kind, from_ns, from_ns + longer_ns, [sequence])

    def _take_due(self, now_ns: int) -> list[Draws]:
        """Take the slow steps that are due, and preempt where that is: one stall of each injection at most.

        What is due waits until something decodes, or the request that it is due to.
        """
        if self._zero_ns is None:
            return []
        now_s = (now_ns - self._zero_ns) / 1e9
        for draws in self.draws:
            if draws.injection.kind not in _OF_REQUESTS and draws.is_due(now_s):
                self._owed.append((draws, None))
        slow: list[Draws] = []
        owed: list[tuple[Draws, Sequence | None]] = []
        for draws, sequence in self._owed:
            if sequence is not None and sequence not in self.known:
                continue  # over before it had its first token
            if not self.decoding or not (sequence is None or sequence in self.decoding):
                owed.append((draws, sequence))
            elif draws.injection.kind == "slow_step":
                slow.append(draws)
            else:
                self._hold_back(draws, sequence or draws.drawn.choice(list(self.decoding)), now_ns)
        self._owed = owed
        return slow

    def _hold_back(self, draws: Draws, sequence: Sequence, now_ns: int) -> None:
        due = self._due[sequence.first_step + (len(sequence.steps.ends) or sequence.output_tokens) - 1]
        due.remove(sequence)  # of one that runs alone no step passes meanwhile: it would be due twice
        self._evict(sequence, now_ns)
        self._evicted[sequence] = now_ns
        self.held[sequence] = now_ns + draws.draw_ns()

    def _admit(self, sequence: Sequence, now_ns: int) -> bool:
        if not super()._admit(sequence, now_ns):
            return False
        if (from_ns := self._evicted.pop(sequence, None)) is not None:
            self._note("preemption", from_ns, now_ns, [sequence])
        return True

    def _chunk(self, sequence: Sequence, budget: int, chunks: list[tuple[Sequence, int]]) -> int:
        long = self._long.get(sequence)
        if long is None:
            return super()._chunk(sequence, budget, chunks)
        most = min(budget, long.most(sequence.prefill_tokens - sequence.computed))
        return budget - most + super()._chunk(sequence, most, chunks)

    def _lengthen_prefill(self, step: Step) -> None:
        for sequence, tokens in step.chunks:
            if (long := self._long.get(sequence)) is None:
                continue
            longer_ns = round(long.longer_ns * tokens / long.tokens)
            self._extend(step, "prefill", longer_ns, sequence)
            if sequence.computed + tokens == sequence.prefill_tokens:
                del self._long[sequence]

    def _extend(self, step: Step, kind: Kind, longer_ns: int, prefilled: Sequence | None = None) -> None:
        self._note(kind, step.end_ns, step.end_ns + longer_ns, [*self.decoding, *self.prefilling], prefilled)
        step.end_ns += longer_ns

    def _note(
        self,
        kind: Kind,
        from_ns: int,
        to_ns: int,
        waiting: Several[Sequence],
        prefilled: Sequence | None = None,
    ) -> None:
        numbers = [self.known[sequence].number for sequence in waiting]
        whose = None if prefilled is None else self.known[prefilled].number
        self.log(StallRow(kind, from_ns, to_ns, numbers, whose))

    def _forget(self, sequence: Sequence) -> None:
        for kept in (self.known, self._long, self._evicted):
            kept.pop(sequence, None)
