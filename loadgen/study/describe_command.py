"""`loadgen data describe`: a workload in figures, words and pictures, and how far it is from another."""

from __future__ import annotations

import argparse
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Int64
from loadgen.base.block_hashes import SERVER_BLOCK, chain_hashes
from loadgen.base.clock import SECOND_NS
from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.parsing import Parser
from loadgen.base.passages import Curve, CurveStyle, Floats, Panel, Passage, print_passages
from loadgen.base.printing import print_json, print_text
from loadgen.base.tables import cut_middle, make_table
from loadgen.base.text import format_count
from loadgen.features.data.data_command import (
    add_workload_flags,
    describe_lengths,
    find_file_key,
    join_text,
    make_data_plan,
    split_options,
)
from loadgen.features.traces.trace_blocks import make_load_columns
from loadgen.features.traces.trace_formats import read_trace
from loadgen.figures.workloads import (
    NO_DELAY,
    SCALES_NS,
    ArrivalFigures,
    Fidelity,
    LoadColumns,
    ReuseFigures,
    SessionShape,
    WorkloadFigures,
    compare_measured,
    count_arrivals,
    count_requests,
    find_delays_ns,
    format_value,
    measure_workload,
)
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import UNKNOWN_LEN, PromptRequests, Turns
from loadgen.plan.request_sources import RandomStream, Seed
from loadgen.run.command.options import parse_words
from loadgen.run.live_display import choose_display
from loadgen.study.pages.document import Document, render_page
from loadgen.study.pages.outputs import write_text_output

_OWN = ("file", "against", "html", "json", "against_format")
_MOST_LETTERS = 24  # of a name in a legend
_STRETCHES = 120  # of the time, for arrivals
_MOST_POINTS = 500  # requests of each workload that are drawn by their two lengths
_RANKS = np.concatenate(([0.1, 0.5], np.arange(1, 100), [99.5, 99.9]))


class DescribedLoad(msgspec.Struct, frozen=True):
    """A workload and its figures, under a name that is short enough for a legend."""

    name: str
    load: LoadColumns
    figures: WorkloadFigures


def describe_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen data describe`; flags that are not given are absent from its result."""
    parser = Parser(
        prog="loadgen data describe",
        usage="%(prog)s [FILE] [AGAINST] [--html FILE] [FLAG ...]",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        description="Describe a trace, a data set or a planned workload: how arrivals vary over scales, "
        "lengths, what prefix caches of any size would reuse, sessions. AGAINST is the workload that FILE "
        "was made of: how far FILE is from it.",
        epilog="The other flags are those of `loadgen bench` for a workload, images aside. A trace is read "
        "whole unless one of them selects some of it.",
    )
    add = parser.add_argument
    add("file", nargs="?", metavar="FILE", help="a trace or a data set; without it, random prompts")
    add("against", nargs="?", metavar="AGAINST", help="another trace or data set, to compare with")
    add("--html", metavar="FILE", help="write one self-contained page with pictures; - for standard output")
    add("--json", action="store_true", help="print JSON")
    add("--against-format", metavar="NAME", help="format of a trace AGAINST, where its rows do not show it")
    add_workload_flags(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `loadgen data describe`: print the figures, or write the page; return the exit code 0.

    Raises UsageError. Nothing is sent.
    """
    values = parse_words(describe_parser(), argv, intermixed=True)
    asked = {name: values.pop(name) for name in _OWN if name in values}
    if asked.get("json") and asked.get("html") == "-":
        raise UsageError("--json and --html - both write to standard output: leave out one of them")
    if "against_format" in asked and "against" not in asked:
        raise UsageError("--against-format: name the file that FILE is compared with, too")
    options = split_options(values)
    with choose_display(quiet=False).waiting("reading"):
        described, compared = _describe_files(asked, values, options)
        passages = list_described_passages(described, compared)
    if asked.get("json"):
        fidelity = None if compared is None else compared.json()
        print_json({"workloads": [each.figures.json() for each in described], "fidelity": fidelity})
    elif asked.get("html") != "-":
        print_passages(passages)
    if "html" in asked:
        title = " against ".join(each.figures.name.partition(",")[0] for each in described)
        total = sum(each.figures.requests for each in described)
        page = render_page(Document(title, (f"{total:,} requests", "not sent"), tuple(passages)))
        print_text(write_text_output(asked["html"], page), sys.stdout, end="")
    return ExitCode.FIGURES


def _describe_files(
    asked: dict[str, Any], values: dict[str, Any], options: dict[str, Any]
) -> tuple[list[DescribedLoad], Fidelity | None]:
    """Measure FILE, and AGAINST if given, with how far FILE is from it, else None; raises UsageError."""
    files = [(asked.get("file"), values)]
    if "against" in asked:
        same = {name: value for name, value in values.items() if name != "trace_format"}
        form = {"trace_format": asked["against_format"]} if "against_format" in asked else {}
        files.append((asked["against"], {**same, **form}))
    loads = [read_load(file, own, options) for file, own in files]
    if empty := [load.name for load in loads if not len(load)]:
        raise UsageError(f"{empty[0]} has no request to describe")
    names = [cut_middle(load.name.partition(",")[0], _MOST_LETTERS) for load in loads]
    if len({*names}) < len(names):
        names = ["FILE", "AGAINST"]
    described = [
        DescribedLoad(name, load, measure_workload(load)) for name, load in zip(names, loads, strict=True)
    ]
    if "against" not in asked:
        return described, None
    own, other = ((each.load, each.figures) for each in described)
    return described, compare_measured(other, own)


def list_described_passages(described: Sequence[DescribedLoad], compared: Fidelity | None) -> list[Passage]:
    """List the passages of workloads: how far two are apart, pictures of all, and each one's figures."""
    passages = [] if compared is None else [compared.make_passage(described[1].name, described[0].name)]
    passages.append(Passage("Pictures", "pictures", panels=tuple(plot_workloads(described))))
    return passages + [
        Passage(each.figures.name, f"load-{number}", each.name, facts=tuple(list_parts(each.figures)))
        for number, each in enumerate(described, 1)
    ]


_PARTS = (0.5, 0.9)  # of what is reused, for which sizes are named


def list_parts(found: WorkloadFigures) -> Iterator[tuple[str, str]]:
    """Yield (label, text) of all that is known of a workload, and its notes."""
    yield "requests", f"{found.requests:,}"
    if found.arrivals is not None:
        yield "arrivals", describe_arrivals(found.arrivals)
        if found.arrivals.scales:
            scales = (f"{format_value(scale.index)} over {scale.window}" for scale in found.arrivals.scales)
            words = "variance / mean of the arrivals in a window (Poisson: 1)"
            yield "dispersion", f"{', '.join(scales)}: {words}"
    lengths = found.lengths
    yield "prompts", describe_lengths(lengths.input, found.requests, "known only to the server")
    yield "outputs", describe_lengths(lengths.output, found.requests, "as long as the model makes them")
    if lengths.rank_correlation is not None:
        yield "together", f"rank correlation of prompt and output {lengths.rank_correlation:+.2f}"
    if found.reuse is not None:
        yield "prefix reuse", _describe_reuse(found.reuse)
        if found.reuse.distances:
            low, middle, high = found.reuse.distances
            after = f"{middle:,.0f} other tokens (P10 {low:,.0f}, P90 {high:,.0f})"
            if found.reuse.gaps_s:
                low, middle, high = found.reuse.gaps_s
                after += f", {middle:,.4g} s (P10 {low:,.4g}, P90 {high:,.4g})"
            yield "reused after", after
    if found.sessions is not None:
        yield from _list_sessions(found.sessions)
    for note in found.notes:
        yield "note", note


def describe_arrivals(found: ArrivalFigures) -> str:
    """Return span, rate, instants and evenness of arrivals in words."""
    if found.rate_per_s is None:
        return "all at once"
    parts = [f"{found.span_s:,.1f} s, {found.rate_per_s:.4g} requests/s"]
    if found.grid_s:
        parts.append(f"{format_count(found.instants, 'instant')} on a grid of {found.grid_s:g} s")
    if found.gap_cv is not None:
        parts.append(f"coefficient of variation of the gaps {found.gap_cv:.2f} (Poisson: 1)")
    return "; ".join(parts)


def _describe_reuse(found: ReuseFigures) -> str:
    text = f"{100 * found.share:.1f} % of the prompt tokens, in a cache without a limit"
    if not found.share:
        return text
    parts = list[str]()
    for part in _PARTS:
        least = part * found.share - 1e-12
        reached = [size for size, share in zip(found.sizes, found.shares, strict=True) if share >= least]
        size = min(float(reached[0] if reached else found.sizes[-1]), found.unique_tokens)
        parts.append(f"{100 * part:.0f} % of it in {size:,.0f} tokens")
    measured = f"; of {100 * found.measured:.2g} % of the blocks" if found.measured < 1 else ""
    return f"{text} ({found.unique_tokens:,} tokens); {', '.join(parts)}, by last use (LRU){measured}"


def _list_sessions(found: SessionShape) -> Iterator[tuple[str, str]]:
    each = found.requests
    many = f"P50 {each.p50:,}, P90 {each.p90:,}, max {each.most:,} requests; mean {each.mean:,.1f}"
    if each.least == each.most:
        many = f"{format_count(each.most, 'request')} each"
    yield "sessions", f"{found.sessions:,}; {many}"
    if found.delays_s:
        low, middle, high = found.delays_s
        pauses = f"P10 {low:,.3g}, P50 {middle:,.3g}, P90 {high:,.3g} s before a request"
        yield "pauses", f"{pauses}; {found.delay_sum_s:,.0f} s in all"
    if len(found.by_depth) > 1:
        yield "by depth", ", ".join(f"{depth}: {count:,}" for depth, count in enumerate(found.by_depth))


def plot_workloads(described: Sequence[DescribedLoad]) -> tuple[Panel, ...]:
    """Return the panels of one or several workloads, without those that none has numbers for."""
    plots = (_plot_arrivals, _plot_lengths, _plot_reuse_and_sessions)
    panels = (panel for plot in plots for panel in plot(described))
    return tuple(panel for panel in panels if any(len(curve.x) for curve in panel.curves))


def _make_curve(name: str, points: tuple[Floats, Floats] | None, form: CurveStyle = CurveStyle.LINE) -> Curve:
    if points is None or not len(points[0]):
        return Curve("", np.zeros(0), np.zeros(0), form)
    return Curve(name, *points, form)


def _plot_arrivals(described: Sequence[DescribedLoad]) -> Iterator[Panel]:
    counted = (
        (each.name, None if each.load.times_ns is None else count_arrivals(each.load.times_ns, _STRETCHES))
        for each in described
    )
    rates = tuple(_make_curve(name, points, CurveStyle.STEPS) for name, points in counted)
    caption = f"Mean rate in each of {_STRETCHES} equal stretches."
    yield Panel("arrivals", "Arrivals over time", "s", "requests/s", rates, caption=caption)
    arrivals = ((each.name, each.figures.arrivals) for each in described)
    scales = [
        (name, [scale for scale in own.scales if scale.index > 0] if own is not None else [])
        for name, own in arrivals
    ]
    curves = []
    for name, own in scales:
        windows_s = np.array([SCALES_NS[scale.window] / SECOND_NS for scale in own])
        indices = np.array([scale.index for scale in own])
        curves.append(_make_curve(name, (windows_s, indices), CurveStyle.JOINED))
    drawn = np.concatenate([curve.x for curve in curves])
    if len(drawn):
        curves.append(Curve("Poisson", np.array([drawn.min(), drawn.max()]), np.ones(2)))
    rows = [
        (name, scale.window, f"{scale.windows:,}", format_value(scale.mean), format_value(scale.index))
        for name, own in scales
        for scale in own
    ]
    yield Panel(
        "dispersion", "Variation of arrivals over scales", "window, s", "variance / mean",
        tuple(curves), x_log=True, y_log=True,
        caption="Of the number of arrivals in windows of one width: 1 at all widths if they are independent.",
        numbers=make_table(("workload", "window", "windows", "mean", "index"), rows),
    )  # fmt: skip


def _plot_shares(key: str, title: str, unit: str, samples: Sequence[tuple[str, NDArray[Any]]]) -> Panel:
    """Make the panel of cumulative shares of each sample; an empty one has neither curve nor row."""
    curves = []
    for name, values in samples:
        ranks = np.percentile(values, _RANKS, method="inverted_cdf") if len(values) else np.zeros(0)
        curves.append(_make_curve(name, (ranks.astype(np.float64), _RANKS)))
    rows = [
        (name, *(f"{rank:,.6g}" for rank in np.percentile(values, (10, 50, 90, 99), method="inverted_cdf")))
        for name, values in samples
        if len(values)
    ]
    numbers = make_table(("workload", "P10", "P50", "P90", "P99"), rows)
    label = f"up to this many {unit}" if unit != "s" else "s"
    return Panel(key, title, label, "%", tuple(curves), x_log=True, y_top=100, numbers=numbers)


def _plot_lengths(described: Sequence[DescribedLoad]) -> Iterator[Panel]:
    prompts = [(each.name, each.load.input_lens) for each in described]
    outputs = [(each.name, each.load.output_lens) for each in described]
    for name, columns in (("prompt", prompts), ("output", outputs)):
        samples = [(load, lens[lens > 0]) for load, lens in columns]
        yield _plot_shares(f"{name}s", f"{name.capitalize()} lengths", "tokens", samples)
    curves, rows = [], []
    for each in described:
        places = np.flatnonzero((each.load.input_lens > 0) & (each.load.output_lens > 0))
        places = places[:: max(1, -(-len(places) // _MOST_POINTS))]
        lens = (each.load.input_lens[places], each.load.output_lens[places])
        points = (lens[0].astype(np.float64), lens[1].astype(np.float64))
        curves.append(_make_curve(each.name, points, CurveStyle.POINTS))
        rows += [
            (each.name, f"{count.input_from:,}", f"{count.output_from:,}", f"{count.requests:,}")
            for count in each.figures.lengths.counts
        ]
    yield Panel(
        "lengths", "Prompt and output lengths together", "prompt tokens", "output tokens",
        tuple(curves), x_log=True, y_log=True,
        caption=f"A point per request, of {_MOST_POINTS} at most. Numbers: all requests, by powers of two.",
        numbers=make_table(("workload", "prompt from", "output from", "requests"), rows),
    )  # fmt: skip


def _plot_reuse_and_sessions(described: Sequence[DescribedLoad]) -> Iterator[Panel]:
    shown = [(each.name, each.figures.reuse) for each in described]
    curves = [
        _make_curve(name, None if own is None else (own.sizes, 100 * own.shares)) for name, own in shown
    ]
    rows = [
        (name, f"{size:,.0f}", f"{100 * share:.2f}")
        for name, own in shown
        if own is not None
        for size, share in zip(own.sizes.tolist(), own.shares.tolist(), strict=True)
    ]
    numbers = make_table(("workload", "cache, tokens", "reused, %"), rows)
    yield Panel(
        "reuse", "Prefix reuse over the size of a cache", "tokens in the cache", "% of prompt tokens",
        tuple(curves), x_log=True, numbers=numbers,
        caption="Of a cache that drops the blocks that were used least recently, empty at first.",
    )  # fmt: skip
    sessions = [(each.name, each.load.sessions) for each in described]
    sizes = [(name, np.zeros(0) if own is None else count_requests(own)) for name, own in sessions]
    yield _plot_shares("sessions", "Requests of a session", "requests", sizes)
    pauses = [(each.name, find_delays_ns(each.load)) for each in described]
    samples = [(name, own[own > 0] / SECOND_NS) for name, own in pauses]
    yield _plot_shares("pauses", "Pauses before requests", "s", samples)


_LETTER_BYTES = 4  # of a token of English text, as OpenAI's guide has it
_BLOCK_BYTES = SERVER_BLOCK * _LETTER_BYTES
_ROOT = np.int64(0x2545_F491_4F6C_DD1D)
_ESTIMATED = (
    f"tokens of the prompts are estimated, a token for {_LETTER_BYTES} bytes: --tokenizer DIR counts them"
)
_IN_ORDER = "reuse is of one session after another: run together they use more between"
_AS_ANSWERS_COME = "requests are sent as responses come: arrivals are known of a run only"
_SESSIONS = "sessions have times, and their turns wait for responses: no arrivals of requests"


def read_load(file: str | None, values: dict[str, Any], options: dict[str, Any]) -> LoadColumns:
    """Read the columns of a file, of what the profile's keys `values` name, or of a plan of random prompts.

    A trace is read whole unless the keys select some of it; anything else is what a run would send. Raises
    UsageError.
    """
    if file is not None:
        values = {**values, find_file_key(file, values): file}
    if set(values) <= {"trace", "trace_format"} and "trace" in values and "profile" not in options:
        seed = options["seed"] if "seed" in options else Seed.draw().value
        form, path = values.get("trace_format", ""), values["trace"]
        form, rows = read_trace(form, path, (None, None), RandomStream(seed))
        return make_load_columns(rows, f"{_shorten(path)}, {form}")
    made = make_data_plan(values, options)
    return _collect_columns(made, options.get("tokenizer"))


def _shorten(path: str) -> str:
    return PurePath(path).name or path


def _collect_columns(made: Plan, tokenizer: str | None) -> LoadColumns:
    """Collect the columns of a plan; lengths are estimated of texts without a tokenizer, as a note says."""
    count = len(made)
    lens, starts, blocks = made.requests.input_lens[:count].copy(), array("q", [0]), []
    estimated = False
    total = 0
    for i, (own, length, exact) in enumerate(_list_prompt_blocks(made, tokenizer)):
        if lens[i] == UNKNOWN_LEN:
            lens[i], estimated = length, estimated or not exact
        blocks.append(own)
        total += len(own)
        starts.append(total)
    notes = list(made.notes)
    if estimated:
        notes.append(_ESTIMATED)
    if made.turns is not None:
        notes += [_IN_ORDER, *([_SESSIONS] if made.offsets_ns is not None and made.offsets_ns.any() else [])]
    if made.offsets_ns is None:
        notes.append(_AS_ANSWERS_COME)
    name = f"{_shorten(made.facts.file)}, {made.facts.kind}" if made.facts.file else made.facts.kind
    sessions = made.sessions if made.turns is None else made.turns.list_sessions()
    return LoadColumns(
        name,
        lens,
        made.requests.output_lens[:count],
        made.offsets_ns[:count] if made.offsets_ns is not None and made.turns is None else None,
        np.concatenate(blocks) if blocks else np.zeros(0, np.int64),
        np.frombuffer(starts, np.int64),
        SERVER_BLOCK,
        None if sessions is None else sessions[:count],
        None if made.turns is None else find_pauses_ns(made.turns)[:count],
        None if made.turns is None or made.turns.waits is None else made.turns.waits.depths[:count],
        tuple(notes),
    )


def find_pauses_ns(turns: Turns) -> Int64:
    """Return the pause before each turn (ns), int64[requests], NO_DELAY of those that wait for none."""
    pauses_ns = turns.delays_ns.copy()
    waiting = np.ones(len(pauses_ns), np.bool_)
    waiting[turns.begins[:-1]] = False
    if turns.waits is not None:
        waiting = np.diff(turns.waits.starts) > 0
    pauses_ns[~waiting] = NO_DELAY
    return pauses_ns


def _list_prompt_blocks(made: Plan, tokenizer: str | None) -> Iterator[tuple[Int64, int, bool]]:
    """Yield the hashes of each prompt's whole blocks, its length in tokens, and whether that is counted."""
    encode: Callable[..., list[int]] | None = None
    if tokenizer is not None:
        from loadgen.plan.tokenizers import load_tokenizer  # slow, and only text needs it

        encode = load_tokenizer(tokenizer, "auto").encode
    for i in range(len(made)):
        prompt = made.requests.prompt(i) if isinstance(made.requests, PromptRequests) else join_text(made, i)
        if isinstance(prompt, str) and encode is None:
            text = prompt.encode("utf-8", "surrogatepass")
            words = np.frombuffer(text[: len(text) // _BLOCK_BYTES * _BLOCK_BYTES], "<i8")
            yield _hash_blocks(words, _BLOCK_BYTES // 8), -(-len(text) // _LETTER_BYTES), False
            continue
        if isinstance(prompt, str):
            assert encode is not None
            prompt = encode(prompt, add_special_tokens=True)
        ids = np.array(prompt[: len(prompt) // SERVER_BLOCK * SERVER_BLOCK], np.int64)
        yield _hash_blocks(ids, SERVER_BLOCK), len(prompt), True


def _hash_blocks(words: NDArray[Any], width: int) -> Int64:
    """Hash each `width` words, int64[len(words) / width]."""
    columns = words.astype(np.int64).reshape(-1, width)
    hashes = np.full(len(columns), _ROOT)
    for column in columns.T:
        hashes = chain_hashes(hashes, np.ascontiguousarray(column))
    return hashes
