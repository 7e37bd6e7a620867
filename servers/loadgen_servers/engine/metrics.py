"""What the engine counts, as Prometheus text under vLLM's names."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from loadgen_servers.engine.scheduler import Scheduler, Sequence, StepOutput

_FEW_S = (2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_FINE_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0)
_TTFT_S = (*_FINE_S, *_FEW_S, 160.0, 640.0, 2560.0)
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, *_FEW_S)
_MINUTES_S = (60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
_REQUEST_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, *_MINUTES_S)
_HELP = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage. Here: without idle blocks.",
    "prefix_cache_queries_total": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits_total": "Prefix cache hits, in terms of number of cached tokens.",
    "num_preemptions_total": "Cumulative number of preemption from the engine.",
    "prompt_tokens_total": "Number of prefill tokens processed.",
    "prompt_tokens_by_source_total": "Number of prompt tokens by source.",
    "prompt_tokens_cached_total": "Number of cached prompt tokens (local + external).",
    "generation_tokens_total": "Number of generation tokens processed.",
    "request_success_total": "Count of successfully processed requests.",
    "spec_decode_num_drafts_total": "Number of spec decoding drafts.",
    "spec_decode_num_draft_tokens_total": "Number of draft tokens.",
    "spec_decode_num_accepted_tokens_total": "Number of accepted tokens.",
    "spec_decode_num_accepted_tokens_per_pos_total": "Accepted tokens per draft position.",
    "cache_config_info": "Information of the LLMEngine CacheConfig",
}
_REASONS = ("stop", "length", "abort", "error", "repetition")


@dataclass
class Histogram:
    """Counts of seconds by upper bound."""

    help: str
    bounds_s: tuple[float, ...]
    counts: list[int] = field(init=False)
    sum_s: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds_s) + 1)

    def observe(self, duration_ns: int, times: int = 1) -> None:
        """Count a duration, `times` over; a value equal to a bound falls under it."""
        seconds = duration_ns / 1e9
        self.counts[bisect_left(self.bounds_s, seconds)] += times
        self.sum_s += seconds * times

    def lines(self, name: str, labels: str) -> Iterable[str]:
        """The exposition of this histogram: cumulative buckets, count, sum."""
        yield f"# HELP {name} {self.help}"
        yield f"# TYPE {name} histogram"
        total = 0
        for bound, count in zip((*map(str, self.bounds_s), "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{engine="0",le="{bound}",{labels}}} {float(total)}'
        yield f'{name}_count{{engine="0",{labels}}} {float(total)}'
        yield f'{name}_sum{{engine="0",{labels}}} {self.sum_s}'


_HISTOGRAMS = {
    "time_to_first_token": ("Histogram of time to first token in seconds.", _TTFT_S),
    "inter_token_latency": ("Histogram of inter-token latency in seconds.", _TOKEN_S),
    "request_time_per_output_token": ("Histogram of time_per_output_token_seconds per request.", _TOKEN_S),
    "e2e_request_latency": ("Histogram of e2e request latency in seconds.", _REQUEST_S),
    "request_queue_time": ("Histogram of time spent in WAITING phase for request.", _REQUEST_S),
    "request_prefill_time": ("Histogram of time spent in PREFILL phase for request.", _REQUEST_S),
    "request_decode_time": ("Histogram of time spent in DECODE phase for request.", _REQUEST_S),
}


@dataclass
class Metrics:
    """Everything since the engine started; per step, not per token, so that counting costs nothing."""

    model: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    late_steps: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_REASONS, 0))
    histograms: dict[str, Histogram] = field(
        default_factory=lambda: {name: Histogram(*row) for name, row in _HISTOGRAMS.items()}
    )
    last_end_ns: int = 0
    drafts: int = 0
    accepted: list[int] = field(default_factory=list)  # by position; as long as a draft

    def record(self, ended: StepOutput, now_ns: int) -> None:
        """Account for a step whose tokens leave at `now_ns`."""
        histograms = self.histograms
        self.generation_tokens += ended.tokens
        if ended.plain_gaps:
            # A decoding sequence had a token in the step before too, so all these gaps are this one.
            histograms["inter_token_latency"].observe(now_ns - self.last_end_ns, ended.plain_gaps)
        for pause_ns in ended.pauses_ns:
            histograms["inter_token_latency"].observe(pause_ns)
        self.last_end_ns = now_ns
        self.drafts += len(ended.accepted)
        for count in ended.accepted:
            for position in range(count):
                self.accepted[position] += 1
        for sequence in ended.started:
            self.prompt_tokens += sequence.prompt_tokens
            self.cached_tokens += sequence.cached_tokens
            histograms["time_to_first_token"].observe(now_ns - sequence.arrived_ns)
        for sequence in ended.finished:
            self._finish(sequence)

    def _finish(self, sequence: Sequence) -> None:
        histograms = self.histograms
        decode_ns = sequence.last_ns - sequence.first_ns
        self.finished[sequence.finish_reason] += 1
        histograms["e2e_request_latency"].observe(sequence.last_ns - sequence.arrived_ns)
        histograms["request_queue_time"].observe(sequence.scheduled_ns - sequence.queued_ns)
        histograms["request_prefill_time"].observe(sequence.first_ns - sequence.scheduled_ns)
        histograms["request_decode_time"].observe(decode_ns)
        if sequence.output_tokens > 1:
            per_token_ns = round(decode_ns / (sequence.output_tokens - 1))
            histograms["request_time_per_output_token"].observe(per_token_ns)

    def text(self, scheduler: Scheduler) -> bytes:
        """The exposition, gauges as the scheduler stands now."""
        labels = f"model_name={msgspec.json.encode(self.model).decode()}"
        every = f'{{engine="0",{labels}}}'
        limits, cache = scheduler.limits, scheduler.cache
        sources = {
            "local_compute": self.prompt_tokens - self.cached_tokens,
            "local_cache_hit": self.cached_tokens,
            "external_kv_transfer": 0,
        }
        by_source: dict[str, float] = {f'{{engine="0",{labels},source="{s}"}}': n for s, n in sources.items()}
        by_reason: dict[str, float] = {
            f'{{engine="0",finished_reason="{r}",{labels}}}': n for r, n in self.finished.items()
        }
        config = (
            f'block_size="{limits.block_size}",enable_prefix_caching="{limits.prefix_caching}",engine="0",'
            f'kv_cache_size_tokens="{limits.kv_cache_tokens}"'
        )
        values: dict[str, dict[str, float]] = {
            "num_requests_running": {every: scheduler.running},
            "num_requests_waiting": {every: scheduler.queued},
            "kv_cache_usage_perc": {every: cache.in_use / limits.kv_cache_tokens},
            "prefix_cache_queries_total": {every: cache.queried},
            "prefix_cache_hits_total": {every: cache.found},
            "num_preemptions_total": {every: scheduler.preemptions},
            "prompt_tokens_total": {every: self.prompt_tokens},
            "prompt_tokens_by_source_total": by_source,
            "prompt_tokens_cached_total": {every: self.cached_tokens},
            "generation_tokens_total": {every: self.generation_tokens},
            "request_success_total": by_reason,
            "cache_config_info": {f"{{{config}}}": 1},
        }
        if self.accepted:  # as in vLLM, only where something drafts
            values |= {
                "spec_decode_num_drafts_total": {every: self.drafts},
                "spec_decode_num_draft_tokens_total": {every: self.drafts * len(self.accepted)},
                "spec_decode_num_accepted_tokens_total": {every: sum(self.accepted)},
                "spec_decode_num_accepted_tokens_per_pos_total": {
                    f'{{engine="0",{labels},position="{position}"}}': count
                    for position, count in enumerate(self.accepted)
                },
            }
        lines: list[str] = []
        for name, samples in values.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += (f"# HELP vllm:{name} {_HELP[name]}", f"# TYPE vllm:{name} {kind}")
            lines += (f"vllm:{name}{sample} {float(value)}" for sample, value in samples.items())
        for name, histogram in self.histograms.items():
            lines += histogram.lines(f"vllm:{name}_seconds", labels)
        late = "loadgen_engine:late_steps_total"
        lines += (
            f"# HELP {late} Steps this process was too slow for: its timing is then not the preset's.",
            f"# TYPE {late} counter",
            f"{late}{every} {float(self.late_steps)}",
        )
        return "\n".join(lines).encode() + b"\n"
