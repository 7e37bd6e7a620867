"""Page: each bar with its measurement, as Markdown."""

from __future__ import annotations

import os
import platform
import statistics
import timeit
from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.host.environment import describe_machine


@dataclass(frozen=True)
class Bar:
    """A promised limit: `met` is None where it could not be measured, and `measured` is then the reason."""

    what: str
    measured: str
    limit: str
    met: bool | None

    @property
    def verdict(self) -> str:
        return {True: "met", False: "**missed**", None: "not run"}[self.met]


@dataclass(frozen=True)
class Section:
    """One benchmark: its bars, and Markdown with details."""

    title: str
    bars: Sequence[Bar] = ()
    lines: Sequence[str] = ()
    faults: Sequence[str] = ()  # what could not run at all


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; columns after the first are right-aligned."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in (head, rule, *rows)]


def bars(sections: Sequence[Section]) -> list[str]:
    """Every bar of every section, one row each."""
    rows = [(bar.what, bar.measured, bar.limit, bar.verdict) for section in sections for bar in section.bars]
    return markdown(("bar", "measured", "limit", ""), rows)


def document(sections: Sequence[Section], repeats: int, missing: Sequence[str]) -> str:
    """The whole page."""
    lines = [
        "# Benchmarks",
        "",
        f"Written by one run of `python benchmarks/run.py`; figures are medians (repeats: {repeats})."
        " The clients take turns, each a new process against a new null server."
        " CPU is that of a client's process tree, start-up and decoding included; the *floor*"
        " (`benchmarks/clients/floor.c`) reads the same streams and discards the bytes."
        " *True* figures are from the server's log of the same run."
        " `benchmarks/README.md` describes each section, and what was measured since.",
        "",
        "## Every bar",
        "",
        *bars(sections),
    ]
    for section in sections:
        lines += ["", f"## {section.title}", "", *section.lines]
        lines += [f"- could not run: {fault}" for fault in section.faults]
    lines += ["", "## Machine", "", *_machine()]
    if missing:
        lines += ["", "Not run here:", "", *(f"- {reason}" for reason in missing)]
    return "\n".join(lines) + "\n"


def _loop_s() -> float:
    """Seconds that ten million steps of an empty loop take this interpreter: the best of five."""
    return min(timeit.repeat("for _ in steps: pass", "steps = range(10_000_000)", number=1, repeat=5))


def _machine() -> list[str]:
    facts = describe_machine()
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    rows = (
        (
            "machine",
            f"{facts['cpu']}, {facts['cpus']} CPUs usable, {facts['machine']}, {platform.system()} "
            f"{platform.release().partition('-')[0]}",
        ),
        (
            "versions",
            f"{facts['python']}, numpy {facts['numpy']}, msgspec {facts['msgspec']}, "
            f"httptools {facts['httptools']}",
        ),
        ("ten million steps of an empty loop in Python", f"{_loop_s():.2f} s"),
        ("load average (1, 5, 15 min)", load),
    )
    return markdown(("", ""), rows)


def spread(values: Sequence[float], form: str) -> str:
    """The median, and the range where there are several values."""
    middle = form.format(statistics.median(values))
    if len(values) < 2:
        return middle
    return f"{middle} ({form.format(min(values))}–{form.format(max(values))})"
