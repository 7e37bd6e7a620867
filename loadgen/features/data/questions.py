"""Questions: rows of a category and turns, as of Spec-Bench and SPEED-Bench; the first turn is sent."""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Int64
from loadgen.base.json_lines import Lines
from loadgen.base.parsing import suggest_name
from loadgen.base.text import format_count, list_first
from loadgen.base.untrusted import read_line
from loadgen.features.data import row_kinds
from loadgen.features.data.file_prompts import FilePrompts, PromptTokens
from loadgen.plan.planned_requests import UNKNOWN_LEN
from loadgen.plan.request_sources import PlanInputs, SourcedRequests

FLAG = "--dataset-category"
# What SPEED-Bench has in place of texts of other data sets, until they are fetched.
_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED"
_NO_LENGTH = (
    "holds questions, which have no lengths of answers: pass --output-len N (custom_output_len in a profile)"
)
_UNFETCHED = "is a placeholder for another data set's text: fetch it with the data set's own prepare.py"
_NO_CATEGORY = "has an empty category: name it, or leave out the row"
_OTHER_ROLE = "has a message of the role {!r}: leave out `category` to send the row as a whole body"
_MOST_NAMED = 20


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str


_TEXT: msgspec.json.Decoder[str] = msgspec.json.Decoder(str)
_TURNS: msgspec.json.Decoder[list[str]] = msgspec.json.Decoder(list[str])
# Of a prepared SPEED-Bench, in place of turns: a user's each.
_MESSAGES: msgspec.json.Decoder[list[_Message]] = msgspec.json.Decoder(list[_Message])


class FileQuestions(FilePrompts):
    """The first turn of a file's questions, each sent as a prompt of text."""

    __slots__ = ()

    def prompt(self, i: int) -> str:
        """Return the first turn of request i."""
        row = int(self._rows[i])
        return _read_turns(self._lines, row, row_kinds.read_object(self._lines, row, self._lines[row]))[0]


def of_rows(lines: Lines, kind: str, inputs: PlanInputs) -> SourcedRequests:
    """Make the requests of questions, texts counted if there is a tokenizer.

    Each stretch of the plan has the categories in the file's proportions, and the rows of a category in the
    file's order. Raises UsageError without a length for answers, for a category that no row has, and for a
    row without a category or turns, with a placeholder or a role other than the user's.
    """
    asked = inputs.profile.custom_output_len or UNKNOWN_LEN
    if asked <= 0:
        raise lines.file.refusal(_NO_LENGTH)
    named: list[str] = []
    several = np.zeros(len(lines), dtype=np.bool_)
    for i, fields in enumerate(row_kinds.read_objects(lines, kind)):
        named.append(read_line(row_kinds.decode_value(lines, i, fields, "category", _TEXT)))
        if not named[-1]:
            raise lines.refusal(i, _NO_CATEGORY)
        several[i] = len(_read_turns(lines, i, fields)) > 1
    names = list(dict.fromkeys(named))
    numbers = np.array([*map({name: at for at, name in enumerate(names)}.__getitem__, named)], np.int64)
    wanted = inputs.profile.dataset_category
    if wanted and wanted not in names:
        raise lines.file.refusal(
            f"has no row of {FLAG} {wanted}{suggest_name(wanted, names)}: there are "
            f"{list_first(names, _MOST_NAMED)}"
        )
    chosen = spread_categories(numbers)
    if wanted:
        chosen = np.flatnonzero(numbers == names.index(wanted)).astype(np.int64)
    sent = row_kinds.order_rows(len(chosen), inputs)
    rows = chosen[sent]
    lens = np.full((2, len(rows)), UNKNOWN_LEN, dtype=np.int64)
    lens[1] = asked
    made = FileQuestions(lines, rows, (lens[0], lens[1]), np.zeros(len(rows), dtype=np.bool_))
    facts = row_kinds.make_facts(kind, lines, sent)
    first = numbers[rows][: facts.sent].tolist()
    places = {number: place for place, number in enumerate(dict.fromkeys(first))}
    categories = tuple(names[number] for number in places)
    facts = replace(facts, categories=categories, category_of_row=tuple(places[number] for number in first))
    counting = PromptTokens(inputs, lens[0])
    if inputs.subject.tokenizer is not None:
        for i in range(facts.sent):
            counting.add(i, made.prompt(i))
    counting.finish()
    lens[0] = lens[0][np.arange(len(rows)) % max(facts.sent, 1)]
    later = int(several[rows[: facts.sent]].sum())
    notes = (f"the first turn alone is sent; {format_count(later, 'row')} have more",) if later else ()
    return SourcedRequests(made, facts, notes=(*counting.notes, *notes))


def spread_categories(numbers: Int64) -> Int64:
    """Order rows so that each stretch has every category in its share, int64[rows].

    `numbers` is int64[rows], the category of each. The k-th of a category's n rows is placed at (k + ½) / n;
    of rows at one place the first in the file comes first.
    """
    places = np.empty(len(numbers))
    for number in np.unique(numbers):
        own = np.flatnonzero(numbers == number)
        places[own] = (np.arange(len(own)) + 0.5) / len(own)
    return np.argsort(places, kind="stable").astype(np.int64)


def _read_turns(lines: Lines, i: int, fields: row_kinds.RowObject) -> list[str]:
    """Return a row's turns, or its users' messages; raises UsageError for no first turn, or a placeholder."""
    if "turns" in fields:
        turns = row_kinds.decode_value(lines, i, fields, "turns", _TURNS)
    else:
        messages = row_kinds.decode_value(lines, i, fields, "messages", _MESSAGES)
        if other := next((message.role for message in messages if message.role != "user"), ""):
            raise lines.refusal(i, _OTHER_ROLE.format(other))
        turns = [message.content for message in messages]
    if not turns or not turns[0]:
        raise lines.refusal(i, "has no first turn: leave out the row")
    if any(turn.startswith(_PLACEHOLDER) for turn in turns):
        raise lines.refusal(i, _UNFETCHED)
    return turns
