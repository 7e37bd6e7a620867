"""Answer: which checkpoint to take, and a row of what is known of each; as a passage, CSV and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from loadgen.base.errors import UsageError
from loadgen.base.passages import Passage
from loadgen.base.tables import Number, Table, format_csv_table, list_interval_cells, make_table
from loadgen.base.untrusted import read_mapping
from loadgen.report.result_file import make_strict
from loadgen.study.answer import answer_settings
from loadgen.study.answer.answer_columns import AnswerColumn, format_value, list_columns
from loadgen.study.answer.answer_settings import AnswerRequest
from loadgen.study.answer.contest import (
    Contest,
    Value,
    list_candidates,
    make_limit_contest,
    make_load_contest,
)
from loadgen.study.answer.recommendation import Recommendation, recommend
from loadgen.study.compare.limits import ComparedLimits
from loadgen.study.compare.model import ComparedLoad, ComparisonOptions, Decision
from loadgen.study.load_table import SIMULATION, mark_simulated
from loadgen.study.repeats import VAGUE, VAGUE_LEGEND
from loadgen.study.run_summary import group_by

_LEAST_OBJECTIVES = 2  # by one alone the slower row says nothing that its speed does not


class AnswerRow(msgspec.Struct, frozen=True):
    """One checkpoint: its values by the column's key, and which rows are better in all."""

    name: str
    shown_name: str  # with a mark if it is simulated
    values: Mapping[str, Value | str]  # a text is why the value is not known
    dominated_by: tuple[str, ...] = ()


class CheckpointAnswer(msgspec.Struct, frozen=True):
    """The rows, the baseline first, their columns, and a recommendation for each contest."""

    baseline: str
    columns: tuple[AnswerColumn, ...]
    rows: tuple[AnswerRow, ...]
    recommendations: tuple[Recommendation, ...]
    asked: AnswerRequest
    unread: tuple[str, ...] = ()  # why files of scores that a campaign names were not read


def make_answer(
    tables: Sequence[ComparedLoad],
    searches: Sequence[ComparedLimits],
    ask: ComparisonOptions,
    asked: AnswerRequest,
    wanted: bool = False,
) -> CheckpointAnswer | None:
    """Make the answer of compared runs and limits; None if there are not two checkpoints to choose from.

    Of runs outside a campaign there is none either, unless it is `wanted`, anything is asked, or a quality is
    known. Raises UsageError where files of scores are wrong.
    """
    every = [make_limit_contest(table, ask) for table in searches]
    every += [make_load_contest(table, ask) for table in tables]
    contests = [contest for contest in every if len(contest.rows) > 1]
    measured = any(run.quality for contest in contests for row in contest.rows.values() for run in row.runs)
    if not contests or not (wanted or measured or ask.campaign.directory or asked != AnswerRequest()):
        return None
    scores, unread = _read_scores(asked.lm_eval, read_mapping(ask.campaign.answer.get("lm_eval")))
    candidates = list_candidates(contests, ask.campaign, asked.price_per_hour, scores)
    columns = list_columns(contests, candidates)
    baseline = candidates[0]
    rows = [
        AnswerRow(
            each.name,
            mark_simulated(each.name, any(run.simulated for run in each.runs)),
            {column.key: column.read(each, baseline) for column in columns},
        )
        for each in candidates
    ]
    return CheckpointAnswer(
        baseline.name,
        tuple(columns),
        tuple(
            replace(row, dominated_by=tuple(_list_dominating(row, rows, columns, contests))) for row in rows
        ),
        tuple(recommend(contest, candidates, asked) for contest in contests),
        asked,
        tuple(unread),
    )


def _read_scores(
    files: Mapping[str, str], recorded: Mapping[str, Any]
) -> tuple[dict[str, Mapping[str, Value]], list[str]]:
    """Read scores by checkpoint, and list why those that only the campaign names cannot be read.

    Raises UsageError of another wrong file.
    """
    scores, unread = dict[str, Mapping[str, Value]](), list[str]()
    for name, file in files.items():
        try:
            scores[name] = answer_settings.read_scores(file)
        except UsageError as error:
            if recorded.get(name) != file:
                raise
            unread.append(f"no scores of {name}: {error}")
    return scores, unread


def _list_dominating(
    row: AnswerRow, rows: Sequence[AnswerRow], columns: Sequence[AnswerColumn], contests: Sequence[Contest]
) -> Iterator[str]:
    """Yield the names of rows that are better, beyond intervals, in all of two or more shared objectives."""
    objectives = [column for column in columns if column.better is not None]
    for other in rows:
        if other is row:
            continue
        pairs = [
            (column, own, value)
            for column in objectives
            if isinstance(own := row.values[column.key], Value)
            and isinstance(value := other.values[column.key], Value)
        ]
        better = (  # beyond both intervals
            value.least > own.most if column.better else value.most < own.least
            for column, own, value in pairs
        )
        tested = (
            contest.compare(other.name, row.name).call is Decision.FASTER
            for contest in contests
            if {row.name, other.name} <= set(contest.speeds)
        )
        if len(pairs) >= _LEAST_OBJECTIVES and all(better) and all(tested):
            yield other.name


TITLE = "What to take"
DOMINATED = "†"


def make_passage(answer: CheckpointAnswer) -> Passage:
    """Make the passage of the answer: recommendations, the table and its notes."""
    # All recommendations that say the same are one, after their contests, or after nothing if that is all.
    same = group_by(answer.recommendations, lambda each: (each.words, *each.remarks))
    titles = [f"{', '.join(each.contest for each in of)}:" if len(same) > 1 else "" for of in same.values()]
    leads = tuple(
        ("", f"{title} {sentence}".strip())
        for title, sentences in zip(titles, same, strict=True)
        for sentence in sentences
    )
    table, notes = make_answer_table(answer), tuple(list_notes(answer))
    return Passage(TITLE, "answer", TITLE, leads, table=table, style="answer", remarks=notes)


def render_answer_csv(answer: CheckpointAnswer) -> str:
    """Write the answer as CSV, a line a checkpoint with every digit; an unknown value is empty."""
    rows = []
    for row in answer.rows:
        cells: dict[str, Any] = {"checkpoint": row.name}
        for column in answer.columns:
            value = row.values[column.key]
            words = value.words if isinstance(value, Value) else ""
            cells |= {column.key: words} if words else list_interval_cells(column.key, value)
        taken = [
            each.contest
            for each in answer.recommendations
            if row.name in each.names[:1] and each.choice == "take"
        ]
        cells |= {"dominated_by": "; ".join(row.dominated_by)}
        rows.append({**cells, "taken": "; ".join(taken)})
    return format_csv_table(list(rows[0]), rows)


def encode_answer(answer: CheckpointAnswer) -> dict[str, Any]:
    """Make the JSON object of the answer; an unknown value is null, with the reason in `why`."""
    asked = answer.asked
    made = {
        "baseline": answer.baseline,
        "constraints": {
            "fits_bytes": asked.fits_bytes,
            "slo": [str(objective) for objective in asked.slo],
            "max_kl": asked.max_kl,
        },
        "price_per_hour": asked.price_per_hour,
        "columns": [{"key": column.key, "title": column.title} for column in answer.columns],
        "rows": [
            {
                "name": row.name,
                "dominated_by": row.dominated_by,
                "values": {
                    key: value.words or {"mean": value.mean, "low": value.low, "high": value.high}
                    if isinstance(value, Value)
                    else None
                    for key, value in row.values.items()
                },
                "why": {key: value for key, value in row.values.items() if isinstance(value, str)},
            }
            for row in answer.rows
        ],
        "recommendations": [
            {
                **{key: value for key, value in asdict(each).items() if key != "remarks"},
                "choice": each.choice.value,
                "changes": each.remarks,
            }
            for each in answer.recommendations
        ],
        "notes": list(list_notes(answer)),
    }
    clean: dict[str, Any] = make_strict(made)
    return clean


def make_answer_table(answer: CheckpointAnswer) -> Table:
    """Make the table of the rows' values, each number with its whole value."""
    rows = []
    for row in answer.rows:
        cells = [f"{row.shown_name}{f' {DOMINATED}' if row.dominated_by else ''}"]
        for column in answer.columns:
            value, text = row.values[column.key], format_value(column, row.values[column.key])
            if isinstance(value, Value) and not value.words and math.isfinite(value.mean):
                text = Number(text, value.mean * column.scale, f"answer.{column.key}")
            cells.append(text)
        rows.append(cells)
    columns = [("checkpoint", "checkpoint"), *((each.key, each.title) for each in answer.columns)]
    return make_table(columns, rows, spanned=1)


def list_notes(answer: CheckpointAnswer) -> Iterator[str]:
    """Yield the notes below the table: marks, intervals, what is not known and why, and simulated runs."""
    for row in answer.rows:
        if row.dominated_by:
            others = ", ".join(row.dominated_by)
            yield f"{DOMINATED} {row.name} is worse than {others} in every known objective"
    cells = [format_value(column, row.values[column.key]) for row in answer.rows for column in answer.columns]
    if any("±" in cell for cell in cells):
        yield "± half of the 95 % confidence interval"
    if any(VAGUE in cell for cell in cells):
        yield VAGUE_LEGEND
    for column in answer.columns:
        lacking = [(row.name, why) for row in answer.rows if isinstance(why := row.values[column.key], str)]
        for why, of in group_by(lacking, lambda pair: pair[1]).items():
            yield f"– {column.title}, {', '.join(name for name, _ in of)}: {why}"
    yield from answer.unread
    if any(row.name != row.shown_name for row in answer.rows):
        yield SIMULATION
