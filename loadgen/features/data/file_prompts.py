"""File prompts: the requests of a file that is given without a name, by what its rows are.

A row of `prompt` is sent as one prompt. So is the first turn of a question, as of Spec-Bench and SPEED-Bench.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Bool, Int64
from loadgen.base.json_lines import Lines, OpenedFile
from loadgen.base.parsing import MOST_TOKENS, suggest_name
from loadgen.base.text import format_count, list_first, quote_value
from loadgen.base.untrusted import read_line
from loadgen.features.data import bodies, conversations, file_prompts, listed_texts, row_kinds, sharegpt
from loadgen.plan import tokenizers
from loadgen.plan.planned_requests import UNKNOWN_LEN, PromptRequests, fingerprint
from loadgen.plan.request_sources import PlanInputs, SourcedRequests

_NO_LENGTH = (
    "has no `output_tokens`: give each row its own, or pass --output-len N for all (custom_output_len in a "
    "profile)"
)
_TEXT_OR_IDS: msgspec.json.Decoder[str | list[int]] = msgspec.json.Decoder(str | list[int])
_LENGTH: msgspec.json.Decoder[int | None] = msgspec.json.Decoder(int | None)
_READ = frozenset({"prompt", "output_tokens"})
_MOST_KEYS, _SHOWN = 100, 8  # that are kept, and named
_BATCH_PROMPTS = 1024  # counted at once, or fewer: up to this many letters
_BATCH_LETTERS = 4 << 20
_UNCOUNTED = "the prompts are not counted before the run: {}"
_NO_TRANSFORMERS = "--tokenizer needs transformers for it, .venv/bin/pip install '.[tokenizer]' in the clone"


class FilePrompts(PromptRequests):
    """The prompts of a file's rows, text or token ids, sent unchanged."""

    __slots__ = ("_ids", "_lines", "_rows", "features", "format", "input_lens", "output_lens")

    def __init__(self, lines: Lines, rows: Int64, lens: tuple[Int64, Int64], ids: Bool) -> None:
        self.format = row_kinds.PROMPTS
        self._lines, self._rows = lines, rows
        self.input_lens, self.output_lens = lens
        self._ids = ids
        self.features = {"token ids": int(ids.argmax())} if ids.any() else {}  # and the first that has them

    def prompt(self, i: int) -> list[int] | str:
        return _DECODE(self._lines[int(self._rows[i])]).prompt

    def name_row(self, i: int) -> str:
        """Name request i by file and line, as `data.jsonl row 17`."""
        return self._lines.name_row(int(self._rows[i]))

    def digest(self) -> str:
        """Return a hash of the file's bytes, of the rows that are sent and their lengths.

        A tokenizer's counts are no part of it: the same is sent without one.
        """
        columns = (self._rows, np.where(self._ids, self.input_lens, UNKNOWN_LEN), self.output_lens)
        return fingerprint(self.format, columns, [self._lines.digest().encode()])


class _Prompted(msgspec.Struct, gc=False):
    prompt: str | list[int]


_DECODE = msgspec.json.Decoder(_Prompted).decode


def of_rows(lines: Lines, kind: str, inputs: PlanInputs) -> SourcedRequests:
    """Make the requests of rows of `prompt`, texts counted if there is a tokenizer.

    Every row is checked: raises UsageError for an empty prompt, bad token ids, ids for the chat API, or an
    answer without a length.
    """
    input_lens = np.full(len(lines), UNKNOWN_LEN, dtype=np.int64)
    output_lens = np.full(len(lines), UNKNOWN_LEN, dtype=np.int64)
    ids = np.zeros(len(lines), dtype=np.bool_)
    rows = row_kinds.order_rows(len(lines), inputs)
    counting = PromptTokens(inputs, input_lens)
    asked = inputs.profile.custom_output_len or UNKNOWN_LEN
    chat = inputs.dialect.chat
    unread: dict[str, None] = {}
    for i, fields in enumerate(row_kinds.read_objects(lines, kind)):
        if len(unread) < _MOST_KEYS:
            unread.update(dict.fromkeys(fields.keys() - _READ))
        prompt = row_kinds.decode_value(lines, i, fields, "prompt", _TEXT_OR_IDS)
        if not prompt:
            raise lines.refusal(i, "has an empty prompt: leave out the row")
        if not isinstance(prompt, str):
            if chat:
                raise lines.refusal(i, "has token ids, and the chat API takes text: use --backend openai")
            if min(prompt) < 0:
                raise lines.refusal(i, f"has the token id {min(prompt)}: ids are 0 or more")
            input_lens[i], ids[i] = len(prompt), True
        elif i < len(rows):
            counting.add(i, prompt)
        length: int | None = asked
        if asked <= 0:
            has_length = "output_tokens" in fields
            length = (
                row_kinds.decode_value(lines, i, fields, "output_tokens", _LENGTH) if has_length else None
            )
        if length is None:
            raise lines.refusal(i, _NO_LENGTH)
        if not 0 < length <= MOST_TOKENS:
            raise lines.refusal(i, f"has {length} `output_tokens`: give 1 to {MOST_TOKENS}")
        output_lens[i] = length
    counting.finish()
    made = FilePrompts(lines, rows, (input_lens[rows], output_lens[rows]), ids[rows])
    named = list_first([quote_value(key) for key in sorted(unread)], _SHOWN)
    notes = (f"keys of its rows that are not sent: {named}",) if unread else ()
    facts = row_kinds.make_facts(kind, lines, rows)
    return SourcedRequests(made, facts, notes=(*counting.notes, *notes))


class PromptTokens:
    """Counts prompts' tokens into `lens`, int64[rows], as the server does, in batches.

    Counted are the tokens that a server adds too: specials, or the chat template of a message. Nothing is
    counted without a tokenizer, and where it cannot be as the server does; `why_not` says so.
    """

    def __init__(self, inputs: PlanInputs, lens: Int64) -> None:
        self._lens = lens
        self._rows: list[int] = []
        self._texts: list[str] = []
        self._letters = 0
        self.why_not = ""
        name = inputs.subject.tokenizer
        self._count = None if name is None else self._make_counter(name, inputs)

    @property
    def notes(self) -> tuple[str, ...]:
        """A line on why prompts are not counted although a tokenizer was given."""
        return (_UNCOUNTED.format(self.why_not),) if self.why_not else ()

    def add(self, row: int, text: str) -> None:
        """Queue a row's prompt and count a full batch; nothing without a counter; raises UsageError."""
        if self._count is None:
            return
        self._rows.append(row)
        self._texts.append(text)
        self._letters += len(text)
        if len(self._rows) == _BATCH_PROMPTS or self._letters >= _BATCH_LETTERS:
            self.finish()

    def finish(self) -> None:
        """Count the queued prompts; raises UsageError if a chat template fails."""
        if self._count is not None and self._rows:
            self._lens[self._rows] = self._count(self._texts)
            self._rows, self._texts, self._letters = [], [], 0

    def _make_counter(self, name: str, inputs: PlanInputs) -> Callable[[list[str]], list[int]] | None:
        """Return what counts texts as the server does; None, and `why_not` is set, if that is impossible."""
        profile = inputs.profile
        if importlib.util.find_spec("transformers") is None:
            self.why_not = _NO_TRANSFORMERS
            return None
        chat = inputs.dialect.chat
        if chat and profile.skip_chat_template:
            self.why_not = "--skip-chat-template, and the server applies its own"
            return None

        loaded = tokenizers.load_tokenizer(name, "auto")
        if not chat:
            return lambda texts: listed_texts.count_tokens(loaded, texts)
        if not loaded.chat_template:
            self.why_not = f"the tokenizer {name} has no chat template"
            return None

        def count(texts: list[str]) -> list[int]:
            more = profile.chat_template_kwargs
            templated = [listed_texts.apply_template(loaded, name, text, more) for text in texts]
            return [len(ids) for ids in loaded(templated, add_special_tokens=False)["input_ids"]]

        return count


FLAG = "--dataset-category"
# SPEED-Bench has this text in place of other data sets' texts, until they are fetched.
_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED"
_NO_LENGTHS = "holds questions without output lengths: pass --output-len N (custom_output_len in a profile)"
_UNFETCHED = "is a placeholder for another data set's text: fetch it with the data set's own prepare.py"
_NO_CATEGORY = "has an empty category: name it, or leave out the row"
_OTHER_ROLE = "has a message of the role {!r}: leave out `category` to send the row as a whole body"
_MOST_NAMED = 20


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str


_TEXT: msgspec.json.Decoder[str] = msgspec.json.Decoder(str)
_TURNS: msgspec.json.Decoder[list[str]] = msgspec.json.Decoder(list[str])
# A prepared SPEED-Bench has messages in place of turns, each a user's.
_MESSAGES: msgspec.json.Decoder[list[_Message]] = msgspec.json.Decoder(list[_Message])


class FileQuestions(FilePrompts):
    """The first turn of a file's questions, each sent as a prompt of text."""

    __slots__ = ()

    def prompt(self, i: int) -> str:
        """Return the first turn of request i."""
        row = int(self._rows[i])
        return _read_turns(self._lines, row, row_kinds.read_object(self._lines, row, self._lines[row]))[0]


def of_questions(lines: Lines, kind: str, inputs: PlanInputs) -> SourcedRequests:
    """Make the requests of questions, texts counted if there is a tokenizer.

    Each stretch of the plan has the categories in the file's proportions, and the rows of a category in the
    file's order. Raises UsageError without a length for answers, for a category that no row has, and for a
    row without a category or turns, with a placeholder or a role other than the user's.
    """
    asked = inputs.profile.custom_output_len or UNKNOWN_LEN
    if asked <= 0:
        raise lines.file.refusal(_NO_LENGTHS)
    named: dict[str, int] = {}  # the number of each category
    numbers = np.zeros(len(lines), np.int64)
    several = np.zeros(len(lines), dtype=np.bool_)
    for i, fields in enumerate(row_kinds.read_objects(lines, kind)):
        name = read_line(row_kinds.decode_value(lines, i, fields, "category", _TEXT))
        if not name:
            raise lines.refusal(i, _NO_CATEGORY)
        numbers[i] = named.setdefault(name, len(named))
        several[i] = len(_read_turns(lines, i, fields)) > 1
    names = list(named)
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


_CONVERSATIONS, _HEAD_BYTES = b'"conversations"', 1 << 20  # a key of each entry, and where the first ends
# Each function makes the requests of a kind's rows.
_READERS = {
    row_kinds.PROMPTS: file_prompts.of_rows,
    row_kinds.CHAT: bodies.of_rows,
    row_kinds.COMPLETIONS: bodies.of_rows,
    row_kinds.CONVERSATIONS: conversations.of_rows,
    row_kinds.QUESTIONS: file_prompts.of_questions,
}


def requests(inputs: PlanInputs) -> SourcedRequests:
    """Make the requests of a file by the kind of its rows, in the file's order.

    `--num-prompts N` takes the first N; where the file holds fewer they are sent again from the first, unless
    --no-oversample is given. Raises UsageError that names file and row where the file cannot be sent.
    """
    path = inputs.profile.dataset_path
    file = OpenedFile(path, row_kinds.FLAG)
    if file.read_first_byte() == b"[":
        if _CONVERSATIONS not in file.read(file.begin, _HEAD_BYTES):
            raise file.refusal(
                "is a JSON list, and not of ShareGPT's conversations: make it one JSON object a line with "
                "jq -c '.[]'"
            )
        named = inputs.profile.model_copy(update={"dataset_name": "sharegpt"})
        return sharegpt.requests(replace(inputs, profile=named), by_role=True)
    is_sheet = row_kinds.is_sheet(file)
    head = None if is_sheet else Lines.open_head(file)
    kind = "" if head is None else row_kinds.find_first_kind(head)  # refused before every row is found
    lines = row_kinds.convert_rows(file) if is_sheet else Lines(file)
    kind = kind or row_kinds.find_first_kind(lines)
    if inputs.profile.dataset_category and kind != row_kinds.QUESTIONS:
        raise file.refusal(f"holds {kind}, and --dataset-category chooses from rows of `category`, `turns`")
    return _READERS[kind](lines, kind, inputs)
