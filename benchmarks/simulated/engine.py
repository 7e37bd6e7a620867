"""Engine: runs of the embedded engine's own scheduler in virtual time, as the records a client would have."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loadgen.figures.objectives import Objective, judge_objectives
from loadgen.figures.per_request import MetricOptions, PerRequest
from loadgen.records.record import Record, Records
from loadgen.study.series.limit.search import NextRun, Trial
from loadgen_servers.engine.scheduler import Limits, Scheduler, Sequence
from loadgen_servers.engine.step_times import Timing

_TURNAROUND_NS = 1_000_000  # a client and its front end between an answer's end and the next request
_JITTER = 0.02  # of the turnaround's mean: no two runs are the same
_P99 = 0.99


@dataclass(frozen=True)
class Engine:
    """A machine, and the lengths of all requests in tokens; a run's output lengths vary by a share."""

    limits: Limits
    timing: Timing
    prompt: int
    output: int
    vary: float = 0.0

    def lengths(self, random: np.random.Generator) -> Iterator[tuple[int, int]]:
        """Prompt and output tokens of one request after the other."""
        least, most = round(self.output * (1 - self.vary)), round(self.output * (1 + self.vary))
        while True:
            yield self.prompt, int(random.integers(max(least, 1), most, endpoint=True))

    def in_flight(self, streams: int, duration_s: float, random: np.random.Generator) -> list[Sequence]:
        """N requests at a time, until no more are sent; all, in the order of sending."""
        scheduler, lengths = Scheduler(self.limits, self.timing), self.lengths(random)
        free_ns, now_ns, sent = [0] * streams, 0, []
        end_ns = round(1e9 * duration_s)
        while True:
            while free_ns and free_ns[0] <= now_ns:
                at_ns = heapq.heappop(free_ns)
                if at_ns < end_ns:
                    prompt, output = next(lengths)
                    sent.append(Sequence(prompt, output, prompt + output, at_ns))
                    scheduler.add(sent[-1])
            if (step := scheduler.begin(now_ns)) is None:
                if not free_ns:
                    return sent
                now_ns = free_ns[0]
                continue
            now_ns = step.end_ns
            for _ in scheduler.end(step, now_ns).finished:
                pause_ns = _TURNAROUND_NS * (1 + _JITTER * random.standard_normal())
                heapq.heappush(free_ns, now_ns + max(round(pause_ns), 0))


def trial(run: NextRun, sent: list[Sequence], objectives: tuple[Objective, ...]) -> Trial:
    """What a run showed, by the same way as that of a real one: records, then what they show."""
    records = Records.from_records(_record(index, sequence) for index, sequence in enumerate(sent))
    ask = MetricOptions()
    e2el_ns = PerRequest.from_records(records, ask).e2el_ns
    took_s = max(sequence.last_ns for sequence in sent) / 1e9
    return Trial(
        load=run.load,
        duration_s=took_s,
        took_s=took_s,
        objectives=judge_objectives(records, objectives, ask),
        p99_e2el_s=float(np.quantile(e2el_ns, _P99)) / 1e9,
        requests_per_s=len(sent) / took_s,
    )


def _record(index: int, sequence: Sequence) -> Record:
    """A request as a client next to the engine has it: each token a message, those between spread evenly."""
    arrival_ns = np.linspace(sequence.first_ns, sequence.last_ns, sequence.output_tokens).astype(np.int64)
    return Record(
        index=index,
        slot=0,
        intended_ns=sequence.arrived_ns,
        sent_ns=sequence.arrived_ns,
        end_ns=sequence.last_ns,
        first_byte_ns=sequence.first_ns,
        arrival_ns=arrival_ns,
        tokens=np.ones(sequence.output_tokens, np.int64),
        planned_input=sequence.prompt_tokens,
        planned_output=sequence.output_tokens,
        input_tokens=sequence.prompt_tokens,
        output_tokens=sequence.output_tokens,
        http_status=200,
        usage=True,
    )
