"""A serving-load benchmark client for LLM servers whose every figure was true of the server.

>>> import loadgen
>>> run = loadgen.session.bench("http://localhost:8000", profile="high-load")
>>> run.metrics.ttft.p99_ms, run.verdict.status
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.api import Audit, Comparison, Interrupted, audit, bench, bench_async, compare, load
    from loadgen.errors import LoadgenError
    from loadgen.metrics.metrics import Metrics
    from loadgen.results.run import Run, Verdict
    from loadgen.workload.profile import Profile

__version__ = "0.1.0"
__all__ = [
    "Audit",
    "Comparison",
    "Interrupted",
    "LoadgenError",
    "Metrics",
    "Profile",
    "Run",
    "Verdict",
    "audit",
    "bench",
    "bench_async",
    "compare",
    "load",
]
_MODULES = {
    "LoadgenError": "loadgen.errors",
    "Metrics": "loadgen.metrics.metrics",
    "Profile": "loadgen.workload.profile",
    "Run": "loadgen.results.run",
    "Verdict": "loadgen.results.run",
}


def __getattr__(name: str) -> object:
    """A public name, imported when it is first used: `loadgen --help` needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES.get(name, "loadgen.api")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
