"""Merge: the runs of the shards of one plan as the one run that they are together.

What is joined are arrivals, not figures: every figure, the verdict and the report are computed again from all
requests by plan index, so they are those of the same arrivals in one process.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadgen.base import files
from loadgen.base.arrays import Int64
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import Broken, ExitCode, UsageError, decide_exit_code, make_guarded
from loadgen.base.files import expand_path
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.printing import add_json_flag, print_one_object, print_text
from loadgen.base.text import list_first
from loadgen.facts.run_facts import (
    Calibration,
    Client,
    Error,
    Facts,
    Join,
    MergedShard,
    ShardFacts,
    list_annotations,
)
from loadgen.features.shards.shard_clocks import ClockShift, ClockSpan, find_shifts
from loadgen.records.journal import Parts
from loadgen.records.record import BOUNDS, UNKNOWN, Record, Records
from loadgen.report import report, result_block, run_directory, run_writer
from loadgen.report.run import Place, Run, find_failing
from loadgen.report.run_directory import Result
from loadgen.server.sample_file import KeptSamples, SampledSeries
from loadgen.transport.failure import Failure, FailureKind
from loadgen.transport.sending.job import join_digests

_UNKNOWN: Mapping[int, str] = {}
# Times of a clock, and the value of each that stands for none; the others are differences and counts.
_TIMES = {
    "intended_ns": 0,
    "sent_ns": 0,
    "end_ns": 0,
    "first_byte_ns": 0,
    "visible_ns": UNKNOWN,
    "text_ns": UNKNOWN,
}
_MOST_RANGES = 8  # that are named
_MOST_NAMED = 4  # different values of one fact that are listed
_PATHS = {"dataset_path", "trace", "prompt_corpus"}  # each machine's own; the plan's digest holds the content
Rule = Callable[[Sequence[Any], Sequence["ShardRun"]], Any]  # joins the values of one fact, of each run
_RUNS = "runs"


class _Part(msgspec.Struct, frozen=True):
    """One shard of the plan: its run, if it is known, and which requests were lost with it."""

    number: int
    of: int
    run: ShardRun | None  # None: it is missing
    lost: Int64  # plan indices
    why: str = ""  # that it lost requests, or is missing; "": nothing of it is lost


def merge(runs: Sequence[Run | Place]) -> Run:
    """Merge the shards of one plan, given as runs or as the directories that they left, into one run.

    Every figure, the verdict and the report are computed from the requests of all of them, named in any
    order, and are those of the same arrivals in one process. The requests of a shard that is missing, or was
    killed, count as lost. Raises LoadgenError where these are not the shards of one run.
    """
    if isinstance(runs, str | os.PathLike | Run) or not isinstance(runs, Iterable):
        raise UsageError("expected a list of runs or directories: write [run]")
    return Run(merge_results(read_shards(runs)))


def merge_results(
    named: Sequence[tuple[str, Result]], spill: Path | None = None, causes: Mapping[int, str] = _UNKNOWN
) -> Result:
    """Merge the results of shards, named by their places; raises UsageError.

    Long runs go to a file without a name in `spill`, by default where temporary files do. `causes` has why
    shards were lost, by their number, where that is known.
    """
    runs = check_shards(named)
    total = count_planned(runs[0].facts)
    return _join_parts(list(_list_parts(runs, total, causes)), runs, total, spill)


def check_shards(named: Sequence[tuple[str, Result]]) -> list[ShardRun]:
    """Return the shards in the order of their numbers; raises UsageError if they are not of one run."""
    if not named:
        raise UsageError("nothing to merge: name the run directories that the shards left")
    runs = list[ShardRun]()
    for place, result in named:
        if result.facts.shards:
            raise UsageError(f"{place} is merged already: name the run directories of the shards themselves")
        if (shard := result.facts.shard) is None:
            raise UsageError(f"{place} is not a shard: merge joins runs of `loadgen bench --shard I/N`")
        if shard.number >= shard.of:
            raise UsageError(
                f"{place}: result.json is damaged: there is no shard {shard.name}, they count from 0"
            )
        runs.append(ShardRun(place, result, shard))
    runs.sort(key=lambda run: run.shard.number)
    check_alike(runs)
    _check_apart(runs, count_planned(runs[0].facts))
    return runs


def read_shards(runs: Sequence[Run | Place]) -> list[tuple[str, Result]]:
    """Read the results of runs and directories, each with the place that names it; raises UsageError."""
    places = [Path(os.path.realpath(run)) if not isinstance(run, Run) else run for run in runs]
    for one, other in combinations(range(len(places)), 2):
        if places[one] == places[other]:
            raise UsageError(f"{_name_place(runs[other])} is named twice: name each shard once")
    return [
        (_name_place(run), run.result if isinstance(run, Run) else run_directory.load(Path(run)))
        for run in runs
    ]


def _name_place(run: Run | Place) -> str:
    if not isinstance(run, Run):
        return os.fspath(run)
    return str(run.directory or f"the run of {run.result.facts.started:%H:%M:%S}")


def _check_apart(runs: Sequence[ShardRun], total: int | None) -> None:
    """Raise UsageError if two runs hold one request, or a run one of another shard or beyond `total`."""
    for one, other in pairwise(runs):
        if one.shard.number == other.shard.number:
            raise UsageError(f"{one.place} and {other.place} are both {one.name}: name each shard once")
    every = np.concatenate([run.records.index for run in runs])
    if len(np.unique(every)) < len(every):
        for one, other in combinations(runs, 2):
            twice = np.intersect1d(one.records.index, other.records.index)
            if len(twice):
                which = format_ranges(twice)
                raise UsageError(f"{one.place} and {other.place} both hold requests {which}: one is damaged")
    for run in runs:
        index = run.records.index
        foreign = index[index % run.shard.of != run.shard.number]
        if len(foreign) and not run.shard.sessions:  # with those, the index alone does not say whose it is
            raise UsageError(
                f"{run.place} is {run.name} and holds requests of others: {format_ranges(foreign)}"
            )
        if total is not None and len(index) and index[-1] >= total:
            beyond = format_ranges(index[index >= total])
            raise UsageError(f"{run.place} holds requests {beyond} of a plan of {total}: it is damaged")


def _list_parts(runs: Sequence[ShardRun], total: int | None, causes: Mapping[int, str]) -> Iterator[_Part]:
    """Yield every shard of the plan; one that is missing or recovered has its lost requests, and why.

    `total` counts the planned requests (None: unknown, so none are listed as lost), `causes` has reasons by
    shard. With sessions all lost ones stand with the first such shard: indices do not say whose they are.
    """
    given, shard = {run.shard.number: run for run in runs}, runs[0].shard
    of, none = shard.of, np.zeros(0, np.int64)
    whole = {number for number, run in given.items() if not run.facts.recovered}
    left = np.ones(total or 0, np.bool_)  # the plan's requests that no shard has
    for run in runs if total is not None else ():
        left[run.records.index] = False
        if run.result.sessions is not None:
            left[run.result.sessions.dropped_indices(run.records)] = False
    unheld = np.flatnonzero(left)
    if shard.sessions:  # the index does not say whose a request is
        lost = {next((number for number in range(of) if number not in whole), 0): unheld}
        shared = of - len(whole) > 1
    else:
        ends = np.searchsorted(np.sort(unheld % of, kind="stable"), np.arange(of + 1))
        by_shard = unheld[np.argsort(unheld % of, kind="stable")]
        lost = {number: by_shard[begin:end] for number, (begin, end) in enumerate(pairwise(ends.tolist()))}
        shared = False
    for number in range(of):
        own = given.get(number)
        if number in whole:
            yield _Part(number, of, own, none)
            continue
        mine = lost.get(number, none)
        known = f"its {len(mine)} requests are lost" if own is None else f"{len(mine)} requests are lost"
        known = f"its share of {len(unheld)} requests is lost" if shared else known
        known = "how many requests are lost is not known" if total is None else known
        cause = f" ({causes[number]})" if number in causes else ""
        if own is None:
            none_planned = total is not None and number >= total and not shard.sessions
            why = "" if none_planned else f"shard {number}/{of} is missing: {known}{cause}"
        else:
            why = f"{own.name}: {own.facts.recovered}; {known}{cause}"
        yield _Part(number, of, own, mine, why)


def _join_parts(
    parts: Sequence[_Part], runs: Sequence[ShardRun], total: int | None, spill: Path | None
) -> Result:
    """Join the parts to one run on the clock of the first that sent anything; lost requests fail."""
    spans = [ClockSpan(run.shard, *measure_span_ns(run.records)) for run in runs]
    moved = dict(zip((run.shard.number for run in runs), find_shifts(spans), strict=True))
    began_ns = min(
        (span.begin_ns + moved[span.shard.number].offset_ns for span in spans if span.begin_ns), default=0
    )
    slots = parts[0].of * max(len(runs[0].facts.targets), 1)
    records = join_records(
        [(run.records, moved[run.shard.number].offset_ns) for run in runs],
        [Records.from_records(_make_lost(part, slots, began_ns)) for part in parts if len(part.lost)],
        spill,
    )
    facts = Facts(
        **join_facts(runs),
        requests=total if total is not None else max(len(records), 1),
        shards=tuple(_make_row(part, moved.get(part.number, ClockShift())) for part in parts),
        lost=(
            *(f"{run.name}: {line}" for run in runs for line in run.facts.lost),  # as one of its workers
            *(part.why for part in parts if part.why),
        ),
    )
    return Result(facts, records, _collect_samples(runs, moved))


def _make_row(part: _Part, shift: ClockShift) -> MergedShard:
    """Make what the merged run stores of a shard, its begin by the first one's clock (0: it sent nothing)."""
    run, records = part.run, Records.from_records([]) if part.run is None else part.run.records
    client, (began_ns, _) = None if run is None else run.facts.client, measure_span_ns(records)
    return MergedShard(
        number=part.number,
        of=part.of,
        requests=len(records) + len(part.lost),
        lost=part.why,
        began_ns=began_ns and began_ns + shift.offset_ns,
        offset_ns=shift.offset_ns,
        error_ns=shift.error_ns,
        reference=shift.reference,
        cores=0.0 if client is None else client.busy_cores,
        request_id_prefix=None if run is None or run.shard.sessions else run.facts.request_id_prefix,
    )


def _collect_samples(runs: Sequence[ShardRun], moved: Mapping[int, ClockShift]) -> KeptSamples:
    """Join the sampled series on one clock, each from the first shard that has it; an error only if empty."""
    series: dict[tuple[str, str], SampledSeries] = {}
    for run in runs:
        offset_ns = moved[run.shard.number].offset_ns
        for each in run.result.samples.series:
            at_ns = each.at_ns + offset_ns
            series.setdefault(
                (each.quantity, each.where), SampledSeries(each.quantity, each.where, at_ns, each.values)
            )
    error = next((run.result.samples.error for run in runs if run.result.samples.error), "")
    return KeptSamples(tuple(series.values()), "" if series else error)


def shift_records(records: Records, offset_ns: int) -> Iterator[Records]:
    """Yield records with a shift added to their times, a block of messages at a time; unchanged for 0."""
    if not offset_ns:
        yield records
        return
    for block in records.blocks():
        rows = slice(block.first, block.last)
        columns = {name: column[rows] for name, column in records.columns.items()}
        for name, unset in _TIMES.items():
            column = columns[name]
            columns[name] = np.where(column == unset, column, column + offset_ns)
        yield Records(
            **columns,
            start=block.start,
            **{**block.message_columns, "arrival_ns": block.arrival_ns + offset_ns},
            failures=records.failures[rows],
            finish_reasons=records.finish_reasons[rows],
            texts=records.texts[rows],
        )


def measure_span_ns(records: Records) -> tuple[int, int]:
    """Return when the first request was sent and the last ended (ns); 0 and 0 if none was sent."""
    sent = records.select(records.sent)
    return (int(sent.sent_ns.min()), int(sent.end_ns.max())) if len(sent) else (0, 0)


def join_records(
    shards: Sequence[tuple[Records, int]], lost: Sequence[Records], spill: Path | None = None
) -> Records:
    """Join the records of all shards, each with the ns to add to its times, and the lost ones, by plan index.

    Long ones go to a file without a name, in `spill` or the directory for temporary files. Raises UsageError
    where their times cannot be of one clock, or there is no room for them.
    """

    def parts() -> Iterator[Records]:
        for shard, offset_ns in shards:
            yield from shift_records(shard, offset_ns)
        yield from lost

    place = spill or Path(tempfile.gettempdir())
    try:
        records = Records.join(Parts(parts), place)
    except OSError as error:
        why = error.strerror or error
        raise UsageError(
            f"cannot merge in {place}: {why}; choose an --output with room, or set TMPDIR"
        ) from None
    for name in _TIMES:
        low, high = BOUNDS[name]
        column = getattr(records, name)
        if len(column) and not (low <= column.min() and column.max() <= high):
            raise UsageError("the shards' times cannot be of one clock: their clock readings are wrong")
    return records


def _make_lost(part: _Part, slots: int, at_ns: int) -> Iterator[Record]:
    """Yield failed records of requests lost with their shard, in slot `index mod slots`, never sent."""
    failure = Failure(FailureKind.LOST, f"shard {part.number}/{part.of} was lost")
    for index in part.lost.tolist():
        yield Record(index, index % slots, at_ns, 0, at_ns, exact_tokens=False, failure=failure)


def format_ranges(indices: Int64) -> str:
    """Format indices as ranges, `12–19, 27`, eight of them and how many indices more."""
    ordered = np.unique(indices)
    breaks = np.flatnonzero(np.diff(ordered) != 1) + 1
    runs = np.split(ordered, breaks) if len(ordered) else []
    named = [f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs[:_MOST_RANGES]]
    rest = sum(len(run) for run in runs[_MOST_RANGES:])
    return ", ".join(named) + f" and {rest} more" * bool(rest)


class ShardRun(msgspec.Struct, frozen=True):
    """The run of one shard, and the place it was read from, for messages."""

    place: str
    result: Result
    shard: ShardFacts

    @property
    def facts(self) -> Facts:
        """The run's facts."""
        return self.result.facts

    @property
    def records(self) -> Records:
        """The run's records."""
        return self.result.records

    @property
    def name(self) -> str:
        """The shard's name in messages."""
        return f"shard {self.shard.name}"


def count_planned(facts: Facts) -> int | None:
    """Return how many requests the plan has; None if only --duration limits it."""
    profile = facts.profile
    return facts.requests if profile.duration is None or profile.open_loop else None


def join_facts(runs: Sequence[ShardRun]) -> dict[str, Any]:
    """Join the facts of shards by their rules, without those that the merge itself decides.

    A note is added if they reached the server by different addresses.
    """
    facts = _join_fields(list_annotations(Facts, Join), [run.facts for run in runs], runs)
    if facts["ceiling"] is not None:
        facts["no_ceiling"] = ""
    by_url: dict[str, list[str]] = {}
    for run in runs:
        by_url.setdefault(run.facts.server.url, []).append(run.name)
    if len(by_url) > 1 and not runs[0].facts.targets:
        each = (f"{url} ({list_first(names, _MOST_NAMED)})" for url, names in by_url.items())
        facts["notes"] = (*facts["notes"], f"requests went to {', '.join(each)}")
    return facts


def _join_fields(
    joins: Mapping[str, Join], holders: Sequence[Any], runs: Sequence[ShardRun]
) -> dict[str, Any]:
    return {
        name: RULES[join]([getattr(holder, name) for holder in holders], runs)
        for name, join in joins.items()
        if join is not Join.DECIDED
    }


def join_lines(values: Sequence[Sequence[str]], runs: Sequence[ShardRun]) -> tuple[str, ...]:
    """Join lines, each once: one that all shards have unchanged, another after the names of its shards."""
    by_line: dict[str, list[str]] = {}
    for run, lines in zip(runs, values, strict=True):
        for line in dict.fromkeys(lines):
            by_line.setdefault(line, []).append(run.name)
    return tuple(
        line if len(names) == len(runs) else f"{list_first(names, _MOST_NAMED)}: {line}"
        for line, names in by_line.items()
    )


def _select_sending(values: Sequence[Any], runs: Sequence[ShardRun]) -> Sequence[Any]:
    """Return the values of shards that sent something, else of the first: others affect no figure."""
    return [value for value, run in zip(values, runs, strict=True) if len(run.records)] or values[:1]


def join_clients(clients: Sequence[Client], runs: Sequence[ShardRun]) -> Client:
    """Join the capturing processes' reports: work is summed, of each fault the worst counts."""
    joined = _join_fields(list_annotations(Client, Join), clients, runs)
    busiest_s = clients[0].busiest_cpu_s if len(clients) == 1 else max(client.busiest_s for client in clients)
    return Client(**{**joined, "busiest_cpu_s": busiest_s})


def join_self_tests(values: Sequence[Calibration | None], runs: Sequence[ShardRun]) -> Calibration | None:
    """Join self-tests: that of the least able client, with the worst errors of all.

    None where one has none, or they used different transports. What several workers can do together is in
    proportion to their number: see Calibration.
    """
    values = _select_sending(values, runs)
    measured = [value for value in values if value is not None]
    if len(measured) < len(values) or len({each.transport for each in measured}) > 1:
        return None
    least = min(measured, key=lambda each: each.capacity_of(1))
    errors: dict[str, list[Error]] = {
        name: [getattr(each, name) for each in measured] for name in ("ttft", "gap", "e2e")
    }
    worst = {name: max(several, key=lambda error: error.p99_us) for name, several in errors.items()}
    return least.model_copy(update=worst)


RULES: dict[Join, Rule] = {
    Join.FIRST: lambda values, runs: values[0],
    Join.PRESENT: lambda values, runs: next(filter(None, values), values[0]),
    Join.COMMON: lambda values, runs: values[0] if all(value == values[0] for value in values) else None,
    Join.DIFFERENT: lambda values, runs: _join_different(_select_sending(values, runs)),
    Join.LINES: join_lines,
    # A line that all have stays as it is, else each has its shard.
    Join.WORDS: lambda values, runs: "; ".join(join_lines([[line] if line else [] for line in values], runs)),
    Join.VALUES: lambda values, runs: tuple(dict.fromkeys(chain.from_iterable(values))),
    Join.SUM: lambda values, runs: sum(values),
    Join.LEAST: lambda values, runs: min(values),
    Join.MOST: lambda values, runs: max(values),
    Join.FARTHEST: lambda values, runs: max(values, key=abs),
    Join.ANY: lambda values, runs: any(values),
    Join.DIGEST: lambda values, runs: join_digests(values),
    Join.PLACES: lambda values, runs: tuple(sorted(chain.from_iterable(values))),
    Join.BY_NAME: lambda values, runs: {  # of each name the different texts of all
        name: _join_different([texts.get(name, "") for texts in values])
        for name in dict.fromkeys(chain.from_iterable(values))
    },
    # The first counters without an error, else the first there are.
    Join.COUNTERS: lambda values, runs: min(
        filter(None, values), key=lambda each: bool(each.error), default=None
    ),
    Join.CLIENT: join_clients,
    Join.SELF_TEST: join_self_tests,
}

# All shards must have these alike. They are compared in this order: what explains others comes first.
ALIKE: dict[str, Callable[[ShardRun], Any]] = {
    "loadgen version": lambda run: run.shard.version,
    "format": lambda run: run.facts.format,
    "number of shards": lambda run: run.shard.of,
    "profile": lambda run: run.facts.profile.model_dump(mode="json", exclude=_PATHS),
    "seed": lambda run: run.facts.seed,
    "repeat": lambda run: run.facts.repeat,
    "attempt": lambda run: run.facts.attempt,
    "engine": lambda run: f"{run.facts.server.engine} {run.facts.server.version}".strip(),
    "model": lambda run: run.facts.server.model,
    "timing of the embedded engine": lambda run: run.facts.server.simulated,
    "base URLs": lambda run: ", ".join(run.facts.targets),
    "fields left out for the server": lambda run: "; ".join(map(str, run.facts.adapted)),
    "ignore_eos": lambda run: "not sent" if run.facts.ignore_eos_refused else "sent",
    "plan digest": lambda run: run.facts.plan_digest,
    "planned requests": lambda run: count_planned(run.facts),
}


def check_alike(runs: Sequence[ShardRun]) -> None:
    """Raise UsageError that names the first two shards of different runs, and what differs."""
    for run in runs[1:]:
        for what, value_of in ALIKE.items():
            one, other = value_of(runs[0]), value_of(run)
            if one == other:
                continue
            both = f"{one} and {other}"
            if isinstance(one, dict):
                keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
                both = ", ".join(f"{key} {one.get(key)} and {other.get(key)}" for key in keys)
            raise UsageError(
                f"{runs[0].place} and {run.place} differ in {what}: {both}: "
                "merge the shards of one command, run by the same loadgen"
            )


def _join_different(values: Sequence[str]) -> str:
    """Join the different texts by `; `, without empty ones: four, and how many more there are."""
    every = [value for value in dict.fromkeys(values) if value]
    more = len(every) - _MOST_NAMED
    return "; ".join(every[:_MOST_NAMED]) + f" and {more} more" * (more > 0)


def merge_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen merge`."""
    parser = Parser(
        prog="loadgen merge",
        allow_abbrev=False,
        description="Join the runs of the shards of one plan (loadgen bench --shard I/N): every figure, the "
        "verdict and the report are computed from all their requests, as if one process had sent them.",
        epilog="Shards that are missing or were killed: their requests count as lost (docs/shards.md).",
    )
    add = parser.add_argument
    add("places", nargs="*", metavar="DIR", help="the run directory of each shard, in any order")
    name = f"the directory of the merged run (default {_RUNS}/TIME-PROFILE-merged)"
    add("--output", metavar="DIR", help=name)
    add("--layout", metavar="NAME", help="layout of the result block (default vllm-0.32)")
    add("--explain", action="store_true", help="print the whole report, with every doubt")
    add("--strict", action="store_true", help="exit with 3 if the verdict is INVALID")
    add_json_flag(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `loadgen merge`: write the merged run, print its report, and return the exit code of a run.

    Raises UsageError if the directories are not the shards of one run.
    """
    parser = merge_parser()
    if not argv or {"-h", "--help"} & set(argv):
        parser.print_help()
        return ExitCode.FIGURES if argv else ExitCode.USAGE
    asked = parse_arguments(parser, argv, intermixed=True)
    result_block.find_layout(asked.layout)
    shards = read_shards([expand_path(name) for name in asked.places])
    check_shards(shards)
    with print_one_object(asked.json) as results:
        if asked.output is None:
            name = next((run.facts.profile.name for _, run in shards), "") or "bench"
            made = f"{name}-merged", read_wall_clock()
            directory = files.create_directory(Path(_RUNS), *made, "--output")
        else:
            directory = expand_path(asked.output)
            files.create_place(directory, "--output")
            if run_directory.is_run(directory):
                raise UsageError(f"{directory} holds a run already: choose another --output")
        run = merge_results(shards, directory)
        broken: list[Broken] = []
        shown = (run, asked.explain, asked.layout)
        text = make_guarded("the report", lambda: report.render_report(*shown), "", broken)
        errors = run_writer.save(run, directory, {run_directory.REPORT: text + "\n"}, broken)
        errors += [f"{part.name}: {part.why}" for part in broken]
        print_text(report.render_for_stdout(run, directory, asked.explain, asked.layout), sys.stdout)
        print_text(f"run directory: {directory}", sys.stdout)
        results.append(run_writer.encode_run(run))
        for error in errors:
            print_text(f"loadgen: {error}", sys.stderr)
        measured = bool(run.records.ok.any())
        if not measured:
            print_text(f"loadgen: {report.explain_unmeasured(run)}", sys.stderr)
        return decide_exit_code(
            measured=measured,
            whole=not run.facts.partial,
            failed_on=find_failing(run, ["invalid"] if asked.strict else ()),
            written=not errors,
        )
