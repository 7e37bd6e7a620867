"""A serving-load benchmark client for LLM servers whose figures describe the server.

>>> import loadgen
>>> run = loadgen.bench("http://localhost:8000", profile="high-load")
>>> run.metrics.ttft.p99_ms, run.verdict.status
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.base.errors import LoadgenError
    from loadgen.features.shards.merge import merge
    from loadgen.figures.metrics import Metrics
    from loadgen.plan.profile import Profile
    from loadgen.report.run import Run, Verdict
    from loadgen.run.command.api import Interrupted, bench, bench_async, load
    from loadgen.study.audit.audit_command import Audit, audit
    from loadgen.study.compare_command import Comparison, compare
    from loadgen.study.limit_record import Limit
    from loadgen.study.quality.quality_command import quality
    from loadgen.study.quality.quality_record import Quality
    from loadgen.study.series.series_api import LimitInterrupted, SweepInterrupted, limit, sweep
    from loadgen.study.sweep_record import Sweep, SweptPoint

    __version__: str

_MODULES = {
    "loadgen.base.version": ("__version__",),
    "loadgen.study.compare_command": ("Comparison", "compare"),
    "loadgen.study.audit.audit_command": ("Audit", "audit"),
    "loadgen.study.series.series_api": ("LimitInterrupted", "SweepInterrupted", "limit", "sweep"),
    "loadgen.base.errors": ("LoadgenError",),
    "loadgen.figures.metrics": ("Metrics",),
    "loadgen.study.limit_record": ("Limit",),
    "loadgen.study.quality.quality_command": ("quality",),
    "loadgen.study.quality.quality_record": ("Quality",),
    "loadgen.features.shards.merge": ("merge",),
    "loadgen.report.run": ("Run", "Verdict"),
    "loadgen.study.sweep_record": ("Sweep", "SweptPoint"),
    "loadgen.run.command.api": ("Interrupted", "bench", "bench_async", "load"),
    "loadgen.plan.profile": ("Profile",),
}
__all__ = [
    "Audit", "Comparison", "Interrupted", "Limit", "LimitInterrupted", "LoadgenError", "Metrics", "Profile",
    "Quality", "Run", "Sweep", "SweepInterrupted", "SweptPoint", "Verdict",
    "audit", "bench", "bench_async", "compare", "limit", "load", "merge", "quality", "sweep",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """A public name, imported when it is first used: `loadgen --help` needs none of them."""
    from importlib import import_module

    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
