"""How long one engine step takes, from a preset's constants."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec


class Work(NamedTuple):
    """What one step computes.

    `kv_tokens` is the context the decodes read; `attended_pairs` is, summed over the prefill
    chunks, each token times the context before it (a chunk of c tokens at position p: c·p + c²/2).
    """

    decodes: int
    prefill_tokens: int
    kv_tokens: int
    attended_pairs: int
    draft_tokens: int = 0  # to verify, next to a token of each decode


class Age(NamedTuple):
    """How old a step finds the engine: the steps before it, and the time since the first of them began."""

    steps: int
    worked_ns: int


class Timing(Protocol):
    """A model of the machine: work in, nanoseconds out; pure."""

    def step_ns(self, work: Work, age: Age) -> int: ...


class FittedTiming(msgspec.Struct, frozen=True):
    """Step times from constants fitted to published measurements.

    With D decodes, P prompt and S draft tokens, T = D + P + S, K context tokens read and Q pairs attended to,

        step = overhead + max(weights(T), compute·T) + sequence·D + kv·K + pair·Q
        weights(T) = min(weights + routed·(T - 1), weights_most)

    The weights are read once a step whatever the batch, and that read hides behind the arithmetic
    of a long prefill (hence the max: the roofline). A mixture of experts reads more experts the
    more tokens are routed (`routed` per token, up to `weights_most`, the whole model); a dense
    model has routed = 0.
    """

    overhead_ms: float = 0.0
    weights_ms: float = 0.0
    routed_ms: float = 0.0
    weights_most_ms: float = 0.0
    compute_us: float = 0.0
    sequence_us: float = 0.0
    kv_us: float = 0.0
    pair_ns: float = 0.0

    def step_ns(self, work: Work, age: Age) -> int:
        tokens = work.decodes + work.prefill_tokens + work.draft_tokens
        weights_ms = self.weights_ms
        if self.routed_ms:
            weights_ms = min(weights_ms + self.routed_ms * (tokens - 1), self.weights_most_ms)
        return round(
            1e6 * (self.overhead_ms + max(weights_ms, self.compute_us * tokens / 1e3))
            + 1e3 * (self.sequence_us * work.decodes + self.kv_us * work.kv_tokens)
            + self.pair_ns * work.attended_pairs
        )


class RooflineTiming(msgspec.Struct, frozen=True):
    """Step times of a machine at its best: memory at its bandwidth, arithmetic at its peak, both at once.

    With D decodes, P prompt and S draft tokens, T = D + P + S, K context tokens read and Q pairs attended to,

        step = max(read, arithmetic)
        read = dense + E·(1 − (1 − k/E)^T)·expert + kv·K + window_kv·D·min(K/D, window)
        arithmetic = compute·T + head·D + pair·(Q + K) + window_pair·(min(Q, P·window) + D·min(K/D, window))

    A token is routed evenly to k of E experts, which gives the number of experts read. Of a step's decodes
    only the sum of contexts is known, so in layers with a sliding window each is taken to have the mean.
    """

    dense_ms: float
    expert_ms: float = 0.0
    experts: float = 0.0
    experts_per_token: float = 0.0
    kv_us: float = 0.0
    compute_us: float = 0.0
    head_us: float = 0.0
    pair_ns: float = 0.0
    window: float = 0.0
    window_kv_us: float = 0.0
    window_pair_ns: float = 0.0

    def step_ns(self, work: Work, age: Age) -> int:
        decodes, prompts = work.decodes, work.prefill_tokens
        tokens = decodes + prompts + work.draft_tokens
        seen = min(work.kv_tokens, decodes * self.window)
        read_ns = 1e6 * (self.dense_ms + self._experts(tokens) * self.expert_ms)
        read_ns += 1e3 * (self.kv_us * work.kv_tokens + self.window_kv_us * seen)
        pairs = min(work.attended_pairs, prompts * self.window) + seen
        arithmetic_ns = 1e3 * (self.compute_us * tokens + self.head_us * decodes)
        arithmetic_ns += self.pair_ns * (work.attended_pairs + work.kv_tokens) + self.window_pair_ns * pairs
        return round(max(read_ns, arithmetic_ns))

    def _experts(self, tokens: int) -> float:
        if not self.experts:
            return 0.0
        missed: float = (1 - self.experts_per_token / self.experts) ** tokens
        return self.experts * (1 - missed)


class UnsteadyTiming(msgspec.Struct, frozen=True):
    """A machine that is cold at first and throttles later: another timing, slower by the engine's age.

    step = (steady + cold in the first cold_steps) · (1 + slowdown_per_s · seconds since the first step)
    """

    steady: Timing
    cold_ms: float = 0.0
    cold_steps: int = 0
    slowdown_per_s: float = 0.0

    def step_ns(self, work: Work, age: Age) -> int:
        cold_ns = 1e6 * self.cold_ms if age.steps < self.cold_steps else 0.0
        slower = 1.0 + self.slowdown_per_s * age.worked_ns / 1e9
        return round((self.steady.step_ns(work, age) + cold_ns) * slower)
