"""`loadgen compare` and `loadgen.compare`: runs, campaigns and others' results in one table a load."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.passages import Passage, render_passages
from loadgen.base.printing import Screen, add_json_flag, print_text
from loadgen.base.tables import encode_table, render_csv_table
from loadgen.base.text import clean_text, format_json
from loadgen.report.run import Place, Run
from loadgen.settings import setting
from loadgen.settings.server_settings import MachineOptions
from loadgen.settings.setting import list_rows
from loadgen.settings.table import add_groups
from loadgen.study import run_summary, sweep_record
from loadgen.study.answer import answer
from loadgen.study.answer.answer import CheckpointAnswer, make_answer
from loadgen.study.answer.answer_settings import (
    ANSWER,
    AnswerRequest,
    AnswerSettings,
    is_size,
    read_answer_flags,
)
from loadgen.study.compare import (
    comparability,
    comparison,
    comparison_report,
    limits,
    model,
    speculation_split,
)
from loadgen.study.compare.limits import ComparedLimits
from loadgen.study.compare.model import ComparedLoad, ComparedRow, ComparisonOptions
from loadgen.study.consistency import ceilings
from loadgen.study.consistency.ceilings import Hardware
from loadgen.study.importers import result_sources
from loadgen.study.importers.clients.loadgen_runs import StoredLimit
from loadgen.study.importers.result_sources import Sources
from loadgen.study.limit_record import Limit
from loadgen.study.quality.arm_qualities import RowQuality, make_quality_passage
from loadgen.study.run_summary import FailedCell, Reported

_MOST_PROBLEMS = 10  # that are printed one by one
Compared = Run | Limit | Place
_ONE = (str, os.PathLike, Run, Limit)  # which are no list of them


def main(argv: Sequence[str]) -> int:
    """Print the comparison of the places in `argv`, on the standard error what could not be read; return 0.

    Raises UsageError of a wrong option, and where nothing at the places can be read; with
    --require-equal-state MeasureError of runs between which the machine's state differs.
    """
    # A --fits that no size of memory follows asks for a table.
    words = zip(argv, [*argv[1:], ""], strict=False)
    marked = ["--fits=" if word == "--fits" and not is_size(after) else word for word, after in words]
    given = parse_arguments(compare_parser(), marked)
    ask = ComparisonOptions(
        baseline=given.baseline,
        margin=None if given.margin is None else given.margin / 100,
        alpha=given.alpha,
        headline=given.headline or (speculation_split.COMMITTED_MS if given.acceptance_length else ""),
        allow_unlike=given.allow_unlike,
        hardware=Hardware.from_flags(given),
        campaign=model.read_campaign_settings(given.places),
        acceptance_length=given.acceptance_length,
    )
    read = result_sources.read_sources(given.places)
    report_unread(read.errors)
    missing = [note for sweep in read.sweeps for note in sweep_record.list_unfinished(sweep.points)]
    tables, searches = compare_sources(read, ask), limits.compare_limits(read.limits, ask)
    if given.require_equal_state:
        comparability.check_equal_states(list_table_rows(tables, searches))
    asked = read_answer_flags(given, ask.campaign.answer)
    found = make_answer(tables, searches, ask, asked, given.answer)
    flags = [row.option for row in list_rows(AnswerSettings) if getattr(given, row.dest)]
    if found is None and (flags := ["--answer"] * given.answer + flags):
        raise UsageError(
            f"{', '.join(flags)}: there are not two checkpoints of one load to choose from: pass runs of "
            "others too"
        )
    shown = _render(tables, searches, found, missing, given)
    print_text(clean_text(shown), sys.stdout, end="")
    return 0


def list_table_rows(
    tables: Sequence[ComparedLoad], searches: Sequence[ComparedLimits]
) -> list[Sequence[ComparedRow]]:
    """List the rows of each table, runs first, then limits."""
    return [*(table.lines for table in tables), *(compared.rows for compared in searches)]


def compare_sources(read: Sources, ask: ComparisonOptions) -> list[ComparedLoad]:
    """Compare all runs but those of searches for a limit, in a table a load; [] if there are only searches.

    Each run gets its ceiling first. Raises UsageError if the baseline or the headline of `ask` does not
    exist.
    """
    if read.limits:
        read = read.outside_searches
        if not read.reported and not read.failures:
            return []
    runs, lacking = ceilings.add_ceilings(read.reported, ask.machine)
    return comparison.compare_runs(runs, ask, read.failures, lacking)


def compare_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen compare`."""
    parser = Parser(
        prog="loadgen compare",
        allow_abbrev=False,
        description="Compare checkpoints: runs, campaigns and others' results, a table a load.",
        epilog="docs/comparing.md describes how a difference is judged, and what is not compared.",
    )
    add = parser.add_argument
    where = "a run's directory, one of runs, a campaign's, a search's, or a result file or page of anyone's"
    add("places", nargs="+", metavar="PLACE", help=where)
    baseline = "row to compare with (default: the campaign's, else the first in BF16, else the first)"
    add("--baseline", metavar="NAME", default="", help=baseline)
    add("--margin", type=float, metavar="%", help="percent that count as equivalent (default 2)")
    add("--alpha", type=float, metavar="P", default=0.05, help="chance of a false verdict (default 0.05)")
    headline = "figure that decides (default output_throughput; with a request rate mean_e2el_ms)"
    add("--headline", metavar="KEY", default="", help=headline)
    committed = "compare TPOT at this acceptance length: step time / N, of runs without drafts as measured"
    add("--acceptance-length", type=float, metavar="N", help=committed)
    add("--allow-unlike", action="store_true", help="compare other loads and machines too, marked")
    states = "refuse runs between which the machine's state differs, or is not recorded"
    add("--require-equal-state", action="store_true", help=states)
    add_groups(parser, [setting.ROOFLINE], list_rows(MachineOptions))
    form = parser.add_argument_group("output").add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print Markdown, for a pull request")
    form.add_argument("--csv", action="store_true", help="print a line a figure, with every digit")
    add_json_flag(form, "print everything as JSON, p-values too")
    instead = parser.add_argument_group("other tables, instead")
    instead.add_argument("--rankings", action="store_true", help="print rows by speed")
    instead.add_argument("--effects", action="store_true", help="print speeds as multiples of BF16's")
    instead.add_argument("--answer", action="store_true", help="print only what to take, in any form")
    add_groups(parser, [ANSWER], list_rows(AnswerSettings))
    return parser


def report_unread(problems: Sequence[str]) -> None:
    """Print on the standard error the first ten lines on what could not be read, then how many are left."""
    for problem in problems[:_MOST_PROBLEMS]:
        print_text(f"loadgen: {clean_text(problem)}", sys.stderr)
    if len(problems) > _MOST_PROBLEMS:
        print_text(f"loadgen: {len(problems) - _MOST_PROBLEMS} more could not be read", sys.stderr)


def _render(
    tables: Sequence[ComparedLoad],
    searches: Sequence[ComparedLimits],
    found: CheckpointAnswer | None,
    missing: Sequence[str],
    given: argparse.Namespace,
) -> str:
    """Render the comparison, or the other tables asked for (in JSON both), as text, Markdown, CSV or JSON."""
    drawn = _make_other_tables(tables, given)
    if given.json:
        whole = encode_comparison(tables, searches, found) | ({"points": missing} if missing else {})
        for passage in drawn:
            if passage.table is not None:
                whole[passage.key] = encode_table(passage.table)
        return format_json(whole, indent=1) + "\n"
    alone = found if given.answer else None
    if given.csv:
        parts = [] if alone is None else [answer.render_answer_csv(alone)]
        parts += [render_csv_table(passage.table) for passage in drawn if passage.table is not None]
        return "\n".join(parts) or render_csv(tables, searches)
    if alone is not None:
        drawn.insert(0, answer.make_passage(alone))
    if not drawn:
        drawn = list_passages(tables, searches, found, missing)
    return render_passages(drawn, given.markdown, Screen.from_stream(sys.stdout).width)


def render_csv(tables: Sequence[ComparedLoad], searches: Sequence[ComparedLimits]) -> str:
    """Write limits and comparisons as CSV, with the quality in columns of both, and no answer."""
    parts = [limits.render_limit_csv(searches)] if searches else []
    return "\n".join([*parts, *([comparison_report.render_csv(tables)] if tables else [])])


def list_passages(
    tables: Sequence[ComparedLoad],
    searches: Sequence[ComparedLimits],
    found: CheckpointAnswer | None = None,
    missing: Sequence[str] = (),
) -> list[Passage]:
    """List the passages of the answer, compared limits, compared runs, quality, and what is missing."""
    passages = [] if found is None else [answer.make_passage(found)]
    passages += map(make_limit_passage, searches, count(1))
    passages += comparison_report.make_load_passages(tables)
    if rows := list_qualities(tables, searches):
        passages.append(make_quality_passage(rows))
    return [*passages, *filter(None, [make_missing_passage(missing)])]


def make_limit_passage(compared: ComparedLimits, number: int) -> Passage:
    """Make the passage of the limits of one kind of search."""
    title = limits.describe_limits(compared)
    return Passage(title, f"limits-{number}", table=limits.make_limit_table(compared))


def make_missing_passage(lines: Sequence[str], failures: Sequence[FailedCell] = ()) -> Passage:
    """Make the passage of failed cells, and of points and files without a run; an empty one without any."""
    cells = (
        (f"{failed.cell.arm}, {failed.cell.profile}, repeat {failed.cell.repeat + 1}", failed.reason)
        for failed in failures
    )
    doubts = tuple({"name": name, "severity": "failed", "evidence": reason} for name, reason in cells)
    return Passage("What is missing", "missing", doubts=doubts, lines=tuple(lines))


def list_qualities(tables: Sequence[ComparedLoad], searches: Sequence[ComparedLimits]) -> list[RowQuality]:
    """List the quality of each row that has one, once for all loads and kinds of search, with its verdict."""
    margins = [*(each.kl_margin for each in tables), *(each.kl_margin for each in searches)]
    found: dict[str, RowQuality] = {}
    for rows, margin in zip(list_table_rows(tables, searches), margins, strict=True):
        for row in rows:
            if row.quality is not None:
                found.setdefault(row.name, RowQuality(row.name, row.quality, margin))
    return list(found.values())


def encode_comparison(
    tables: Sequence[ComparedLoad], searches: Sequence[ComparedLimits], found: CheckpointAnswer | None = None
) -> dict[str, Any]:
    """Make the JSON object of the answer, of compared runs, and of limits if there are searches."""
    begun = {} if found is None else {"answer": answer.encode_answer(found)}
    searched = {"limits": limits.encode_limits(searches)} if searches else {}
    return begun | comparison_report.encode_comparisons(tables) | searched


def _make_other_tables(tables: Sequence[ComparedLoad], given: argparse.Namespace) -> list[Passage]:
    """Make the tables that `given` has flags for: a ranking and effects are of one load each."""
    drawn = []
    for number, table in enumerate(tables, 1):
        described = comparison_report.describe_load(table.load, unknown="")
        load = f", {described}" if described else ""
        if given.rankings:
            ranking = comparison_report.make_ranking_table(table)
            drawn.append(Passage(f"Ranking{load}", f"ranking_{number}", table=ranking))
        if given.effects:
            effects = comparison_report.make_effect_table(table)
            drawn.append(Passage(f"Effect of quantization{load}", f"effects_{number}", table=effects))
    if given.fits == "":
        drawn.append(comparison_report.make_fit_passage(tables))
    return drawn


class Comparison(msgspec.Struct, frozen=True):
    """Runs side by side: a table a load, each row with an effect and a verdict per figure.

    `messages` are lines on what could not be read, or was named twice. `limits` are the highest loads that
    searches found, a table for each kind of search.
    """

    tables: tuple[model.ComparedLoad, ...]
    messages: tuple[str, ...] = ()
    limits: tuple[ComparedLimits, ...] = ()
    options: ComparisonOptions = ComparisonOptions()

    def text(self) -> str:
        """Write the tables as `loadgen compare` prints them."""
        return self._write(markdown=False)

    def markdown(self) -> str:
        """Write the tables for a pull request."""
        return self._write(markdown=True)

    def _write(self, markdown: bool) -> str:
        return render_passages(list_passages(self.tables, self.limits, self._choose({})), markdown)

    def json(self) -> dict[str, Any]:
        """Return the tables and limits as an object of plain values, p-values too."""
        return encode_comparison(self.tables, self.limits, self._choose({}))

    def answer(
        self,
        *,
        fits: str | None = None,
        slo: str | None = None,
        max_kl: float | None = None,
        price_per_hour: float | None = None,
        lm_eval: Mapping[str, str] | None = None,
    ) -> CheckpointAnswer | None:
        """Return what to take of them under these constraints; None if there are not two checkpoints.

        `fits` is a size as "16GiB", `slo` objectives as "tpot p95 < 50ms", `max_kl` nats a token, and
        `lm_eval` files of scores by checkpoint; what is None is as the campaign has it. Raises UsageError.
        """
        given: dict[str, Any] = {"fits": fits, "slo": slo, "max_kl": max_kl, "lm_eval": lm_eval}
        given["price_per_hour"] = price_per_hour
        return self._choose({key: value for key, value in given.items() if value is not None}, wanted=True)

    def _choose(self, given: Mapping[str, Any], wanted: bool = False) -> CheckpointAnswer | None:
        asked = AnswerRequest.read({**self.options.campaign.answer, **given})
        return make_answer(self.tables, self.limits, self.options, asked, wanted)


def compare(
    runs: Sequence[Compared] | Mapping[str, Compared | Sequence[Compared]],
    *,
    baseline: str = "",
    margin: float | None = None,
    alpha: float = 0.05,
    headline: str = "",
    allow_unlike: bool = False,
    hardware: str | None = None,
    bandwidth: float | None = None,
) -> Comparison:
    """Compare runs, limits, run directories, campaigns, searches and result files of other clients.

    A mapping names the rows, whose runs are repeats: {"before": [run, run], "after": [run, run]}; otherwise
    each thing in the list is a side of its own, named by its checkpoint, else by its place too.
    `margin` is what counts as equivalent, 0.02 for 2 %, and `alpha` the chance of a false verdict;
    docs/comparing.md describes how differences are judged. `baseline` is the campaign's if not given, else
    the first row that is not quantized, else the first. Raises LoadgenError where there is nothing to compare
    or an option is wrong.
    """
    machine = Hardware.find(hardware, bandwidth)
    read, places = collect_sources(runs)
    campaign = model.read_campaign_settings(places)
    ask = ComparisonOptions(baseline, margin, alpha, headline, allow_unlike, machine, campaign)
    tables, searches = compare_sources(read, ask), limits.compare_limits(read.limits, ask)
    return Comparison(tuple(tables), read.errors, tuple(searches), ask)


def collect_sources(
    runs: Sequence[Compared] | Mapping[str, Compared | Sequence[Compared]],
) -> tuple[Sources, list[str]]:
    """Read everything that is named, each under the name of its row in a mapping; return it and the places.

    Raises UsageError of one thing alone, and of a place where nothing can be read. Runs of searches at a
    place are left out.
    """
    if isinstance(runs, _ONE) or not isinstance(runs, Iterable):
        raise UsageError("expected a list of runs and places, or a mapping from names to them: write [run]")
    groups = runs.items() if isinstance(runs, Mapping) else [("", runs)]
    reported: list[Reported] = []
    searched: list[StoredLimit] = []
    errors: list[str] = []
    failures: list[FailedCell] = []
    places: list[str] = []
    for name, group in groups:
        several: Any = group if isinstance(group, Iterable) and not isinstance(group, _ONE) else [group]
        for number, named in enumerate(several, 1):
            if not isinstance(named, _ONE):
                raise UsageError(
                    f"expected runs and places, got `{type(named).__name__}`: pass a run or a path"
                )
            if not isinstance(named, Run | Limit):
                places.append(os.fspath(named))
            read = _read_source(named, number)
            reported += _name_summaries(read.outside_searches.reported, name)
            searched += [
                replace(
                    limit,
                    record=limit.record.model_copy(update={"name": name or limit.record.name}),
                    place="" if name else limit.place,
                    runs=tuple(_name_summaries(limit.runs, name)),
                )
                for limit in read.limits
            ]
            errors += read.errors
            failures += read.failures
    return Sources(tuple(reported), tuple(errors), tuple(failures), limits=tuple(searched)), places


def _read_source(named: Compared, number: int) -> Sources:
    """Read a run, a limit and its runs, or a place; what has no directory is named by its `number`."""
    if isinstance(named, Run):
        return Sources((replace(_summarise(named), place=str(named.directory or f"run {number}")),))
    if isinstance(named, Limit):
        place = str(named.directory or f"limit {number}")
        stored = StoredLimit(named.directory, named.record, tuple(map(_summarise, named.runs)), place)
        return Sources((), limits=(stored,))
    return result_sources.read_sources([os.fspath(named)], shows_progress=False)


def _summarise(run: Run) -> Reported:
    source = str(run.directory or f"the run of {run.result.facts.started:%H:%M:%S}")
    return run_summary.summarise_run(Path(source), run.result)


def _name_summaries(summaries: Sequence[Reported], name: str) -> list[Reported]:
    return [replace(summary, name=name, place="") if name else summary for summary in summaries]
