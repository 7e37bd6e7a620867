"""Ceiling: the least time that a machine needs for a model's tokens; docs/roofline.md has each formula."""

from __future__ import annotations

from pydantic import BaseModel


class Machine(BaseModel, extra="forbid", frozen=True):
    """One device, or several that share a model; peaks are dense, without structured sparsity."""

    key: str  # jetson-thor, h20-96gb; "" if only a bandwidth is known
    name: str
    bandwidth_bytes_per_s: float  # nominal, of the memory that holds the weights
    peak_flop_per_s: dict[str, float]  # by the type that computes: bf16, fp8, fp4, int8; absent: unknown
    memory_bytes: int  # 0: unknown
    source: str
    note: str = ""
    devices: int = 1  # that share the model: bandwidth, peaks and memory above are of all of them
    of_all: bool = False  # a bandwidth that was given, of however many share the model

    def multiply(self, devices: int) -> Machine:
        """Return `devices` of them that share a model, with bandwidth, peaks and memory summed."""
        if devices == 1:
            return self
        return self.model_copy(
            update={
                "name": f"{devices} × {self.name}",
                "bandwidth_bytes_per_s": devices * self.bandwidth_bytes_per_s,
                "peak_flop_per_s": {kind: devices * peak for kind, peak in self.peak_flop_per_s.items()},
                "memory_bytes": devices * self.memory_bytes,
                "devices": devices * self.devices,
            }
        )


class Weights(BaseModel, extra="forbid", frozen=True):
    """The bytes that a model reads and the FLOP it computes per token, from its files or its config."""

    how: str  # "safetensors headers of …", "computed from the config of …"
    total_bytes: int  # everything that must fit
    dense_bytes: int  # read at every decoded token: all but routed experts and a separate embedding
    expert_bytes: int = 0  # of one routed expert, summed over its layers
    experts: int = 0  # E, routed
    experts_per_token: int = 0  # k
    kv_bytes_per_token: int  # of context, keys and values of the layers that attend to all of it
    flop_per_token: float  # 2 × the parameters that one token of a prompt passes
    pair_flop: float  # of attention, per pair of a token and one before it: 4 × heads × head_dim × layers
    computes: str  # the type that computes: bf16, fp8, fp4, int8
    head_flop: float = 0.0  # 2 × the output head's, which a prompt passes once and an answer with every token
    window: int = 0  # tokens of the sliding window; 0: no layer has one
    window_kv_bytes_per_token: int = 0  # of those layers
    window_pair_flop: float = 0.0  # of those layers

    def kv_bytes(self, context: float) -> float:
        """Return the bytes of one request's keys and values; a sliding window keeps its last tokens."""
        return context * self.kv_bytes_per_token + min(context, self.window) * self.window_kv_bytes_per_token

    def expected_experts(self, tokens: float) -> float:
        """Return how many experts of a layer `tokens` tokens use: E·(1 − (1 − k/E)^B), routing evenly."""
        if not self.experts:
            return 0.0
        untouched: float = (1 - self.experts_per_token / self.experts) ** tokens
        return self.experts * (1 - untouched)


class Ceiling(BaseModel, extra="forbid", frozen=True):
    """The least times that a machine needs for a model's tokens."""

    machine: Machine
    model: str
    weights: Weights

    def weight_bytes(self, batch: float = 1.0) -> float:
        """Return the weight bytes a step of `batch` tokens reads: dense + E·(1 − (1 − k/E)^B) · expert."""
        weights = self.weights
        return weights.dense_bytes + weights.expected_experts(batch) * weights.expert_bytes

    def step_bytes(self, batch: float, context: float) -> float:
        """Return the bytes read for one token of each of `batch` requests with `context` tokens each.

        dense + E·(1 − (1 − k/E)^B) · expert + B · context · KV, the middle term with even routing.
        """
        return self.weight_bytes(batch) + batch * self.weights.kv_bytes(context)

    def step_flop(self, batch: float, context: float) -> float:
        """Return the FLOP of the same step: B · (parameters + head + attention over the context)."""
        weights = self.weights
        attention = weights.pair_flop * context + weights.window_pair_flop * min(context, weights.window)
        return batch * (weights.flop_per_token + weights.head_flop + attention)

    def tpot_ms(self, batch: float = 1.0, context: float = 0.0) -> float:
        """Return the least ms per output token: bytes ÷ bandwidth, or FLOP ÷ peak if that is longer.

        The second is longer at large batches only; without a known peak it is left out.
        """
        read_ms = 1e3 * self.step_bytes(batch, context) / self.machine.bandwidth_bytes_per_s
        peak = self.peak_flop_per_s
        return max(read_ms, 1e3 * self.step_flop(batch, context) / peak) if peak else read_ms

    def prefill_flop(self, tokens: float) -> float:
        """Return the FLOP of a prompt: each token's parameters, the head once, half of all pairs of tokens.

        A layer with a sliding window w computes w·n − w²/2 pairs of a prompt of n ≥ w tokens.
        """
        weights = self.weights
        seen = min(tokens, weights.window)
        return (
            weights.flop_per_token * tokens
            + weights.head_flop
            + weights.pair_flop * tokens * tokens / 2
            + weights.window_pair_flop * (seen * tokens - seen * seen / 2)
        )

    def prefill_ms(self, tokens: float) -> float | None:
        """Return the least ms for a prompt by arithmetic alone; None if the machine's peak is unknown."""
        peak = self.peak_flop_per_s
        return 1e3 * self.prefill_flop(tokens) / peak if peak else None

    @property
    def peak_flop_per_s(self) -> float | None:
        """The machine's peak FLOP/s in the type that computes; None if unknown."""
        return self.machine.peak_flop_per_s.get(self.weights.computes)

    def timing(self) -> dict[str, float]:
        """Return the formulas' constants for the embedded engine's `RooflineTiming`, in its units.

        If the machine's peak is unknown, arithmetic takes no time.
        """
        weights, bus = self.weights, self.machine.bandwidth_bytes_per_s
        peak = self.peak_flop_per_s or float("inf")
        return {
            "dense_ms": 1e3 * weights.dense_bytes / bus,
            "expert_ms": 1e3 * weights.expert_bytes / bus,
            "experts": weights.experts,
            "experts_per_token": weights.experts_per_token,
            "kv_us": 1e6 * weights.kv_bytes_per_token / bus,
            "compute_us": 1e6 * weights.flop_per_token / peak,
            "head_us": 1e6 * weights.head_flop / peak,
            "pair_ns": 1e9 * weights.pair_flop / peak,
            "window": weights.window,
            "window_kv_us": 1e6 * weights.window_kv_bytes_per_token / bus,
            "window_pair_ns": 1e9 * weights.window_pair_flop / peak,
        }
