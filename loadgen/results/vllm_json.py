"""The result file: vLLM's keys in vLLM's order, and ours under one more."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict

from loadgen.arrays import Int64
from loadgen.errors import UsageError
from loadgen.metrics import files, vllm_keys
from loadgen.metrics.metrics import DEFINITIONS_VERSION, MetricOptions, Metrics, PerRequest
from loadgen.metrics.record import Records
from loadgen.metrics.vllm_keys import BlockFacts, percentile_name
from loadgen.protocol.printable import file_name
from loadgen.validity.sections import Broken, guarded

OURS = "loadgen"


class ResultFacts(msgspec.Struct, frozen=True):
    """What the result file has besides the figures."""

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
    # Parts under "loadgen" that are computed: one that raises is null, and costs nothing else.
    derived: Mapping[str, Callable[[], Any]] = msgspec.field(default_factory=dict)
    request_id_prefix: str | None = None  # of each x-request-id, its index follows; None: not known

    @property
    def date(self) -> str:
        """When the run finished, as vLLM writes it."""
        return self.finished.strftime("%Y%m%d-%H%M%S")

    @property
    def filename(self) -> str:
        """The name vLLM would give the file, of what a name can hold: it leaves no directory."""
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


def vllm_result(metrics: Metrics, records: Records, ask: MetricOptions, facts: ResultFacts) -> dict[str, Any]:
    """The result as `vllm bench serve` 0.32 saves it; every value is strict JSON.

    Times are seconds, `start_times` on CLOCK_MONOTONIC as theirs; what a failed request never
    reached is 0, as theirs.
    """
    each = PerRequest.of(records, ask)
    traffic = vllm_keys.traffic(facts.traffic)
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
        **vllm_keys.throughputs(metrics),
        **_requests(records, each, facts.save_detailed),
        **vllm_keys.peaks(metrics),
        **vllm_keys.latencies(metrics, facts.traffic),
        OURS: _ours(metrics, records, facts),
    }


def _ours(metrics: Metrics, records: Records, facts: ResultFacts) -> dict[str, Any]:
    """What is ours: the figures, the facts, and what follows from them, each part under a guard."""
    parts: dict[str, Callable[[], Any]] = {"metrics": lambda: metrics, **facts.derived}
    if facts.save_detailed:
        parts["per_request"] = lambda: _each(records, facts.request_id_prefix)
    broken: list[Broken] = []
    made = {name: guarded(name, partial(_checked, make), None, broken) for name, make in parts.items()}
    failed = {"failed_parts": {item.name: item.why for item in broken}} if broken else {}
    # A fact is read again as what it was: NaN, a number to pydantic, as its name.
    return {
        "definitions_version": DEFINITIONS_VERSION,
        "metrics": made.pop("metrics"),
        **_strict(dict(facts.ours), nan="nan"),
        **made,
        **failed,
    }


def _checked(make: Callable[[], Any]) -> Any:
    """A part as strict JSON; raises TypeError or ValueError where it cannot be."""
    part = _strict(make())
    json.dumps(part, allow_nan=False)
    return part


def _each(records: Records, prefix: str | None) -> dict[str, Any]:
    """Of each request, in plan order, whether it succeeded and the x-request-id it carried."""
    ids = None if prefix is None else [f"{prefix}{index}" for index in records.index.tolist()]
    return {"success": records.ok.tolist(), "request_ids": ids}


def write_result(path: Path, result: Mapping[str, Any], append: bool = False) -> None:
    """Write the result as one line of JSON; `append` puts it on a new line after what is there.

    A file is replaced whole or not at all, a pipe or a device is written to. Raises UsageError when the file
    cannot be written.
    """
    text = json.dumps(result, allow_nan=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not append and (path.is_file() or not path.exists()):
            files.write_text(path.resolve(), text)
            return
        with path.open("a", encoding="utf-8") as file:
            file.write("\n" + text if append and file.tell() else text)
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


def _strict(value: Any, nan: str | None = None) -> Any:
    """The value as strict JSON: NaN becomes null or what is given for it, an infinity its name."""
    if isinstance(value, msgspec.Struct):
        value = asdict(value)
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else percentile_name(key): _strict(item, nan)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_strict(item, nan) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return nan
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value
