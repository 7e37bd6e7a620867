"""`loadgen compare`: runs, campaigns and others' results in one table a load, with verdicts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from loadgen.base.errors import UsageError
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.printing import add_json_flag, print_text
from loadgen.base.text import clean_text, format_json, wrap_text
from loadgen.settings import setting
from loadgen.settings.server_settings import MachineOptions
from loadgen.settings.setting import list_rows
from loadgen.settings.table import add_groups
from loadgen.study import sweep_record
from loadgen.study.answer import answer
from loadgen.study.answer.answer import CheckpointAnswer, make_answer
from loadgen.study.answer.answer_settings import ANSWER, AnswerSettings, is_size, read_answer_flags
from loadgen.study.compare import (
    comparability,
    comparison,
    comparison_report,
    limits,
    model,
    rankings,
    speculation_split,
)
from loadgen.study.compare.comparability import Rows
from loadgen.study.compare.limits import ComparedLimits
from loadgen.study.compare.model import ComparedLoad, ComparisonOptions
from loadgen.study.compare.rankings import RowQuality
from loadgen.study.consistency import ceilings
from loadgen.study.consistency.ceilings import Hardware
from loadgen.study.importers import result_sources
from loadgen.study.importers.result_sources import Sources
from loadgen.study.quality.quality_record import judge_quality
from loadgen.study.tables import (
    Table,
    escape_markdown,
    render_csv_table,
    render_markdown_table,
    render_text_table,
)

_MOST_PROBLEMS = 10  # that are printed one by one


class _Form(NamedTuple):
    """The functions that write comparisons, another table with title and notes, and the answer."""

    comparisons: Callable[[Sequence[ComparedLoad]], str]
    table: Callable[[Table], str]
    title: Callable[[str], str]
    notes: Callable[[Sequence[str]], str]
    answer: Callable[[CheckpointAnswer], str]


_FORMS = {
    "text": _Form(
        comparison_report.render_text,
        render_text_table,
        lambda title: "\n".join(wrap_text(title, "")) + "\n",
        lambda notes: "".join(f"{line}\n" for note in notes for line in wrap_text(note)),
        answer.render_answer_text,
    ),
    "markdown": _Form(
        comparison_report.render_markdown,
        render_markdown_table,
        lambda title: f"### {escape_markdown(title)}\n\n",
        lambda notes: "".join(f"* {escape_markdown(note)}\n" for note in notes),
        answer.render_answer_markdown,
    ),
    "csv": _Form(
        comparison_report.render_csv,
        render_csv_table,
        lambda title: "",
        lambda notes: "",
        answer.render_answer_csv,
    ),
}


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
    missing = [note for sweep in read.sweeps for note in sweep_record.list_unfinished(sweep.record)]
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


def list_table_rows(tables: Sequence[ComparedLoad], searches: Sequence[ComparedLimits]) -> Iterator[Rows]:
    """Yield the rows of each table, runs first, then limits, as their names and runs."""
    for table in tables:
        yield [(line.name, line.runs) for line in table.lines]
    for compared in searches:
        yield [(row.name, [run for each in row.searches for run in each.runs]) for row in compared.rows]


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
    """Write answer and comparison, or the tables that `given` has, as JSON, Markdown, CSV or text.

    `missing` are lines on points of sweeps without a finished run: in JSON always, else below the comparison,
    and not in CSV. JSON has the other tables next to the comparison.
    """
    drawn = _make_other_tables(tables, given)
    if given.json:
        whole = encode_comparison(tables, searches, found) | ({"points": missing} if missing else {})
        for key, _, table in drawn:
            keys = [column.key for column in table.columns]
            rows = [dict(zip(keys, row, strict=True)) for row in table.body]
            whole[key] = {"rows": rows, "notes": list(table.notes)}
        return format_json(whole, indent=1) + "\n"
    name = "markdown" if given.markdown else "csv" if given.csv else "text"
    form = _FORMS[name]
    parts = [form.title(title) + form.table(table) for _, title, table in drawn]
    if given.answer and found is not None:
        parts.insert(0, form.answer(found))
    if parts:
        return "\n".join(parts)
    notes = form.notes(missing) if missing else ""
    return "\n".join(filter(None, (render_comparison(tables, searches, name, found), notes)))


def render_comparison(
    tables: Sequence[ComparedLoad],
    searches: Sequence[ComparedLimits],
    form: str = "text",
    found: CheckpointAnswer | None = None,
) -> str:
    """Write answer, compared limits, compared runs and quality as `form`: "text", "markdown" or "csv".

    CSV has no answer, whose columns are others, and the quality in columns of the runs and limits.
    """
    written = _FORMS[form]
    if form == "csv":
        parts = [limits.render_limit_csv(searches)] if searches else []
    else:
        parts = [] if found is None else [written.answer(found)]
        parts += [
            written.title(limits.describe_limits(each)) + written.table(limits.make_limit_table(each))
            for each in searches
        ]
    parts += [written.comparisons(tables)] if tables else []
    if form != "csv" and (rows := list_qualities(tables, searches)):
        table = rankings.make_quality_table(rows)
        parts.append(written.title(rankings.QUALITY_TITLE) + written.table(table))
    return "\n".join(parts)


def list_qualities(tables: Sequence[ComparedLoad], searches: Sequence[ComparedLimits]) -> list[RowQuality]:
    """List the quality of each row that has one, once for all loads and kinds of search, with its verdict."""
    rows = [(line.name, line.quality, each.kl_margin) for each in tables for line in each.lines]
    rows += [(row.name, row.quality, each.kl_margin) for each in searches for row in each.rows]
    found: dict[str, RowQuality] = {}
    for name, quality, margin in rows:
        if quality is not None:
            found.setdefault(name, RowQuality(name, quality, judge_quality(quality, margin)))
    return list(found.values())


def encode_comparison(
    tables: Sequence[ComparedLoad], searches: Sequence[ComparedLimits], found: CheckpointAnswer | None = None
) -> dict[str, Any]:
    """Make the JSON object of the answer, of compared runs, and of limits if there are searches."""
    begun = {} if found is None else {"answer": answer.encode_answer(found)}
    searched = {"limits": limits.encode_limits(searches)} if searches else {}
    return begun | comparison_report.encode_comparisons(tables) | searched


def _make_other_tables(
    tables: Sequence[ComparedLoad], given: argparse.Namespace
) -> list[tuple[str, str, Table]]:
    """Make the tables that `given` has flags for: each one's key in the JSON, its title and itself.

    A ranking and effects are of one load each; what fits which memory is one table of all.
    """
    drawn = []
    for number, table in enumerate(tables, 1):
        described = comparison_report.describe_load(table.load, unknown="")
        load = f", {described}" if described else ""
        if given.rankings:
            drawn.append((f"ranking_{number}", f"Ranking{load}", rankings.make_ranking_table(table)))
        if given.effects:
            effects = rankings.make_effect_table(table)
            drawn.append((f"effects_{number}", f"Effect of quantization{load}", effects))
    if given.fits == "":
        drawn.append(("fits", "What fits which memory (GiB)", rankings.make_fit_table(tables)))
    return drawn
