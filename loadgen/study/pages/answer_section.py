"""Answer section: what to take as a section of the page, its numbers with their whole values."""

from __future__ import annotations

import math

from loadgen.study.answer import answer_report
from loadgen.study.answer.answer import CheckpointAnswer
from loadgen.study.answer.answer_columns import AnswerColumn, format_value
from loadgen.study.answer.candidate import Value
from loadgen.study.pages.page_parts import Number, PageSection
from loadgen.study.tables import make_table


def make_answer_section(found: CheckpointAnswer) -> PageSection:
    """Make the section: recommendations, then the sentence of each row, the table and its notes."""
    lines = [
        " ".join(filter(None, (title, sentence)))
        for title, sentences in answer_report.list_recommendations(found, plain=True)
        for sentence in sentences
    ]
    titles = ["Checkpoint", *(column.title for column in found.columns)]
    names = (row[0] for row in answer_report.make_answer_table(found).body)
    rows = [
        (name, *(_make_cell(column, row.values[column.key]) for column in found.columns))
        for name, row in zip(names, found.rows, strict=True)
    ]
    return PageSection(
        answer_report.TITLE,
        "answer",
        menu=answer_report.TITLE,
        lines=(*lines, *answer_report.list_sentences(found)),
        table=make_table(titles, rows),
        style="answer",
        remarks=tuple(answer_report.list_notes(found)),
    )


def _make_cell(column: AnswerColumn, value: Value | str) -> str:
    """Write a value as the table has it, a number with its whole value and its half interval aside."""
    text = format_value(column, value)
    if isinstance(value, str) or value.words or not math.isfinite(value.mean):
        return text
    mean, _, half = text.partition(" ")
    return Number(mean, value.mean * column.scale, f"answer.{column.key}", half)
