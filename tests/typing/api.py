"""How the public API is used, for the type checker: this file is never run."""

from __future__ import annotations

import asyncio

import numpy as np
from numpy.typing import NDArray

import loadgen


def figures(run: loadgen.Run) -> tuple[float, float, float, str]:
    metrics: loadgen.Metrics = run.metrics
    p99_ms: float = metrics.ttft.p99_ms
    throughput: float = metrics.output_throughput_per_s
    verdict: loadgen.Verdict = run.verdict
    names: list[str] = [doubt.name for doubt in verdict.doubts if doubt.severity != "note"]
    return p99_ms, throughput, metrics.itl.std_ms, f"{verdict.status} {names}"


def blocking() -> loadgen.Run:
    run: loadgen.Run = loadgen.bench(
        base_url="http://localhost:8000",
        profile="high-load",
        request_rate=4,
        max_concurrency=None,
        num_prompts=100,
        input_len=1024,
        output_len=128,
        seed=1,
        model="m",
        api_key="k",
        transport="wire",
        max_failures="5%",
        request_timeout=60.0,
    )
    columns: dict[str, NDArray[np.int64]] = run.requests()
    print(columns["ttft_ns"].mean(), run.report(explain=True))
    return run


async def awaited() -> list[loadgen.Run]:
    try:
        return [await loadgen.bench_async(profile=loadgen.Profile(input_len=8), preset="instant")]
    except loadgen.Interrupted as stopped:
        return [stopped.run] if stopped.run is not None else []


def stored() -> str:
    before, after = loadgen.load("runs/a"), loadgen.load("runs/b")
    try:
        comparison: loadgen.Comparison = loadgen.compare({"before": [before], "after": after}, margin=0.01)
        audit: loadgen.Audit = loadgen.audit([before, "page.md"], hardware="4xh100")
        return comparison.text() + "".join(run.verdict.status for run in audit.runs)
    except loadgen.LoadgenError as error:
        return error.summary


def held() -> float:
    quality: loadgen.Quality | None = loadgen.quality("http://localhost:8001", "ref.jsonl.gz", tokens=500)
    return quality.kl.mean if quality is not None and quality.kl is not None else 0.0


loadgen.bench(num_prompts="many")  # type: ignore[arg-type]
loadgen.bench(number_of_prompts=3)  # type: ignore[call-arg]
asyncio.run(awaited())


def searched() -> tuple[float | None, list[loadgen.Run | None]]:
    sweep: loadgen.Sweep = loadgen.sweep(
        "http://localhost:8000", "high-load", concurrency=[1, 2, 4], vary={"input_len": [512, 2048]}, seed=1
    )
    limit: loadgen.Limit = loadgen.limit(slo="ttft p99 < 500ms", over="rate", within=0.1, run_dir="runs")
    loadgen.compare({"before": "runs/a", "after": limit})
    return limit.value, [point.run for point in sweep.points if point.state == "done"]


loadgen.sweep(concurrency=3)  # type: ignore[arg-type]
loadgen.limit(slo=0.5)  # type: ignore[arg-type]


def shards(directories: list[str], last: loadgen.Run) -> float:
    whole: loadgen.Run = loadgen.merge([*directories, last])
    return whole.metrics.output_throughput_per_s
