"""Explain command: `loadgen explain`, a page of text on why a run's TTFT and ITL are what they are."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from loadgen.base.clock import MS_NS
from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.printing import print_text
from loadgen.base.tables import render_text_table
from loadgen.base.text import clean_text, format_count, wrap_text
from loadgen.features.attribution.attribution import Attribution, PartRows
from loadgen.features.attribution.attribution_section import (
    BEYOND_ITL,
    BEYOND_TTFT,
    CAUSE,
    TYPICAL,
    WaitColumn,
    describe_means,
    describe_shares,
    find_attribution,
    format_ms,
    format_share,
    list_part_times,
    list_reasons,
    list_remedies,
    make_mean_column,
    make_wait_table,
    mean_ms,
    rank_part_times,
)
from loadgen.figures.metrics import Metrics
from loadgen.report import report, run_directory, run_lines, run_writer
from loadgen.report.result_block import find_layout
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions
from loadgen.verdict.verdict import state_verdict


def explain_parser() -> argparse.ArgumentParser:
    """Make the argument parser of `loadgen explain`."""
    parser = Parser(
        prog="loadgen explain",
        usage="loadgen explain DIR",
        allow_abbrev=False,
        description="Explain in a page why TTFT and ITL of a run are what they are: which part of typical "
        "and of slow tokens is the client's, the network's, the server's or the engine's, how that is known, "
        "what is unknown, and what to do. Of a directory that holds several runs, say in a few lines of each "
        "what its tails mostly are.",
    )
    parser.add_argument("place", metavar="DIR", type=Path, help="a run directory, or one with runs below it")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `loadgen explain`, print the page, and return the exit code."""
    parser = explain_parser()
    if {"-h", "--help"} & set(argv):
        parser.print_help()
        return ExitCode.FIGURES
    place: Path = parse_arguments(parser, argv).place
    runs = run_directory.find_runs(place)
    first, second = next(runs, place), next(runs, None)
    if second is None:
        _print(explain_run(_load(first)))
        return ExitCode.FIGURES
    explained = [_summarize(path) for path in chain((first, second), runs)]
    if not any(explained):
        raise UsageError(f"{place}: none of its {len(explained)} runs can be read")
    _print(["loadgen explain RUN_DIR explains one of them in a page"])
    return ExitCode.FIGURES


def _load(path: Path) -> Result:
    run = run_directory.load(path)
    run_writer.check_pair(path, run)
    return run


def _summarize(path: Path) -> bool:
    """Print a few lines on a run, or on the standard error why it cannot be read; return whether it can."""
    try:
        run = _load(path)
    except UsageError as error:
        print_text(f"loadgen: {clean_text(str(error))}", sys.stderr)
        return False
    _print([f"{path}:", *summarize_run(run)])
    return True


def _print(lines: Iterable[str]) -> None:
    print_text(clean_text("\n".join(lines)), sys.stdout)


_EXAMPLES, _LARGEST, _SMALL = 3, 3, 0.01  # waits that are shown one by one, the parts of each, those left out
_DOUBTED = 0.05  # of a tail's time: from there on it matters that it is unknown
_MOST_REMEDIES = 4
_MIDDLE = (25, 75)  # percentiles between which a first token is typical


def explain_run(run: Result) -> Iterator[str]:
    """Yield the lines of the page, at most 80 columns wide; a line says why there is no more to explain."""
    options = ReportOptions(False, find_layout(None))
    described = (*run_lines.describe_state(run, options), *run_lines.describe_server(run, options))
    for line in (*described, _describe_verdict(run)):
        yield from wrap_text(line)
    found = find_attribution(run)
    if found is None:
        yield from wrap_text(_explain_absence(run))
        return
    yield ""
    yield from wrap_text(
        f"{_describe_ttft(run.metrics, found)}. By part, from when a request was due until its first token:"
    )
    ttft_ns = found.ttft.after_sent_ns
    low, high = np.percentile(ttft_ns, _MIDDLE).tolist()
    yield from _draw(
        found.ttft,
        [
            WaitColumn("typical", found.ttft.select((ttft_ns >= low) & (ttft_ns <= high))),
            *([make_mean_column("mean of all", found)] if found.mean_ttft is not None else []),
            WaitColumn(BEYOND_TTFT, found.tail_ttft),
        ],
    )
    yield from _show_examples(run, "the slowest first tokens", found.ttft)
    yield ""
    yield from wrap_text(f"{_describe_itl(run.metrics, found)}{'. By part:' if len(found.gaps) else ''}")
    yield from _draw(found.gaps, [WaitColumn(BEYOND_ITL, found.gaps)])
    yield from _show_examples(run, "the longest gaps", found.gaps)
    yield ""
    yield from _list("how each part is known", list_reasons(found))
    for line in describe_means(run.facts, found):
        yield from wrap_text(line)
    yield from _list("what is unknown, and what would show it", _list_unknown(run, found))
    yield from _list("what to do", _list_advice(found))


def summarize_run(run: Result) -> Iterator[str]:
    """Yield a few lines of 80 columns on a run: its verdict, its tails, and what they mostly are."""
    found = find_attribution(run)
    lines = [_explain_absence(run)] if found is None else [_describe_ttft(run.metrics, found)]
    lines += [] if found is None else [_describe_itl(run.metrics, found)]
    for line in (_describe_verdict(run), *lines):
        yield from wrap_text(f"  {line}", indent="    ")


def _describe_verdict(run: Result) -> str:
    reasons = ", ".join(run.verdict.reasons)
    return f"verdict: {state_verdict(run.verdict)}{f': {reasons}' if reasons else ''}"


def _explain_absence(run: Result) -> str:
    if not len(run.records) or not run.records.sent.any():
        return "no request was sent: there is nothing to explain"
    if not run.records.ok.any():
        return report.explain_unmeasured(run)
    return "no times of tokens: responses were not streamed, or no tokens arrived (see the verdict)"


def _describe_ttft(metrics: Metrics, found: Attribution) -> str:
    ttft = metrics.ttft
    return (
        f"TTFT: median {format_ms(ttft.median_ms)} ms, P99 {format_ms(ttft.p99_ms)} ms of "
        f"{format_count(ttft.n, 'request')}; {_describe_tail(found.tail_ttft)}"
    )


def _describe_itl(metrics: Metrics, found: Attribution) -> str:
    if not len(found.gaps):
        return "ITL: no gap beyond P99: too few chunks"
    typical_ms, threshold_ms = found.typical_ns / MS_NS, found.threshold_ns / MS_NS
    return (
        f"ITL: median {format_ms(typical_ms)} ms, P99 {format_ms(threshold_ms)} ms of {metrics.itl.n:,} "
        f"gaps; {_describe_tail(found.gaps)}"
    )


def _describe_tail(tail: PartRows) -> str:
    if not tail.is_long:
        return "those beyond P99 are hardly longer than the median"
    return f"beyond P99: {describe_shares(tail, 1)}"


def _draw(rows: PartRows, columns: Sequence[WaitColumn]) -> Iterator[str]:
    if len(rows):
        table = make_wait_table([column for column in columns if len(column.rows)])
        yield from render_text_table(table).splitlines()


def _show_examples(run: Result, title: str, waits: PartRows) -> Iterator[str]:
    """Yield a title and the three longest waits, each with its largest parts; nothing without waits."""
    order = np.argsort(-waits.whole_ns, kind="stable")[:_EXAMPLES]
    if len(order):
        yield f"{title}:"
    for row in order.tolist():
        index = run.records.index[waits.request[row]]
        one = waits.select(np.array([row]))
        times = [time for time in rank_part_times(one) if time.share >= _SMALL]
        parts = " + ".join(f"{time.part.label} {format_ms(time.mean_ms)}" for time in times[:_LARGEST])
        left = len(list_part_times(one)) > len(times[:_LARGEST])
        message = f", chunk {int(one.message[0]) + 1}" if one.message[0] else ""
        text = f"  request {index}{message}: {format_ms(mean_ms(one))} ms = {parts}{' + …' if left else ''}"
        yield from wrap_text(text, indent="    ")


def _list(title: str, items: Iterator[str]) -> Iterator[str]:
    lines = [line for item in items for line in wrap_text(f"  - {item}", indent="    ")]
    if lines:
        yield f"{title}:"
        yield from lines


def _list_unknown(run: Result, found: Attribution) -> Iterator[str]:
    """Yield how much of each tail is unknown if that matters, then what would show more."""
    shares = [(name, tail.share("unknown")) for name, tail in found.tails]
    unknown = [(name, share) for name, share in shares if share >= _DOUBTED]
    if not unknown:
        return
    yield ", ".join(f"{format_share(share)} of the time beyond P99 {name}" for name, share in unknown)
    yield from list_remedies(run.facts, found)


def _list_advice(found: Attribution) -> Iterator[str]:
    """Yield the remedies of the parts that are a fifth or more of a long tail, the largest first."""
    advised: dict[str, str] = {}
    for name, tail in found.tails:
        for time in rank_part_times(tail) if tail.is_long else ():
            if time.share >= CAUSE and time.part.key not in TYPICAL and time.part.remedy:
                where = f"{format_share(time.share)} of the time beyond P99 {name}"
                advised.setdefault(time.part.remedy, f"{time.part.label}, {where}: {time.part.remedy}")
    yield from list(advised.values())[:_MOST_REMEDIES]
