"""Window: what the server's own counters say of the measured run, from two scrapes and samples between."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ServerLatency(BaseModel):
    """One of the server's histograms over the run: its mean, and between which bounds percentiles lie."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: int
    mean_ms: float  # sum / count
    brackets_ms: dict[str, tuple[float, float | None]]  # percentile → bounds of its bucket; None: beyond


class ServerSample(BaseModel):
    """The server's gauges at one moment of the run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_s: float  # after the first sampling
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None  # 0 to 1


class ServerWindow(BaseModel):
    """The difference of two scrapes of `/metrics`; None is what this server does not count."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    trouble: str = ""  # why there is none of it, in words
    names: str = ""  # whose names the counters have: vllm or sglang
    models: tuple[str, ...] = ()  # that moved behind this port
    reset: bool = False  # a counter went backwards: the server was restarted
    settled: bool = True  # at the end nothing ran and the counters stood still
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    requests: dict[str, int] = {}  # finished, by reason; under "" where no reason is told
    prefix_queries: int | None = None  # prompt tokens looked up
    prefix_hits: int | None = None  # prompt tokens found
    preemptions: int | None = None
    draft_tokens: int | None = None  # speculative decoding
    accepted_tokens: int | None = None
    running_before: float | None = None
    waiting_before: float | None = None
    running_after: float | None = None
    waiting_after: float | None = None
    ttft: ServerLatency | None = None
    itl: ServerLatency | None = None
    e2e: ServerLatency | None = None
    queue: ServerLatency | None = None
    samples: tuple[ServerSample, ...] = ()
