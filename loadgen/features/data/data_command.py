"""`loadgen data`: what a file, or a workload without one, would have sent; no server is asked."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from loadgen.base import parsing
from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS
from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.parsing import Parser, integer_between, parse_with
from loadgen.base.passages import Passage, print_passages
from loadgen.base.printing import print_text
from loadgen.base.text import clean_line, format_count, format_json, wrap_text
from loadgen.engines.engines import UNKNOWN
from loadgen.features.data import export_plan, row_kinds
from loadgen.features.data.conversations import RecordedTurns
from loadgen.plan import plan, profile, request_sources
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import UNKNOWN_LEN, LengthFacts, PromptRequests, Turns
from loadgen.plan.request_sources import TRACES, ModelTarget, Seed
from loadgen.plan.tokenizers import load_tokenizer
from loadgen.plan.trace_heads import is_trace
from loadgen.run.command.options import add_unlisted_flags, lay_over_lengths, parse_words
from loadgen.run.live_display import choose_display
from loadgen.settings import request_settings, setting, table

_OPTIONS = ("file", "json", "export_requests")
OPTIONS = ("tokenizer", "vocab_size", "model", "seed", "profile", "no_effect")  # no keys of a profile
_GROUPS = (setting.WORKLOAD, setting.SHAPES, setting.SESSIONS, setting.DATA, setting.LENGTHS, setting.TRACES)
_ANY_MODEL = "MODEL"
_ANY_API = ("openai", "openai-chat")
_EXAMPLE_LETTERS = 300


def data_parser(words: Mapping[str, str]) -> argparse.ArgumentParser:
    """Make the parser of `loadgen data`; flags that are not given are absent from its result.

    `words` are the commands that may stand in FILE's place, each with the question that it answers.
    """
    parser = Parser(
        prog="loadgen data",
        usage="%(prog)s [FILE] [FLAG ...]" + "".join(f"\n       %(prog)s {name} …" for name in words),
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        description="Show what a file holds as a run would send it: kind, rows, lengths, shared prefixes, "
        "arrivals, what is left out, and one request. Nothing is sent. Without FILE: random prompts.",
        epilog="The flags are those of `loadgen bench` for a workload, images aside. "
        + " ".join(f"`loadgen data {name}`: {question}" for name, question in words.items()),
    )
    add = parser.add_argument
    add("file", nargs="?", metavar="FILE", help="file to show, as --dataset-path or --trace reads it")
    add("--json", action="store_true", help="print JSON")
    add("--export-requests", metavar="FILE", help="write the requests as rows of JSON")
    add_workload_flags(parser)
    return parser


def main(argv: Sequence[str], words: Mapping[str, str]) -> int:
    """Run `loadgen data`: print the preview of the plan, and write --export-requests; return the exit code 0.

    `words` are as in `data_parser`. Raises UsageError. Nothing is sent.
    """
    values = parse_words(data_parser(words), argv, intermixed=True)
    asked = {name: values.pop(name) for name in _OPTIONS if name in values}
    options = split_options(values)
    if (file := asked.get("file")) is not None:
        values[find_file_key(file, values)] = file
    tokenizer = options.get("tokenizer")
    with choose_display(quiet=False).waiting("reading"):
        made = make_data_plan(values, options)
        counted = count_lens(made, tokenizer)
    preview = PlanPreview(made, counted)
    if asked.get("json"):
        print_text(format_json(preview.json(), indent=2), sys.stdout)
    else:
        print_passages([Passage("", facts=tuple(preview.list_parts()))])
        print_text("\n".join(preview.list_example()), sys.stdout)
    export_plan.export_and_print(made, asked.get("export_requests"), tokenizer, to_errors="json" in asked)
    return ExitCode.FIGURES


def add_workload_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a workload, its model and API, as `loadgen bench` has them."""
    add = parser.add_argument
    add("--tokenizer", metavar="DIR",
        help="directory or name of the model's tokenizer, which counts rows without a length")  # fmt: skip
    add("--vocab-size", type=integer_between(1, parsing.MOST_IDS), metavar="N",
        help="number of token ids that are drawn from")  # fmt: skip
    add("--model", metavar="NAME", help="the name that requests carry")
    apis = "{" + ",".join(request_settings.APIS) + "}"
    add("--backend", type=parse_with(request_settings.find_backend), metavar=apis,
        help="API of the requests (default: the one that takes them)")  # fmt: skip
    table.add_groups(parser, _GROUPS)
    add_unlisted_flags(parser)


def split_options(values: dict[str, Any]) -> dict[str, Any]:
    """Pop the options that are no keys of a profile from the flags' values, and return them."""
    return {name: values.pop(name) for name in OPTIONS if name in values}


def find_file_key(file: str, values: dict[str, Any]) -> str:
    """Return FILE's key, "trace" or "dataset_path", by flags or first row; raises UsageError for two."""
    for key in ("dataset_path", "trace"):
        if key in values:
            raise UsageError(f"{file} and --{key.replace('_', '-')} are two files: leave out one of them")
    if "dataset_name" in values:
        return "dataset_path"
    return "trace" if "trace_format" in values or is_trace(file) else "dataset_path"


def make_data_plan(values: dict[str, Any], options: dict[str, Any]) -> Plan:
    """Make the plan of a profile's keys and of the options given; raises UsageError.

    Without a backend among the keys it is for completions, or for chat if that refuses.
    """
    lay_over_lengths(values)  # to the lengths of the file's answers too
    name = options.get("profile")
    if name is not None and "," in name:
        raise UsageError("--profile: one profile at a time")
    workload = profile.build(values) if name is None else profile.load(name, values, flags=True)
    request_sources.check_files(workload)
    seed = Seed(options["seed"], chosen=True) if "seed" in options else Seed.draw()
    subject = ModelTarget(
        UNKNOWN,
        options.get("model", _ANY_MODEL),
        tokenizer=options.get("tokenizer"),
        vocab_size=options.get("vocab_size"),
        placeholder="model" not in options,
    )
    if "backend" in values:
        return plan.make(workload, subject, seed)
    refused: UsageError | None = None
    for backend in _ANY_API:
        try:
            return plan.make(workload.model_copy(update={"backend": backend}), subject, seed)
        except UsageError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def count_lens(made: Plan, tokenizer: str | None) -> Int64 | None:
    """Return all prompt tokens, unknown ones counted, int64[requests]; None if none is, or no tokenizer."""
    lens = made.requests.input_lens[: len(made)]
    if tokenizer is None or not (lens == UNKNOWN_LEN).any():
        return None

    encode = load_tokenizer(tokenizer, "auto").encode
    counted = [
        len(encode(join_text(made, i), add_special_tokens=True)) if known == UNKNOWN_LEN else known
        for i, known in enumerate(lens.tolist())
    ]
    return np.array(counted, np.int64)


def join_text(made: Plan, i: int) -> str:
    """Return the text of a request's prompt or messages, without what a chat template adds."""
    if isinstance(made.requests, PromptRequests):
        return str(made.requests.prompt(i))
    return row_kinds.read_body_text(made.body(i))


class PlanPreview(msgspec.Struct, frozen=True):
    """A plan to show before it is sent, and lengths that a tokenizer counted if the plan has none.

    `counted` is int64[requests]; None where nothing was counted.
    """

    made: Plan
    counted: Int64 | None = None

    @property
    def input(self) -> LengthFacts | None:
        """Statistics of the prompts' lengths, as planned or counted."""
        return self.made.facts.input if self.counted is None else LengthFacts.measure(self.counted)

    def list_example(self) -> Iterator[str]:
        """Yield the first request's body in lines of 80 columns."""
        yield "example"
        text = clean_line(self.made.body(0).decode("utf-8", "replace"))
        if (more := len(text) - _EXAMPLE_LETTERS) > 0:
            text = f"{text[:_EXAMPLE_LETTERS]}… and {more:,} characters more"
        yield from wrap_text(f"  {text}", "  ", break_words=True)

    def list_parts(self) -> Iterator[tuple[str, str]]:
        """Yield (label, text) of the preview: all that is known before it is sent, and notes."""
        made, facts = self.made, self.made.facts
        form = made.requests.format
        sent = "sent" if form == facts.kind else f"sent as {form}"
        yield "kind", f"{facts.kind}, {sent} to {made.path}"
        if facts.file:
            yield "file", f"{facts.file} ({facts.file_digest[:12]}), {format_count(facts.rows, 'row')}"
        trace = facts.kind in TRACES
        same = "with the prompt of an earlier one" if trace else "whose row an earlier one sends"
        again = f"; {facts.repeated:,} of them {same}" if facts.repeated else ""
        yield "requests", f"{len(made):,}{again}"
        if made.turns is not None:
            yield from _list_sessions(made.turns)
            yield from _list_agents(made.turns)
        if isinstance(made.requests, RecordedTurns):
            yield "recorded", ", ".join(f"{count:,} {what}" for what, count in made.requests.held.items())
        if facts.categories:
            counts = facts.count_categories(len(made)).items()
            yield "categories", ", ".join(f"{clean_line(name)} {count:,}" for name, count in counts)
        for why, count in facts.skipped.items():
            yield "left out", f"{format_count(count, 'row')}: {why}"
        if facts.clipped:
            yield "clipped", format_count(facts.clipped, "request")
        how = " (by the tokenizer, without its chat template)" if self.counted is not None else ""
        unknown = "known only to the server; --tokenizer DIR counts them here"
        yield "prompts", describe_lengths(self.input, len(made), unknown) + how
        yield "outputs", describe_lengths(facts.output, len(made), "as long as the model makes them")
        if facts.reuse is not None:
            of = "of the prompt tokens, in a cache that is empty at first and without a limit"
            yield "prefix reuse", f"{100 * facts.reuse:.1f} % {of}"
        yield "arrivals", _describe_arrivals(made)
        for note in made.notes:
            yield "note", note
        yield "plan", f"{made.digest()}, seed {made.seed.value}"

    def json(self) -> dict[str, Any]:
        """Encode the preview as JSON: times in seconds, lengths in tokens, null if unknown."""
        made, facts = self.made, self.made.facts
        lengths = {"input": self.input, "output": facts.output}
        apart = (*lengths, "categories", "category_of_row")
        return {
            **{name: value for name, value in msgspec.to_builtins(facts).items() if name not in apart},
            "categories": facts.count_categories(len(made)),
            "prompt_format": made.requests.format,
            "requests": len(made),
            **{f"{way}_tokens": msgspec.to_builtins(each) for way, each in lengths.items()},
            "reuse": facts.reuse,
            "arrivals": _summarize_gaps(made),
            "sessions": None if made.turns is None else _summarize_turns(made.turns),
            "agents": None if made.turns is None else _summarize_agents(made.turns),
            "recorded": dict(made.requests.held) if isinstance(made.requests, RecordedTurns) else None,
            "notes": list(made.notes),
            "seed": made.seed.value,
            "plan_digest": made.digest(),
            "example": msgspec.json.decode(made.body(0)),
        }


def _summarize_turns(turns: Turns) -> dict[str, Any]:
    counts, waits_ns = turns.counts, turns.delays_ns[turns.delays_ns > 0]
    return {
        "count": len(turns),
        "turns": {"least": int(counts.min()), "mean": float(counts.mean()), "most": int(counts.max())},
        "delays": {
            "count": len(waits_ns),
            "sum_s": float(waits_ns.sum()) / SECOND_NS,
            "mean_s": float(waits_ns.mean()) / SECOND_NS if len(waits_ns) else None,
            "most_s": float(waits_ns.max(initial=0)) / SECOND_NS,
        },
    }


def _summarize_agents(turns: Turns) -> dict[str, Any] | None:
    """Summarize roles, depths, lanes and tools for JSON; None without branches and times of tools."""
    waits = turns.waits
    if waits is None or not (turns.has_branches or waits.tool_ns is not None):
        return None
    named = [waits.role_names[role] for role in waits.roles.tolist()]
    lanes = np.maximum.reduceat(waits.lanes, turns.begins[:-1]) + 1
    return {
        "roles": dict(Counter(named)),
        "depths": dict(Counter(map(str, waits.depths.tolist()))),
        "most_lanes": int(lanes.max()),
        "joins": int(np.count_nonzero(np.diff(waits.starts) > 1)),
        "tools_s": None if waits.tool_ns is None else float(waits.tool_ns.sum()) / SECOND_NS,
    }


def _list_agents(turns: Turns) -> Iterator[tuple[str, str]]:
    found = _summarize_agents(turns)
    if found is None:
        return
    if turns.has_branches:
        roles = ", ".join(f"{clean_line(name)} {count:,}" for name, count in found["roles"].items())
        lines = f"{format_count(found['most_lanes'], 'line')} a session at most"
        joins = f"{found['joins']:,} {'waits' if found['joins'] == 1 else 'wait'} for several"
        yield "agents", f"{roles} requests; {lines}; {joins}"
    if found["tools_s"] is not None:
        yield "tools", f"{found['tools_s']:,.1f} s of the delays"


def _list_sessions(turns: Turns) -> Iterator[tuple[str, str]]:
    found = _summarize_turns(turns)
    each, delays = found["turns"], found["delays"]
    many = f"{each['mean']:.1f} turns each, {each['least']:,} to {each['most']:,}"
    if each["least"] == each["most"]:
        many = f"{format_count(each['most'], 'turn')} each"
    yield "sessions", f"{found['count']:,}; {many}"
    if not delays["count"]:
        yield "delays", "none: a turn is due at the end of the response before it"
        return
    mean, most = (
        f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" for value in (delays["mean_s"], delays["most_s"])
    )
    times = f"{mean} s on average, {most} s at most, {delays['sum_s']:,.1f} s in all"
    yield "delays", f"{delays['count']:,} of {turns.begins[-1]:,} turns wait, {times}"


def describe_lengths(lengths: LengthFacts | None, requests: int, unknown: str) -> str:
    """Return lengths in words, with how many of the requests have none; `unknown` if all have none."""
    if lengths is None:
        return unknown
    if lengths.least == lengths.most:
        text = f"{format_count(lengths.most, 'token')} each"
    else:
        text = (
            f"P50 {lengths.p50:,}, P90 {lengths.p90:,}, P99 {lengths.p99:,}, max {lengths.most:,} tokens; "
            f"mean {lengths.mean:,.1f}, sd {lengths.sd:,.1f}, min {lengths.least:,}"
        )
    missing = requests - lengths.known
    return text + (f"; of {missing:,} {unknown}" if missing else "")


def _summarize_gaps(made: Plan) -> dict[str, Any] | None:
    """Summarize due times for JSON: span, rate, distinct instants, evenness; None: not planned."""
    offsets_ns = made.offsets_ns
    if offsets_ns is None:
        return None
    gaps_ns = np.diff(offsets_ns)
    span_s = float(offsets_ns[-1] - offsets_ns[0]) / SECOND_NS if len(offsets_ns) else 0.0
    mean_ns = float(gaps_ns.mean()) if len(gaps_ns) else 0.0
    return {
        "span_s": span_s,
        "rate_per_s": len(gaps_ns) / span_s if span_s else None,
        "instants": len(np.unique(offsets_ns)),
        "gap_cv": float(gaps_ns.std()) / mean_ns if mean_ns else None,
    }


def _describe_arrivals(made: Plan) -> str:
    """Describe when requests, or sessions, are due: by users, as answers come, at once, or over a span."""
    what = "requests" if made.turns is None else "sessions"
    gaps, schedule, limit = _summarize_gaps(made), made.facts.schedule, made.profile.max_concurrency
    if made.profile.users is not None:
        period_s = 1 / (made.profile.user_rate or 1)
        return f"{format_count(made.profile.users, 'user')}, each with a turn due every {period_s:.4g} s"
    at_most = "" if limit is None else f", {limit} at a time at most"
    if gaps is None:
        sessions = "" if made.turns is None else "sessions "
        return f"{sessions}as responses come, {'at most ' * made.profile.stepped}{limit} at a time"
    if gaps["rate_per_s"] is None:
        return f"all at once{at_most}"
    parts = [f"{gaps['span_s']:,.1f} s, {gaps['rate_per_s']:.4g} {what}/s"]
    if schedule is not None:
        parts[0] = f"{schedule.format}, {parts[0]}"
        parts.append(f"{schedule.instants:,} instants in the file")
        if schedule.grid_s:
            spread = "spread over it" if schedule.spread else "sent as bursts: --trace-jitter uniform spreads"
            parts.append(f"a grid of {schedule.grid_s:g} s, {spread}")
    parts.append(f"coefficient of variation of the gaps {gaps['gap_cv']:.2f} (Poisson: 1)")
    return "; ".join(parts) + at_most
