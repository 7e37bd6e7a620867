"""Block: the "Serving Benchmark Result" text, from figures under vLLM's result keys.

A layout is data: rows and sections that name a key. A row whose figure is absent is left out, so
the figures alone decide what is printed, whether they come from Metrics or from someone's file.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.parsing import suggest_name
from loadgen.figures.figure_table import SELECTABLE
from loadgen.figures.metrics import Figures


class BlockRow(msgspec.Struct, frozen=True):
    """One line of the block, printed if its figure is a number (`positive`: above 0; `text`: or a word)."""

    label: str
    key: str
    spec: str = ""
    positive: bool = False
    text: bool = False
    none: str = ""  # printed if the figure is there and null
    rule: str = ""  # the header above it


class BlockSection(msgspec.Struct, frozen=True):
    """The block's section of one metric: a header, then its mean, median and every percentile."""

    header: str
    name: str
    key: str
    most: bool = False  # its largest value too
    unit: str = "ms"  # of a latency, which its keys end with; a speed's keys have no unit
    extra: bool = False  # printed only where it is asked for by its name


class Layout(msgspec.Struct, frozen=True):
    """The rows, sections and percentiles of one form of the block, as of a vLLM or SGLang version."""

    title: str
    rows: tuple[BlockRow, ...]
    sections: tuple[BlockSection, ...]
    percentiles: tuple[float, ...] = ()  # not those that were asked for; then all sections are shown too
    width: int = 50
    label_width: int = 40
    value_width: int = 10


_VLLM_0_32 = Layout(
    title=" Serving Benchmark Result ",
    rows=(
        BlockRow("Successful requests:", "completed"),
        BlockRow("Failed requests:", "failed"),
        BlockRow("Maximum request concurrency:", "max_concurrency"),
        BlockRow("Request rate configured (RPS):", "request_rate", ".2f"),
        BlockRow("Benchmark duration (s):", "duration", ".2f"),
        BlockRow("Total input tokens:", "total_input_tokens"),
        BlockRow("Total generated tokens:", "total_output_tokens"),
        BlockRow("Request throughput (req/s):", "request_throughput", ".2f"),
        BlockRow("Request goodput (req/s):", "request_goodput", ".2f"),
        BlockRow("Output token throughput (tok/s):", "output_throughput", ".2f"),
        BlockRow("Peak output token throughput (tok/s):", "max_output_tokens_per_s", ".2f"),
        BlockRow("Peak concurrent requests:", "max_concurrent_requests", ".2f"),
        BlockRow("RTFx (Inverse Real-Time Factor):", "rtfx", ".2f", positive=True),
        BlockRow("Total token throughput (tok/s):", "total_token_throughput", ".2f"),
    ),
    sections=tuple(
        BlockSection(
            figure.title,
            # Capitalised as vLLM's block does: E2EL per Token.
            re.sub(r"\b(?!(?:per|incl)\b)[a-z]", lambda first: first[0].upper(), figure.label),
            figure.key,
            unit=figure.unit,
            extra=figure.is_extra,
        )
        for figure in SELECTABLE.values()
    ),
)

# SGLang's clients print this in 2026; `Protocol` is the Rust one's. Ours retokenizes nothing: no such line.
_SGLANG = Layout(
    title=" Serving Benchmark Result ",
    rows=(
        BlockRow("Backend:", "backend", text=True),
        BlockRow("Protocol:", "protocol", text=True),
        BlockRow("Traffic request rate:", "request_rate", text=True),
        BlockRow("Max request concurrency:", "max_concurrency", none="not set"),
        BlockRow("Successful requests:", "completed"),
        BlockRow("Benchmark duration (s):", "duration", ".2f"),
        BlockRow("Total input tokens:", "total_input_tokens"),
        BlockRow("Total input text tokens:", "total_input_text_tokens"),
        BlockRow("Total input vision tokens:", "total_input_vision_tokens", positive=True),
        BlockRow("Total generated tokens:", "total_output_tokens"),
        BlockRow("Total generated tokens (retokenized):", "total_output_tokens_retokenized"),
        BlockRow("Request throughput (req/s):", "request_throughput", ".2f"),
        BlockRow("Input token throughput (tok/s):", "input_throughput", ".2f"),
        BlockRow("Output token throughput (tok/s):", "output_throughput", ".2f"),
        BlockRow("Peak output token throughput (tok/s):", "max_output_tokens_per_s", ".2f"),
        BlockRow("Peak concurrent requests:", "max_concurrent_requests"),
        BlockRow("Total token throughput (tok/s):", "total_token_throughput", ".2f"),
        BlockRow("Concurrency:", "concurrency", ".2f"),
        BlockRow("Accept length:", "accept_length", ".2f"),
        BlockRow("Request goodput (req/s):", "request_goodput", ".2f", rule="Goodput"),
    ),
    sections=(
        BlockSection("End-to-End Latency", "E2E Latency", "e2el"),
        BlockSection("Time to First Token", "TTFT", "ttft"),
        BlockSection("Time per Output Token (excl. 1st token)", "TPOT", "tpot"),
        BlockSection("Inter-Token Latency", "ITL", "itl", most=True),
    ),
    percentiles=(90.0, 95.0, 99.0),
)

DEFAULT_LAYOUT = "vllm-0.32"
LAYOUTS = {DEFAULT_LAYOUT: _VLLM_0_32, "sglang": _SGLANG}


def find_layout(name: str | None) -> Layout:
    """Find a block layout by name; None: the default. Raises UsageError with the nearest name."""
    layout = LAYOUTS.get(name or DEFAULT_LAYOUT)
    if layout is None:
        raise UsageError(
            f"--layout {name}: no such layout{suggest_name(str(name), LAYOUTS)}; there are "
            f"{', '.join(LAYOUTS)}"
        )
    return layout


def render_block(figures: Figures, layout: Layout = _VLLM_0_32, named: Collection[str] | None = None) -> str:
    """Render the block as text, trailing spaces kept, without a final newline.

    With `named`, the sections that vLLM does not have are printed only where their keys are in it.
    """
    lines = [layout.title.center(layout.width, "=")]
    for row in layout.rows:
        if (shown := _choose_value(figures, row)) is not None:
            if row.rule:
                lines.append(row.rule.center(layout.width, "-"))
            lines.append(_align_row(layout, row.label, *shown))
    for section in layout.sections:
        if section.extra and named is not None and section.key not in named:
            continue
        lines += _render_section(figures, layout, section)
    return "\n".join([*lines, "=" * layout.width])


def _choose_value(figures: Figures, row: BlockRow) -> tuple[float | str, str] | None:
    """Return a row's value and its format, or None if the row is left out."""
    value = figures.get(row.key)
    if row.text and isinstance(value, str | int | float):
        return str(value), ""
    if isinstance(value, int | float):
        return (value, row.spec) if value > 0 or not row.positive else None
    return (row.none, "") if row.none and row.key in figures else None


def _render_section(figures: Figures, layout: Layout, section: BlockSection) -> list[str]:
    """Render the lines of a section; [] if its mean is not known."""
    name = f"{section.key}_ms" if section.unit == "ms" else section.key
    if figures.get(f"mean_{name}") is None:
        return []
    statistics = [("Mean", f"mean_{name}"), ("Median", f"median_{name}")]
    pattern = re.compile(rf"p([\d.]+)_{name}")
    ranks = [(match[1], key) for key in figures if (match := pattern.fullmatch(key))]
    statistics += [(f"P{rank}", key) for rank, key in ranks]
    if section.most:
        statistics.append(("Max", f"max_{name}"))
    return [
        section.header.center(layout.width, "-"),
        *(
            _align_row(layout, f"{word} {section.name} ({section.unit}):", figures[key], ".2f")
            for word, key in statistics
            if isinstance(figures.get(key), int | float)
        ),
    ]


def _align_row(layout: Layout, label: str, value: float | str, spec: str) -> str:
    return f"{label:<{layout.label_width}} {value:<{layout.value_width}{spec}}"
