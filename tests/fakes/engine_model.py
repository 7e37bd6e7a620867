"""An engine in virtual time whose every step is known: what each gap and each first token waited for."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from builders import made_runs
from loadgen.features.attribution.attribution import ROWS, PartRows
from loadgen.records.record import PATH, REORDERING, RETRANSMISSION, UNKNOWN, Record, Records
from loadgen.report.run_directory import Result
from loadgen.server.server_counters import ServerSample, ServerWindow

MS = 1_000_000
SECOND = 1_000_000_000
BEGAN_NS = 10**12
_NEVER_NS = 1 << 62


@dataclass
class Stream:
    """A request in the engine."""

    index: int
    slot: int
    sent_ns: int
    queued_ns: int  # after the way there, and HTTP
    ready_ns: int  # until when it is held in the queue
    prompt: int
    output: int
    computed: int = 0  # tokens of the prompt
    scheduled_ns: int = 0
    since_ns: int = 0  # since when it has been held back after a preemption
    held_until_ns: int = 0
    times_ns: list[int] = field(default_factory=list)
    waited: dict[str, int] = field(default_factory=dict)  # for what, since the last token
    truth: list[dict[str, int]] = field(default_factory=list)  # of each message


@dataclass
class EngineModel:
    """Continuous batching with chunked prefill, a closed loop before it, and stalls that are known."""

    seed: int
    slots: int = 8
    requests: int = 60
    output: int = 80
    step_ns: int = 20 * MS
    jitter: float = 0.03  # of a step: standard deviation of its logarithm
    spread_ns: int = 20_000  # from one stream's message to the next in a burst
    path_ns: int = 200_000  # there, and as long back
    prompt: int = 100
    long_prompts: dict[int, int] = field(default_factory=dict)  # request → tokens
    chunk: int = 2048
    prefill_ns_per_token: int = 30_000
    slow_steps: dict[int, int] = field(default_factory=dict)  # step → how much longer (ns)
    preempted: dict[int, int] = field(default_factory=dict)  # step → for how long one is held back (ns)
    queued: dict[int, int] = field(default_factory=dict)  # request → how long (ns)
    http: dict[int, int] = field(default_factory=dict)
    lost: dict[tuple[int, int], int] = field(default_factory=dict)  # (request, message) → delay (ns)
    cause: int = RETRANSMISSION  # of these delays
    burst: int = 1  # messages that a stream gets of a step, 50 µs apart
    rate: float = 0.0  # requests a second at random times, whoever else is there; 0: a closed loop
    apart: bool = False  # prompts are computed elsewhere: a first token comes with the first step that ends
    server_times: bool = False
    sampled: bool = True
    segments: bool = True

    def run(self) -> tuple[Result, list[list[dict[str, int]]]]:
        """Run to the end; return the run, and for each message of each request what it waited for."""
        course = Course(self)
        sent_ns = [BEGAN_NS - self.path_ns + slot * 100_000 for slot in range(self.slots)]
        if self.rate:
            gaps_ns = SECOND * course.draw.exponential(1 / self.rate, self.requests)
            sent_ns = (BEGAN_NS + np.cumsum(gaps_ns)).astype(np.int64).tolist()
        for slot, at_ns in enumerate(sent_ns):
            course.send(slot, at_ns)
        while course.waiting or course.running:
            course.make_step()
        done = sorted(course.done, key=lambda one: one.index)
        return self._make_run(done, course.preemptions), [one.truth for one in done]

    def _make_run(self, done: list[Stream], preemptions: list[int]) -> Result:
        records = []
        for one in done:
            delays = np.zeros(one.output, np.int64)
            for (request, message), delay_ns in self.lost.items():
                if request == one.index and message < one.output:
                    delays[message] = delay_ns
                    one.truth[message] = {**one.truth[message], CAUSE_KEYS[self.cause]: delay_ns}
            due_ns = np.array(one.times_ns) + self.path_ns
            arrival_ns = np.maximum.accumulate(due_ns + delays)  # in order: what follows waits for it
            held_ns = arrival_ns - due_ns
            records.append(
                Record(
                    one.index, one.slot, one.sent_ns - 50_000, one.sent_ns, int(arrival_ns[-1]),
                    arrival_ns=arrival_ns,
                    tokens=np.ones(one.output, np.int64),
                    delay_us=(held_ns // 1000).astype(np.int32) if self.segments else np.zeros(0, np.int32),
                    delay_cause=(np.where(held_ns > 0, self.cause, 0)).astype(np.int8)
                    if self.segments else np.zeros(0, np.int8),
                    first_byte_ns=int(arrival_ns[0]), planned_input=one.prompt, planned_output=one.output,
                    input_tokens=one.prompt, output_tokens=one.output, usage=True, reads=one.output + 1,
                    unstamped_reads=1, rtt_ns=2 * self.path_ns,
                    server_queue_ns=one.scheduled_ns - one.queued_ns if self.server_times else UNKNOWN,
                    server_prefill_ns=one.times_ns[0] - one.scheduled_ns if self.server_times else UNKNOWN,
                )
            )  # fmt: skip
        end_ns = max(record.end_ns for record in records)
        samples = [
            ServerSample(at_s=at_s, preemptions=sum(each <= BEGAN_NS + at_s * SECOND for each in preemptions))
            for at_s in np.arange(0.5, (end_ns - BEGAN_NS) / SECOND + 1, 1.0).tolist()
        ]
        window = ServerWindow(names="vllm", samples=tuple(samples) if self.sampled else ())
        facts = made_runs.run(window=window, requests=24).facts
        return Result(facts, Records.from_records(records))


@dataclass
class Course:
    """How a model's run goes, step by step."""

    model: EngineModel
    now_ns: int = BEGAN_NS
    step: int = 0
    sent: int = 0
    waiting: list[Stream] = field(default_factory=list)
    running: list[Stream] = field(default_factory=list)
    done: list[Stream] = field(default_factory=list)
    preemptions: list[int] = field(default_factory=list)
    next_ns: int = _NEVER_NS  # when the first of those that wait is ready

    def __post_init__(self) -> None:
        self.draw = np.random.default_rng(self.model.seed)

    def send(self, slot: int, at_ns: int) -> None:
        """Send the next request over a slot, if there is one."""
        model, index = self.model, self.sent
        if index < model.requests:
            output = int(model.output * self.draw.uniform(0.5, 1.5)) + 2
            prompt = model.long_prompts.get(index, model.prompt)
            arrives_ns = at_ns + model.path_ns + model.http.get(index, 0)
            ready_ns = arrives_ns + model.queued.get(index, 0)
            self.waiting.append(Stream(index, slot, at_ns, arrives_ns, ready_ns, prompt, output))
            self.next_ns = min(self.next_ns, ready_ns)
            self.sent += 1

    def make_step(self) -> None:
        """Make one step of what is ready, or go on to when something is."""
        self._take_ready()
        active = [one for one in self.running if one.held_until_ns <= self.now_ns]
        if not active:
            ahead = [one.ready_ns for one in self.waiting]
            self.now_ns = min([*ahead, *(one.held_until_ns for one in self.running)])
            return
        decoding = self._choose_decoding(active)
        firsts, prefill_ns = ([], 0) if self.model.apart else self._compute_prompts(active)
        base_ns = int(self.model.step_ns * np.exp(self.model.jitter * self.draw.standard_normal()))
        slow_ns = self.model.slow_steps.get(self.step, 0) if decoding else 0
        parts = {"decode_step": base_ns, "others_prefill": prefill_ns, "slow_step": slow_ns}
        for one in decoding:
            one.waited = {**parts, "preemption": self.now_ns - one.since_ns} if one.since_ns else parts
            one.since_ns = 0
        self.now_ns += base_ns + prefill_ns + slow_ns
        self.step += 1
        if self.model.apart:
            firsts = self._take_ready()
        self._write([*decoding, *firsts])

    def _take_ready(self) -> list[Stream]:
        """Schedule the requests that are ready by now, and return them."""
        if self.now_ns < self.next_ns:
            return []
        ready = [one for one in self.waiting if one.ready_ns <= self.now_ns]
        for one in ready:
            self.waiting.remove(one)
            one.scheduled_ns = self.now_ns
            one.computed = one.prompt if self.model.apart else 0
            self.running.append(one)
        self.next_ns = min((one.ready_ns for one in self.waiting), default=_NEVER_NS)
        return ready

    def _choose_decoding(self, active: list[Stream]) -> list[Stream]:
        """Choose the streams that get a token, after one was preempted if that is due."""
        decoding = [one for one in active if one.computed >= one.prompt]
        if self.step in self.model.preempted and len(decoding) > 1:
            victim = decoding.pop(int(self.draw.integers(len(decoding))))
            victim.since_ns, victim.held_until_ns = self.now_ns, self.now_ns + self.model.preempted[self.step]
            self.preemptions.append(self.now_ns)
        return decoding

    def _compute_prompts(self, active: list[Stream]) -> tuple[list[Stream], int]:
        """Compute a chunk of prompts; return the streams whose prompt is done, and the time that it takes."""
        budget, firsts = self.model.chunk, []
        for one in active:
            tokens = min(one.prompt - one.computed, budget)
            budget -= tokens
            one.computed += tokens
            if tokens and one.computed == one.prompt:
                firsts.append(one)
        return firsts, (self.model.chunk - budget) * self.model.prefill_ns_per_token

    def _write(self, streams: list[Stream]) -> None:
        """Write a token of each stream, one after another; a slot whose answer is over sends its next."""
        for place, one in enumerate(streams):
            for more in range(min(self.model.burst, one.output - len(one.times_ns))):
                at_ns = self.now_ns + place * self.model.spread_ns + more * 50_000
                one.times_ns.append(at_ns)
                one.truth.append(one.waited)
                one.waited = {}
            if len(one.times_ns) == one.output:
                self.running.remove(one)
                self.done.append(one)
                if not self.model.rate:
                    self.send(one.slot, at_ns + 2 * self.model.path_ns + 300_000)


CAUSE_KEYS = {PATH: "path_delay", REORDERING: "reordering", RETRANSMISSION: "retransmission"}
NAMED = (
    "others_prefill",
    "slow_step",
    "preemption",
    "retransmission",
    "path_delay",
    "reordering",
    "read_lag",
)


def score(rows: PartRows, truth: list[list[dict[str, int]]]) -> tuple[int, int, int]:
    """Return the injected time of these gaps, that found in the right part, and that in a wrong one (ns)."""
    injected = right = wrong = 0
    for at, (request, message) in enumerate(zip(rows.request.tolist(), rows.message.tolist(), strict=True)):
        known = truth[request][message]
        for key in NAMED:
            found, true = int(rows.parts[ROWS[key], at]), known.get(key, 0)
            injected, right, wrong = injected + true, right + min(found, true), wrong + max(found - true, 0)
    return injected, right, wrong
