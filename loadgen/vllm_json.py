"""The result file: vLLM's keys in vLLM's order, and ours under one more."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict

from loadgen import block
from loadgen.arrays import Int64
from loadgen.block import BlockFacts, percentile_name
from loadgen.errors import UsageError
from loadgen.metrics import DEFINITIONS_VERSION, Ask, Metrics, PerRequest
from loadgen.plain_text import file_name
from loadgen.record import Records

OURS = "loadgen"


class ResultFacts(msgspec.Struct, frozen=True):
    """What the result file says beside the figures."""

    finished: datetime  # local time
    backend: str
    model_id: str
    tokenizer_id: str | None
    num_prompts: int
    traffic: BlockFacts
    label: str | None = None
    burstiness: float = 1.0
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    save_detailed: bool = False
    ours: Mapping[str, Any] = msgspec.field(default_factory=dict)  # merged under "loadgen", must be JSON

    @property
    def date(self) -> str:
        """When the run finished, as vLLM writes it."""
        return self.finished.strftime("%Y%m%d-%H%M%S")

    @property
    def filename(self) -> str:
        """The name vLLM would give the file."""
        rate = self.traffic.request_rate_per_s
        limit = self.traffic.max_concurrency
        concurrency = "" if limit is None else f"-concurrency{limit}"
        model = file_name(self.model_id.split("/")[-1])
        label = file_name(self.label or self.backend)
        return f"{label}-{float(rate)}qps{concurrency}-{model}-{self.date}.json"


def parse_metadata(pairs: Iterable[str]) -> dict[str, str]:
    """The pairs of `--metadata KEY=VALUE`; raises UsageError."""
    metadata: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--metadata {pair}: write KEY=VALUE")
        metadata[key.strip()] = value.strip()
    return metadata


def vllm_result(metrics: Metrics, records: Records, ask: Ask, facts: ResultFacts) -> dict[str, Any]:
    """The result as `vllm bench serve` 0.32 saves it; every value is strict JSON.

    Times are seconds, `start_times` on CLOCK_MONOTONIC as theirs; what a failed request never
    reached is 0, as theirs.
    """
    each = PerRequest.of(records, ask)
    traffic = block.traffic(facts.traffic)
    return {
        "date": facts.date,
        "endpoint_type": facts.backend,
        "backend": facts.backend,
        "label": facts.label,
        "model_id": facts.model_id,
        "tokenizer_id": facts.tokenizer_id,
        "num_prompts": facts.num_prompts,
        **facts.metadata,
        "request_rate": traffic["request_rate"],
        "burstiness": _strict(facts.burstiness),
        "max_concurrency": traffic["max_concurrency"],
        **block.throughputs(metrics),
        **_requests(records, each, facts.save_detailed),
        **block.peaks(metrics),
        **block.latencies(metrics, facts.traffic),
        OURS: {**own_figures(metrics), **facts.ours},
    }


def own_figures(metrics: Metrics) -> dict[str, Any]:
    """Every figure of Metrics under our own names, strict JSON: what does not exist is null."""
    return {"definitions_version": DEFINITIONS_VERSION, "metrics": _strict(metrics)}


def write_result(path: Path, result: Mapping[str, Any], append: bool = False) -> None:
    """Write the result as one line of JSON; `append` puts it on a new line after what is there.

    Raises UsageError when the file cannot be written.
    """
    text = json.dumps(result, allow_nan=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if append else "w", encoding="utf-8") as file:
            file.write("\n" + text if file.tell() else text)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"cannot write {path}: {reason}; choose another --result-dir") from error


def _requests(records: Records, each: PerRequest, detailed: bool) -> dict[str, Any]:
    """The per-request lists, in plan order; without `detailed` only the two vLLM always keeps."""
    queue_ns = np.where(records.sent_ns > 0, records.sent_ns - records.intended_ns, 0)
    always = {"latencies": _seconds(each.e2el_ns), "queue_times": (queue_ns / 1e9).tolist()}
    if not detailed:
        return always
    return {
        "input_lens": each.input_tokens.clip(0).tolist(),
        "output_lens": each.output_tokens.tolist(),
        "ttfts": _seconds(each.ttft_ns),
        "itls": _gaps(records),
        "latencies": always["latencies"],
        "start_times": _seconds(records.sent_ns),
        "queue_times": always["queue_times"],
        "generated_texts": [text or "" for text in records.texts],
        "errors": [
            f"{failure.kind.value}: {failure.detail}" if failure else "" for failure in records.failures
        ],
    }


def _gaps(records: Records) -> list[list[float]]:
    bounds = zip(records.start[:-1].tolist(), records.start[1:].tolist(), strict=True)
    return [(np.diff(records.arrival_ns[a:b]) / 1e9).tolist() for a, b in bounds]


def _seconds(times_ns: Int64) -> list[float]:
    seconds: list[float] = (times_ns.clip(0) / 1e9).tolist()
    return seconds


def _strict(value: Any) -> Any:
    """The value as strict JSON: NaN becomes null, an infinity its name."""
    if isinstance(value, msgspec.Struct):
        value = asdict(value)
    if isinstance(value, dict):
        return {key if isinstance(key, str) else percentile_name(key): _strict(v) for key, v in value.items()}
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return value
