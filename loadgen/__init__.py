"""A serving-load benchmark client for LLM servers whose every figure was true of the server.

>>> import loadgen
>>> run = loadgen.bench("http://localhost:8000", profile="high-load")
>>> run.metrics.ttft.p99_ms, run.verdict.status
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.analysis.api import Audit, Comparison, audit, compare
    from loadgen.campaign.api import LimitInterrupted, SweepInterrupted, limit, sweep
    from loadgen.errors import LoadgenError
    from loadgen.metrics.metrics import Metrics
    from loadgen.results.limit import Limit
    from loadgen.results.merge import merge
    from loadgen.results.run import Run, Verdict
    from loadgen.results.sweep import Sweep, SweptPoint
    from loadgen.session.api import Interrupted, bench, bench_async, load
    from loadgen.workload.profile import Profile

__version__ = "0.1.0"
_MODULES = {
    "analysis.api": ("Audit", "Comparison", "audit", "compare"),
    "campaign.api": ("LimitInterrupted", "SweepInterrupted", "limit", "sweep"),
    "errors": ("LoadgenError",),
    "metrics.metrics": ("Metrics",),
    "results.limit": ("Limit",),
    "results.merge": ("merge",),
    "results.run": ("Run", "Verdict"),
    "results.sweep": ("Sweep", "SweptPoint"),
    "session.api": ("Interrupted", "bench", "bench_async", "load"),
    "workload.profile": ("Profile",),
}
__all__ = [
    "Audit", "Comparison", "Interrupted", "Limit", "LimitInterrupted", "LoadgenError", "Metrics", "Profile",
    "Run", "Sweep", "SweepInterrupted", "SweptPoint", "Verdict",
    "audit", "bench", "bench_async", "compare", "limit", "load", "merge", "sweep",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """A public name, imported when it is first used: `loadgen --help` needs none of them."""
    from importlib import import_module

    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
