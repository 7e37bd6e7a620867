"""Calibration: how often a rule decides wrongly in thousands of simulations, as a page with its machine."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from benchmarks.harness.page import markdown
from benchmarks.simulated.populations import RUNS, describe_recorded
from loadgen.host.environment import describe_machine

_WHOLE = 10_000  # simulations a figure


@dataclass(frozen=True)
class Calibration:
    """A page of docs/: its head, and sections that are made with a number of simulations a figure."""

    page: Path
    head: Sequence[str]
    sections: Sequence[Callable[[int], Iterable[str]]]
    noun: str  # of what is simulated
    quick: int  # simulations a figure of --quick
    seed: int
    recorded: Sequence[Path] = (RUNS,)

    def run(self, argv: Sequence[str] | None, about: str) -> int:
        """Simulate, print the page, write it, and return 0."""
        parser = argparse.ArgumentParser(
            description=about, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        quick = f"{self.quick:,} {self.noun} a figure instead of {_WHOLE:,}; no page"
        parser.add_argument("--quick", action="store_true", help=quick)
        parser.add_argument(
            "--output", type=Path, help="where the page goes (default, unless --quick: docs/)"
        )
        options = parser.parse_args(argv)
        count, began = self.quick if options.quick else _WHOLE, time.perf_counter()
        parts = [section(count) for section in self.sections]
        lines = [*self.head, *(line for part in parts for line in ("", *part)), *self._describe(began)]
        page = "\n".join(lines) + "\n"
        print(page, end="")
        output = options.output or (None if options.quick else self.page)
        if output is not None:
            output.write_text(page, "utf-8")
        return 0

    def _describe(self, began: float) -> list[str]:
        from scipy import __version__ as scipy_version

        facts, took_s = describe_machine(), time.perf_counter() - began
        machine = (
            f"{facts['cpu']}, {facts['cpus']} CPUs usable; {facts['python']}, numpy {facts['numpy']}, scipy"
            f" {scipy_version}; {datetime.now(UTC):%Y-%m-%d}, {took_s:.0f} s, seed {self.seed}"
        )
        runs = (("real runs", describe_recorded(path)) for path in self.recorded)
        return [
            "",
            "## Machine",
            "",
            *markdown(("", ""), [("machine", machine), *runs]),
        ]


def find_interval(hits: NDArray[Any]) -> tuple[float, float]:
    """Find the 95 % interval of a share by Clopper and Pearson."""
    from scipy import stats

    interval = stats.binomtest(int(hits.sum()), hits.size).proportion_ci(0.95, method="exact")
    return float(interval.low), float(interval.high)
