"""Serving: an open loop on the embedded engine's scheduler in virtual time, of engines drawn at random."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from loadgen.base.arrays import Int64
from loadgen_servers.engine.scheduler import Limits, Scheduler, Sequence
from loadgen_servers.engine.step_times import FittedTiming

_KV_TOKENS = 1 << 22  # never the limit
_WAVES = 4  # of the widest batch, of which the two in the middle give the capacity
_LEAST = 64  # requests that give it
_WIDEST = 128
_LONGEST_S = 5.0  # of a request in a full batch


@dataclass(frozen=True)
class DrawnEngine:
    """An engine: how many requests it decodes at once, its step's time, and the lengths it is sent."""

    wide: int
    scale: float  # of every time
    prompts: tuple[int, int]  # tokens, the range
    outputs: tuple[int, int]

    @classmethod
    def of(cls, rate_per_s: float, random: np.random.Generator) -> DrawnEngine:
        """One that can do this many requests per second, each in at most 5 s."""
        widest = max(min(_WIDEST, rate_per_s * _LONGEST_S), 2)
        wide = round(float(np.exp(random.uniform(0, np.log(widest)))))
        even = random.random() < 0.3
        prompt, output = int(random.integers(32, 1500)), int(random.integers(4, 48))
        prompts = (prompt, prompt if even else 3 * prompt)
        outputs = (output, output if even else 3 * output)
        unit = cls(wide, 1.0, prompts, outputs)
        return cls(wide, unit._capacity_per_s(random) / rate_per_s, prompts, outputs)

    def served(
        self, sent_ns: Int64, random: np.random.Generator, until_ns: float = math.inf
    ) -> list[Sequence]:
        """The requests sent at these times, ascending, in the order of their ends: those that end in time."""
        lengths = [random.integers(low, high + 1, len(sent_ns)) for low, high in (self.prompts, self.outputs)]
        sequences = [
            Sequence(prompt, output, prompt + output, at_ns)
            for prompt, output, at_ns in zip(
                *(values.tolist() for values in (*lengths, sent_ns)), strict=True
            )
        ]
        return _run(self._scheduler(), sequences, until_ns)

    def _scheduler(self) -> Scheduler:
        timing = FittedTiming(10 * self.scale, 10 * self.scale, 20 * self.scale, 100 * self.scale)
        return Scheduler(Limits(self.wide, 2048, _KV_TOKENS), timing)

    def _capacity_per_s(self, random: np.random.Generator) -> float:
        count = max(_WAVES * self.wide, _LEAST)
        ended = self.served(np.zeros(count, np.int64), random)
        begin, end = count // 4, 3 * count // 4
        return (end - begin) * 1e9 / (ended[end].last_ns - ended[begin].last_ns)


def _run(scheduler: Scheduler, sequences: list[Sequence], until_ns: float) -> list[Sequence]:
    ended: list[Sequence] = []
    now_ns = arrived = 0
    while len(ended) < len(sequences) and now_ns < until_ns:
        while arrived < len(sequences) and sequences[arrived].arrived_ns <= now_ns:
            scheduler.add(sequences[arrived])
            arrived += 1
        step = scheduler.begin(now_ns)
        if step is None:
            now_ns = sequences[arrived].arrived_ns
            continue
        now_ns = step.end_ns
        ended += scheduler.end(step, now_ns).finished
    return ended
