"""Answer: which checkpoint to take, and a row of what is known of each, from compared runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.untrusted import read_mapping
from loadgen.study.answer import answer_settings
from loadgen.study.answer.answer_columns import AnswerColumn, list_columns, write_sentence
from loadgen.study.answer.answer_settings import AnswerRequest
from loadgen.study.answer.contest import Candidate, Contest, Value, list_candidates, list_contests
from loadgen.study.answer.recommendation import Recommendation, recommend
from loadgen.study.compare.limits import ComparedLimits
from loadgen.study.compare.model import ComparedLoad, ComparisonOptions, Decision
from loadgen.study.load_table import mark_simulated

_LEAST_OBJECTIVES = 2  # by one alone the slower row says nothing that its speed does not


class AnswerRow(msgspec.Struct, frozen=True):
    """One checkpoint: its sentence, its values by the column's key, and which rows are better in all."""

    name: str
    shown_name: str  # with a mark if it is simulated
    sentence: str
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
    known.
    Raises UsageError where files of scores are wrong.
    """
    contests = list_contests(tables, searches, ask)
    measured = any(
        run.quality for contest in contests for name in contest.names for run in contest.list_runs(name)
    )
    if not contests or not (wanted or measured or ask.campaign.directory or asked != AnswerRequest()):
        return None
    scores, unread = _read_scores(asked.lm_eval, read_mapping(ask.campaign.answer.get("lm_eval")))
    candidates = list_candidates(contests, ask.campaign, asked.price_per_hour, scores)
    columns = list_columns(contests, candidates)
    rows = [_make_row(each, candidates[0], columns, contests) for each in candidates]
    return CheckpointAnswer(
        candidates[0].name,
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


def _make_row(
    candidate: Candidate, baseline: Candidate, columns: Sequence[AnswerColumn], contests: Sequence[Contest]
) -> AnswerRow:
    return AnswerRow(
        candidate.name,
        mark_simulated(candidate.name, any(run.simulated for run in candidate.runs)),
        write_sentence(candidate, baseline, contests),
        {column.key: column.read(candidate, baseline) for column in columns},
    )


def _list_dominating(
    row: AnswerRow, rows: Sequence[AnswerRow], columns: Sequence[AnswerColumn], contests: Sequence[Contest]
) -> Iterator[str]:
    """Yield the rows that are better in every objective that both have, beyond the intervals: two or more."""
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
