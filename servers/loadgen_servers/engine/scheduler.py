"""Continuous batching: which tokens each step computes, drafts accepted too. No socket, no clock in here."""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from random import Random

import msgspec

from loadgen_servers.engine.prefix_cache import PrefixCache
from loadgen_servers.engine.step_times import Age, Timing, Work


class DraftedSteps(msgspec.Struct, frozen=True):
    """The steps of one answer: how many tokens it has after each, and how many were accepted in vain."""

    ends: tuple[int, ...] = ()  # tokens after its first, second, … step; empty: one a step
    past: int = 0  # draft tokens that the last step accepted past the answer's end


def draw_steps(raw: bytes, output_tokens: int, acceptance: tuple[float, ...]) -> DraftedSteps:
    """Draw the steps of an answer; a function of the request's bytes, as its length is.

    The first step gives one token, the prompt's. Draft token j is accepted with probability acceptance[j] if
    all before it were, and a step gives one token more than it accepts.
    """
    if not acceptance:
        return DraftedSteps()
    # Chances that 1, 2, … are accepted, ascending for the bisection.
    reached = [*accumulate(acceptance, mul)][::-1]
    drafts, draw = len(acceptance), Random(zlib.crc32(raw, 2)).random
    ends, produced = [1], 1
    while produced < output_tokens:
        produced += 1 + drafts - bisect_left(reached, 1.0 - draw())
        ends.append(produced)
    ends[-1] = output_tokens
    return DraftedSteps(tuple(ends), max(produced - output_tokens, 0))


class Limits(msgspec.Struct, frozen=True):
    """What bounds a batch; `max_num_batched_tokens` must be at least `max_num_seqs`."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    kv_cache_tokens: int = 1 << 20
    block_size: int = 16
    prefix_caching: bool = True
    preempt: bool = False  # admit on the prompt alone, and put the last one back when the KV runs out
    acceptance: tuple[float, ...] = ()  # of each draft token that a step verifies; empty: nothing drafts


class Sequence(msgspec.Struct, eq=False):
    """One request inside the engine; all times are nanoseconds of the caller's clock, 0 while unknown."""

    prompt_tokens: int
    output_tokens: int  # how many it will produce
    reserved_tokens: int  # the KV it may need: prompt + max_tokens
    arrived_ns: int
    finish_reason: str = "length"
    owner: object = None  # the caller's own
    request_id: str = ""
    queued_ns: int = 0  # when the engine had it: as it arrived, if nothing holds it back
    steps: DraftedSteps = DraftedSteps()  # where it drafts
    blocks: tuple[int, ...] = ()  # the identities of the prompt's full blocks
    held: list[int] = msgspec.field(default_factory=list)  # the blocks it holds in the cache
    cached_tokens: int = 0  # prompt tokens found in the cache when it was first admitted
    computed: int = 0  # tokens prefilled, or found
    scheduled_ns: int = 0  # when it was first part of a step
    first_ns: int = 0
    last_ns: int = 0
    first_step: int = 0  # its first token's; after a preemption as if it had had them all without a pause
    preemptions: int = 0
    kept: int = 0  # tokens it had when it was preempted: they are prefilled with the prompt

    def __post_init__(self) -> None:
        self.queued_ns = self.queued_ns or self.arrived_ns

    @property
    def prefill_tokens(self) -> int:
        return self.prompt_tokens + self.kept

    def produced(self, step: int) -> int:
        """Tokens produced once `step` has ended: a running sequence that does not draft gains one a step."""
        if not self.first_step:
            return self.kept
        number = step - self.first_step
        return self.steps.ends[number] if self.steps.ends else number + 1

    def accepted(self, step: int) -> int:
        """Draft tokens that a decoding `step` accepts, those past the answer's end included."""
        ends, number = self.steps.ends, step - self.first_step
        past = self.steps.past if number == len(ends) - 1 else 0
        return ends[number] - ends[number - 1] - 1 + past


class Step(msgspec.Struct):
    """A step under way: its tokens exist at `end_ns` and not before."""

    start_ns: int
    end_ns: int
    chunks: list[tuple[Sequence, int]]
    work: Work


class StepOutput(msgspec.Struct):
    """What a step produced: for each sequence in `decoded`, `first` and `finished` one token or more."""

    number: int
    decoded: list[Sequence]  # had a token in the step before, and will have more
    first: list[Sequence]  # their first token, or the first after a preemption, and will have more
    finished: list[Sequence]  # their last token (a first one too, where they produce just one)
    started: list[Sequence] = msgspec.field(default_factory=list)  # those whose very first token it is
    pauses_ns: list[int] = msgspec.field(default_factory=list)  # token gaps with a preemption in them
    accepted: list[int] = msgspec.field(default_factory=list)  # of each draft
    more: int = 0  # tokens of answers beyond one a sequence

    @property
    def sequences(self) -> int:
        return len(self.decoded) + len(self.first) + len(self.finished)

    @property
    def tokens(self) -> int:
        return self.sequences + self.more

    @property
    def plain_gaps(self) -> int:
        """How many of the sequences had their last token one step before."""
        return self.sequences - len(self.started) - len(self.pauses_ns)


@dataclass
class Scheduler:
    """Running decodes first, one token each; what is left of the token budget prefills in order of arrival.

    A prompt longer than what is left is prefilled in chunks over several steps; its first token
    comes at the end of the step that computes its last chunk. A request is admitted when a
    sequence slot and its KV are free, strictly in order of arrival; what the cache has of its
    prompt is not computed again, and what a step computed is in the cache when the step ends.

    Its KV is prompt + max_tokens, which is stricter than vLLM: nothing is ever preempted. With
    `Limits.preempt` it is as in vLLM what exists, and when that exceeds the cache the sequence
    admitted last goes back to the head of the queue, to have its prompt and tokens prefilled again.
    """

    limits: Limits
    timing: Timing
    waiting: deque[Sequence] = field(default_factory=deque)
    prefilling: list[Sequence] = field(default_factory=list)
    decoding: dict[Sequence, None] = field(default_factory=dict)  # ordered, and O(1) to leave
    step_number: int = 0
    queued: int = 0  # waiting since the last step was planned: requests that came later are not counted
    kv_context: int = 0  # prompt and output tokens of everything in `decoding`
    preemptions: int = 0
    cache: PrefixCache = field(init=False)
    _first_step_ns: int | None = None
    _due: dict[int, list[Sequence]] = field(default_factory=dict)  # step number → who finishes in it

    def __post_init__(self) -> None:
        limits = self.limits
        self.cache = PrefixCache(limits.kv_cache_tokens, limits.block_size, limits.prefix_caching)

    @property
    def running(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; it never starves as long as its reservation fits an empty cache."""
        self.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Take a sequence out wherever it is and free its KV; a step under way still takes its time."""
        if sequence in self.decoding or sequence in self.prefilling:
            self._leave(sequence)
        else:
            self.waiting.remove(sequence)

    def wakes_ns(self) -> int | None:
        """When it may have work again without a new request; None if never."""
        return None

    def begin(self, now_ns: int) -> Step | None:
        """The next step, starting now; None when there is nothing to compute."""
        preemptions = self.preemptions
        while self.cache.in_use > self.cache.capacity_tokens:
            latest = self.prefilling[-1] if self.prefilling else next(reversed(self.decoding))
            self._evict(latest, now_ns)
            self.waiting.appendleft(latest)
        drafted = len(self.decoding) * len(self.limits.acceptance)
        budget = self.limits.max_num_batched_tokens - len(self.decoding) - drafted
        chunks: list[tuple[Sequence, int]] = []
        for sequence in self.prefilling:
            budget = self._chunk(sequence, budget, chunks)
        if self.preemptions == preemptions:  # none is admitted in a step that preempts, as in vLLM
            while self.waiting and budget > 0 and self._admit(self.waiting[0], now_ns):
                budget = self._chunk(self.waiting.popleft(), budget, chunks)
        self.queued = len(self.waiting)
        if not chunks and not self.decoding:
            return None
        if self._first_step_ns is None:
            self._first_step_ns = now_ns
        work = Work(
            decodes=len(self.decoding),
            prefill_tokens=sum(tokens for _, tokens in chunks),
            kv_tokens=self.kv_context,
            attended_pairs=sum(c * s.computed + c * (c + 1) // 2 for s, c in chunks),
            draft_tokens=drafted,
        )
        age = Age(self.step_number, now_ns - self._first_step_ns)
        return Step(now_ns, now_ns + self.timing.step_ns(work, age), chunks, work)

    def end(self, step: Step, now_ns: int) -> StepOutput:
        """Account for a step that is over; `now_ns` is when its tokens leave."""
        self.step_number += 1
        number = self.step_number
        due = self._due.pop(number, ())
        # A sequence that was preempted since is not due yet, even if it decodes again.
        finished = [s for s in due if s in self.decoding and s.produced(number) == s.output_tokens]
        accepted = [s.accepted(number) for s in self.decoding] if self.limits.acceptance else []
        more = sum(accepted) - sum(s.steps.past for s in finished)
        self._lengthen(len(self.decoding) + more)
        for sequence in finished:
            self._finish(sequence, now_ns)
        ended = StepOutput(number, list(self.decoding), [], finished, accepted=accepted, more=more)
        for sequence, tokens in step.chunks:
            if sequence not in self.prefilling:
                continue  # aborted meanwhile
            size, done = self.cache.block_size, sequence.computed
            sequence.computed += tokens
            blocks = sequence.blocks[done // size : sequence.computed // size]
            sequence.held += self.cache.computed(blocks)
            if sequence.computed == sequence.prefill_tokens:
                self._start(sequence, ended, now_ns)
        return ended

    def _admit(self, sequence: Sequence, now_ns: int) -> bool:
        if self.running >= self.limits.max_num_seqs:
            return False
        hits = self.cache.admit(sequence.blocks, sequence.prefill_tokens, self._kv(sequence))
        if hits is None:
            return False
        sequence.held = hits
        sequence.computed = len(hits) * self.cache.block_size
        if not sequence.preemptions:  # as in vLLM: the lookup after a preemption does not count
            sequence.scheduled_ns = now_ns
            sequence.cached_tokens = sequence.computed
            self.cache.count(sequence.prompt_tokens, sequence.computed)
        self.prefilling.append(sequence)
        return True

    def _chunk(self, sequence: Sequence, budget: int, chunks: list[tuple[Sequence, int]]) -> int:
        tokens = min(budget, sequence.prefill_tokens - sequence.computed)
        if tokens > 0:
            chunks.append((sequence, tokens))
        return budget - tokens

    def _start(self, sequence: Sequence, ended: StepOutput, now_ns: int) -> None:
        self.prefilling.remove(sequence)
        self.decoding[sequence] = None
        self.kv_context += sequence.prefill_tokens
        self._lengthen(1)
        sequence.first_step = ended.number - sequence.kept
        if sequence.kept:
            ended.pauses_ns.append(now_ns - sequence.last_ns)
        else:
            sequence.first_ns = now_ns
            ended.started.append(sequence)
        if sequence.output_tokens == sequence.kept + 1:
            self._finish(sequence, now_ns)
            ended.finished.append(sequence)
        else:
            ended.first.append(sequence)
            steps = len(sequence.steps.ends) or sequence.output_tokens
            self._due.setdefault(sequence.first_step + steps - 1, []).append(sequence)

    def _evict(self, sequence: Sequence, now_ns: int) -> None:
        """Take a running sequence out of the batch: its tokens are to be prefilled again."""
        self._leave(sequence)
        if sequence.first_step:
            sequence.last_ns = now_ns
            sequence.kept, sequence.first_step = sequence.produced(self.step_number), 0
        sequence.preemptions += 1
        self.preemptions += 1

    def _finish(self, sequence: Sequence, now_ns: int) -> None:
        sequence.last_ns = now_ns
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self.cache.release(sequence.held, self._kv(sequence))
        if sequence in self.decoding:
            del self.decoding[sequence]
            self.kv_context -= sequence.prompt_tokens + sequence.produced(self.step_number)
        else:
            self.prefilling.remove(sequence)

    def _lengthen(self, tokens: int) -> None:
        self.kv_context += tokens
        if self.limits.preempt:
            self.cache.grow(tokens)

    def _kv(self, sequence: Sequence) -> int:
        """What the cache counts for it: all it may need or, with preemption, what it has."""
        if self.limits.preempt:
            return sequence.prompt_tokens + sequence.produced(self.step_number)
        return sequence.reserved_tokens
