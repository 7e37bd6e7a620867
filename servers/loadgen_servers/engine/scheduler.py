"""Continuous batching: which tokens each engine step computes. No socket and no clock in here."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from loadgen_servers.engine.model import Timing, Work


@dataclass(frozen=True)
class Limits:
    """What bounds a batch; `max_num_batched_tokens` must be at least `max_num_seqs`."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    kv_cache_tokens: int = 1 << 20


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine; all times are nanoseconds of the caller's clock, 0 while unknown."""

    prompt_tokens: int
    output_tokens: int  # how many it will produce
    reserved_tokens: int  # the KV it may need: prompt + max_tokens
    arrived_ns: int
    finish_reason: str = "length"
    owner: object = None  # the caller's own
    computed: int = 0  # prompt tokens prefilled
    scheduled_ns: int = 0  # when it was first given a share of a step
    first_ns: int = 0
    last_ns: int = 0
    first_step: int = 0

    def produced(self, step: int) -> int:
        """Tokens produced once `step` has ended: a running sequence gains exactly one a step."""
        return step - self.first_step + 1 if self.first_step else 0


@dataclass(slots=True)
class Step:
    """A step under way: its tokens exist at `end_ns` and not before."""

    start_ns: int
    end_ns: int
    chunks: list[tuple[Sequence, int]]
    work: Work


@dataclass(slots=True)
class Ended:
    """What a step produced: one token for each sequence in one of these lists."""

    number: int
    decoded: list[Sequence]  # had a token in the step before, and will have more
    first: list[Sequence]  # their first token, and will have more
    finished: list[Sequence]  # their last token (a first one too, where they produce just one)


@dataclass
class Scheduler:
    """Running decodes first, one token each; what is left of the token budget prefills in order of arrival.

    A prompt longer than what is left is prefilled in chunks over several steps; its first token
    comes at the end of the step that computes its last chunk. A request is admitted when a
    sequence slot and the KV for prompt + max_tokens are free, strictly in order of arrival. The
    reservation is stricter than vLLM's, which admits on the prompt alone and preempts when it
    was wrong; nothing is ever preempted here.
    """

    limits: Limits
    timing: Timing
    waiting: deque[Sequence] = field(default_factory=deque)
    prefilling: list[Sequence] = field(default_factory=list)
    decoding: dict[Sequence, None] = field(default_factory=dict)  # ordered, and O(1) to leave
    step_number: int = 0
    kv_reserved: int = 0
    kv_context: int = 0  # prompt and output tokens of everything in `decoding`
    _due: dict[int, list[Sequence]] = field(default_factory=dict)  # step number → who finishes in it

    @property
    def running(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; it never starves as long as its reservation fits an empty cache."""
        self.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Take a sequence out wherever it is and free its KV; a step under way still takes its time."""
        if sequence in self.decoding:
            del self.decoding[sequence]
            self.kv_context -= sequence.prompt_tokens + sequence.produced(self.step_number)
        elif sequence in self.prefilling:
            self.prefilling.remove(sequence)
        else:
            self.waiting.remove(sequence)
            return
        self.kv_reserved -= sequence.reserved_tokens

    def begin(self, now_ns: int) -> Step | None:
        """The next step, starting now; None when there is nothing to compute."""
        budget = self.limits.max_num_batched_tokens - len(self.decoding)
        chunks: list[tuple[Sequence, int]] = []
        for sequence in self.prefilling:
            budget = self._chunk(sequence, budget, chunks)
        while self.waiting and budget > 0 and self._admissible(self.waiting[0]):
            sequence = self.waiting.popleft()
            sequence.scheduled_ns = now_ns
            self.kv_reserved += sequence.reserved_tokens
            self.prefilling.append(sequence)
            budget = self._chunk(sequence, budget, chunks)
        if not chunks and not self.decoding:
            return None
        work = Work(
            decodes=len(self.decoding),
            prefill_tokens=sum(tokens for _, tokens in chunks),
            kv_tokens=self.kv_context,
            attended_pairs=sum(c * s.computed + c * (c + 1) // 2 for s, c in chunks),
        )
        return Step(now_ns, now_ns + self.timing.step_ns(work), chunks, work)

    def end(self, step: Step, now_ns: int) -> Ended:
        """Account for a step that is over; `now_ns` is when its tokens leave."""
        self.step_number += 1
        number = self.step_number
        finished = [s for s in self._due.pop(number, ()) if s in self.decoding]
        self.kv_context += len(self.decoding)
        for sequence in finished:
            self._release(sequence, now_ns)
        decoded = list(self.decoding)
        first: list[Sequence] = []
        for sequence, tokens in step.chunks:
            sequence.computed += tokens
            if sequence.computed < sequence.prompt_tokens or sequence not in self.prefilling:
                continue  # more chunks to come, or aborted meanwhile
            self.prefilling.remove(sequence)
            self.decoding[sequence] = None
            self.kv_context += sequence.prompt_tokens + 1
            sequence.first_ns, sequence.first_step = now_ns, number
            if sequence.output_tokens == 1:
                self._release(sequence, now_ns)
                finished.append(sequence)
            else:
                first.append(sequence)
                self._due.setdefault(number + sequence.output_tokens - 1, []).append(sequence)
        return Ended(number, decoded, first, finished)

    def _admissible(self, sequence: Sequence) -> bool:
        slots = self.running < self.limits.max_num_seqs
        return slots and self.kv_reserved + sequence.reserved_tokens <= self.limits.kv_cache_tokens

    def _chunk(self, sequence: Sequence, budget: int, chunks: list[tuple[Sequence, int]]) -> int:
        tokens = min(budget, sequence.prompt_tokens - sequence.computed)
        if tokens > 0:
            chunks.append((sequence, tokens))
        return budget - tokens

    def _release(self, sequence: Sequence, now_ns: int) -> None:
        sequence.last_ns = now_ns
        del self.decoding[sequence]
        self.kv_reserved -= sequence.reserved_tokens
        self.kv_context -= sequence.prompt_tokens + sequence.output_tokens
