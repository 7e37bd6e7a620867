"""Reported runs for the tests of comparing: made up, or the published pages' figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from builders import published_runs
from loadgen.facts.run_facts import Cell
from loadgen.report.load_identity import Load
from loadgen.study.run_summary import FailedCell, Reported

PUBLISHED = Path(__file__).parents[1] / "data" / "published"
HIGH = Load(
    name="high-load", requests=100, input_len=2048.0, output_len=128.0, asked_output_len=128,
    max_concurrency=8, request_rate_per_s=float("inf"),
)  # fmt: skip
_KEYS = (
    "completed", "total_input_tokens", "total_output_tokens", "output_throughput", "mean_ttft_ms",
    "mean_tpot_ms",
)  # fmt: skip


def told(name: str, **figures: Any) -> Reported:
    """A run of a page, with these figures alone."""
    load = figures.pop("load", Load(input_len=100.0, output_len=10.0))
    return Reported(name=name, figures=figures, load=load, source="a page", told_by="page")


def run(name: str, throughput: float, load: Load = HIGH, **told: Any) -> Reported:
    """A run with that throughput, and latencies that go with it."""
    figures = {
        "completed": load.requests,
        "total_input_tokens": round((load.requests or 0) * (load.input_len or 0)),
        "total_output_tokens": round((load.requests or 0) * (load.output_len or 0)),
        "output_throughput": throughput,
        "mean_ttft_ms": 1e5 / throughput,
        "mean_tpot_ms": 8e3 / throughput,
        **told.pop("figures", {}),
    }
    return Reported(name, figures, load, told.pop("source", f"{name}/{throughput}"), **told)


def runs(name: str, throughputs: Sequence[float], load: Load = HIGH, **told: Any) -> list[Reported]:
    """One run after the other, the k-th with the k-th prompts."""
    return [
        run(name, throughput, load, plan_digest=f"plan-{k}", **told)
        for k, throughput in enumerate(throughputs)
    ]


def cells(name: str, throughputs: Sequence[float], load: Load = HIGH, **told: Any) -> list[Reported]:
    """The same in a campaign that starts the server anew for each repeat."""
    server = told.pop("server", "vllm")
    return [
        replace(one, cell=cell(name, repeat, server, load.name))
        for repeat, one in enumerate(runs(name, throughputs, load, **told))
    ]


def cell(name: str, repeat: int, server: str = "vllm", profile: str = "high-load", start: str = "") -> Cell:
    """A place in a campaign; each repeat has a start of its own unless one is named."""
    return Cell(
        campaign="thor", checkpoint=name, server=server, profile=profile, repeat=repeat,
        start=start or f"r{repeat}",
    )  # fmt: skip


def failed(name: str, reason: str, repeat: int = 0, profile: str = "high-load") -> FailedCell:
    """A cell that came to nothing."""
    return FailedCell(cell=cell(name, repeat, profile=profile), reason=reason)


def thor() -> Iterator[Reported]:
    """The Jetson Thor page's blocks, with the figures that are compared."""
    for one in published_runs.thor():
        load = replace(one.load, name=one.load.name.removesuffix(" load"))
        figures = {key: one.figures[key] for key in _KEYS}
        yield replace(one, figures=figures, load=load, source="thor.csv", file="", machine="Jetson Thor")
