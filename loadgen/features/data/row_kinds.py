"""Row kinds: what the rows of a file are, known by their keys; a file of two kinds is refused by the row.

A sheet, CSV or Parquet, is read as the rows of JSON that it stands for.
"""

from __future__ import annotations

import csv
import json
import shlex
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.base.json_lines import MOST_ROW_BYTES, Lines, OpenedFile, SpooledFile, explain_json
from loadgen.base.parsing import MOST_TOKENS
from loadgen.base.text import describe_install, list_first, quote_value
from loadgen.base.untrusted import NOT_JSON
from loadgen.features.data import row_kinds
from loadgen.plan.planned_requests import DataFacts
from loadgen.plan.request_sources import PlanInputs
from loadgen.plan.trace_heads import has_trace_keys, read_first_row

FLAG = "--dataset-path"
_MOST_NAMES = 10_000  # of different models, held with the first row of each
T = TypeVar("T")
RowObject = dict[str, msgspec.Raw]  # a row's keys and the bytes of its values, in their order

PROMPTS, CHAT, COMPLETIONS = "prompts", "chat bodies", "completion bodies"
CONVERSATIONS, QUESTIONS = "conversations", "questions"
_SHOWN_KEYS = 8
# A whole body has these, a row of prompts has not: fields of the two APIs, in vLLM and SGLang.
_FIELDS = (
    "model max_tokens max_completion_tokens temperature top_p top_k min_p min_tokens stop "
    "stop_token_ids stream stream_options n best_of use_beam_search seed user logprobs top_logprobs "
    "prompt_logprobs echo suffix logit_bias frequency_penalty presence_penalty repetition_penalty "
    "ignore_eos response_format tools tool_choice "
    "chat_template chat_template_kwargs lora_path priority "
)
STRUCTURED_KEYS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")
BODY_KEYS = frozenset((*_FIELDS.split(), *STRUCTURED_KEYS))
_PROMPT = frozenset({"prompt"})
_PREPARED = frozenset({"category", "messages"})  # a question of SPEED-Bench; with a body's key a body
# Keys of a trace's rows and of conversations, that make a load; which of them each kind reads.
_OF_LOADS = (
    "timestamp", "timestamps", "arrival_time", "arrived_at", "start_time", "delay", "delay_ms",
    "delay_seconds", "session_id", "chat_id", "parent_chat_id", "conversation_id", "turn",
    "input_length", "output_length", "output_tokens", "hash_ids",
)  # fmt: skip
_READ: dict[str, frozenset[str]] = {
    PROMPTS: frozenset({"output_tokens"}),
    CHAT: frozenset(),
    COMPLETIONS: frozenset(),
    QUESTIONS: frozenset(),
    CONVERSATIONS: frozenset({"conversation_id", "turn", "delay_seconds", "output_tokens"}),
}
_SEARCHED = 1000  # rows whose keys are listed together
_JQ = "make it one JSON object a line"
# Rows of other kinds that are known, and what to do with them.
OTHERS: dict[str, tuple[frozenset[str], ...]] = {
    f"is of OpenAI's batch API: {_JQ} with jq -c .body": (frozenset({"custom_id", "body"}),),
    "is a conversation of ShareGPT: make the file one list with jq -s . FILE > list.json, and pass "
    "--dataset-path list.json --tokenizer DIR, which counts its turns": (frozenset({"conversations"}),),
    "is a body of SGLang's /generate: give rows of `prompt` and `output_tokens`": (
        frozenset({"text", "sampling_params"}),
        frozenset({"input_ids", "sampling_params"}),
    ),
}
_WANTED = (
    "`prompt` (and `output_tokens`), a whole body with `messages` or `prompt`, `category` and `turns`, or "
    "`conversation_id`, `turn`, `role`"
)
_DECODE = msgspec.json.Decoder(RowObject).decode


class RowKind(msgspec.Struct, frozen=True):
    """One kind of row (prompt, chat body, conversation, …), recognized by its keys."""

    required: frozenset[str]
    one_of: frozenset[str] = frozenset()  # at least one of them too
    without: frozenset[str] = frozenset()  # and none of these

    def fits(self, keys: Collection[str]) -> bool:
        """Whether a row with these keys is of this kind."""
        found = frozenset(keys)
        return (
            self.required <= found
            and not self.without & found
            and (not self.one_of or bool(self.one_of & found))
        )


KINDS: dict[str, tuple[RowKind, ...]] = {
    PROMPTS: (RowKind(_PROMPT, without=BODY_KEYS), RowKind(_PROMPT | {"output_tokens"})),
    CHAT: (
        RowKind(frozenset({"messages"}), without=frozenset({"category"})),
        RowKind(_PREPARED, one_of=BODY_KEYS),
    ),
    QUESTIONS: (RowKind(frozenset({"category", "turns"})), RowKind(_PREPARED, without=BODY_KEYS)),
    COMPLETIONS: (RowKind(_PROMPT, one_of=BODY_KEYS),),
    CONVERSATIONS: (RowKind(frozenset({"conversation_id", "turn", "role"})),),
}


def find_kind(keys: Collection[str]) -> str:
    """Return the key of KINDS that fits a row's keys; raises ValueError, with what to do, for none or two."""
    found = [name for name, kinds in KINDS.items() if any(kind.fits(keys) for kind in kinds)]
    if len(found) == 1:
        return found[0]
    if found:
        first, *_, last = found
        raise ValueError(
            f"its keys ({_list_keys(keys)}) are of two kinds, {first} and {last}: leave out some"
        )
    held = frozenset(keys)
    for advice, others in OTHERS.items():
        if any(other <= held for other in others):
            raise ValueError(advice)
    if has_trace_keys(held):
        raise ValueError("is of a trace: pass --trace FILE, in place of --dataset-path")
    raise ValueError(f"its keys ({_list_keys(keys)}) are of no kind that is known: give {_WANTED}")


def explain_unread(keys: Collection[str], kind: str, path: str = "") -> str:
    """Return which keys of rows hold a load that is not sent of their kind, and what to do; "" if none does.

    `path` is of the JSON lines that they stand in; "": they are columns.
    """
    found = [key for key in _OF_LOADS if key in keys and key not in _READ[kind]]
    if not found:
        return ""
    listed, selected = (", ".join(form.format(key) for key in found) for form in ("`{}`", ".{}"))
    without = "leave out these columns"
    if path:
        named = shlex.quote(path)
        without = f"jq -c 'del({selected})' {named} > rows.jsonl, then --dataset-path rows.jsonl"
    make, are = ("makes", "is") if len(found) == 1 else ("make", "are")
    return (
        f"{listed} {make} the load of a trace or of conversations, and {are} not read of {kind}: write the "
        "rows as conversations (`conversation_id`, `turn`, `role`, `content`, `delay_seconds`), or send them "
        f"without times and sessions: {without}"
    )


def find_first_kind(lines: Lines) -> str:
    """Return the kind of a file by its first row; raises UsageError for none, or two.

    Also raises where the first rows have keys of a load that their kind does not send.
    """
    try:
        kind = find_kind(read_object(lines, 0, lines[0]))
    except ValueError as error:
        raise lines.refusal(0, str(error)) from None
    keys: set[str] = set()
    for i, row in enumerate(islice(lines.read_rows(), _SEARCHED)):
        try:
            own = read_object(lines, i, row).keys()
            if find_kind(own) != kind:
                return kind  # and a row of another kind is refused in its turn
        except UsageError:
            break  # and so is this one
        except ValueError:
            return kind
        keys |= own
    if why := explain_unread(keys, kind, lines.path):
        raise lines.file.refusal(why)
    return kind


def read_objects(lines: Lines, kind: str) -> Iterator[RowObject]:
    """Yield every row in order as its keys and JSON values; raises UsageError for one of another kind."""
    known: dict[tuple[str, ...], str] = {}  # by keys: a file has few different sets of them
    for i, row in enumerate(lines.read_rows()):
        fields = read_object(lines, i, row)
        keys = tuple(fields)
        if keys not in known:
            try:
                found = find_kind(keys)
            except ValueError as error:
                raise lines.refusal(i, str(error)) from None
            if found == kind and (why := explain_unread(keys, kind, lines.path)):
                raise lines.refusal(i, why)
            if found != kind:
                raise lines.refusal(
                    i,
                    f"is of the kind {found} (keys {_list_keys(keys)}), and the rows before it are {kind}: "
                    "give a file of each kind",
                )
            if len(known) < 1000:
                known[keys] = kind
        yield fields


def read_object(lines: Lines, i: int, row: bytes) -> RowObject:
    """Decode row i to keys and JSON bytes; raises UsageError if it is no object or repeats a key."""
    try:
        fields = _DECODE(row)
    except NOT_JSON as error:
        text = row.strip()
        if text in (b"{", b"["):
            why = f"is not the whole of a JSON value: {_JQ} with jq -c . {lines.path}"
        elif isinstance(error, msgspec.ValidationError):
            why = "is not a JSON object: give one a line"
        else:
            why = explain_json(row, error)
        raise lines.refusal(i, why) from None
    if twice := _find_twice(fields, row):
        raise lines.refusal(i, f"has the key {quote_value(twice)} twice: leave out one")
    return fields


def decode_value(lines: Lines, i: int, fields: RowObject, key: str, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode a row's value by `decoder`; raises UsageError that names row and key."""
    try:
        return decoder.decode(fields[key])
    except NOT_JSON as error:
        raise lines.refusal(i, explain_json(bytes(fields[key]), error, key)) from None


def _find_twice(fields: RowObject, row: bytes) -> str:
    """Return a key that a row has twice; "" if there is none.

    A row of a usual writer is as long as its keys and values without spaces, or is these with a space behind
    each separator; only another is read again, slowly.
    """
    text = row.rstrip()
    if len(text) == len(msgspec.json.encode(fields)):
        return ""
    if text == b"{%b}" % b", ".join(msgspec.json.encode(key) + b": " + fields[key] for key in fields):
        return ""
    try:
        pairs = json.loads(row, object_pairs_hook=list)
    except (ValueError, RecursionError):
        return ""  # what strict JSON is, msgspec has decided
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return str(key)
        seen.add(key)
    return ""


def _list_keys(keys: Collection[str]) -> str:
    return list_first([quote_value(key) for key in keys], _SHOWN_KEYS) or "none"


def is_of_conversations(path: str) -> bool:
    """Whether the first row of a file is a turn of a conversation; False if unreadable."""
    try:
        return find_kind(_DECODE(read_first_row(OpenedFile(path, FLAG))[0])) == CONVERSATIONS
    except (*NOT_JSON, ValueError, UsageError):
        return False


def read_body_text(body: bytes) -> str:
    """Return all text of a request's prompt or messages, without roles, tools and images."""
    fields: dict[str, Any] = msgspec.json.decode(body)
    return "\n".join(_list_texts([fields.get("prompt"), fields.get("text"), fields.get("messages")]))


def _list_texts(value: Any) -> Iterator[str]:
    """Yield a text, or those of a list's parts or of an object's `content` and `text`; nothing else."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _list_texts(part)
    elif isinstance(value, dict):
        yield from _list_texts([value.get("content"), value.get("text")])


def name_first(found: dict[str, int], name: str | None, i: int) -> None:
    """Set a name's index in `found` unless it has one; None, and names after 10,000, are ignored."""
    if name is not None and len(found) < _MOST_NAMES:
        found.setdefault(name, i)


def order_rows(rows: int, inputs: PlanInputs) -> Int64:
    """Return which row each request sends, int64[requests]: the file's order, repeated up to `inputs.most`.

    Not repeated with `no_oversample`; without `most` it is the file once.
    """
    most = rows if inputs.most is None else inputs.most
    return np.arange(min(most, rows) if inputs.profile.no_oversample else most, dtype=np.int64) % rows


def make_facts(kind: str, lines: Lines, sent: Int64) -> DataFacts:
    """Make the facts of the rows that are sent, each counted once, and of those sent again.

    `sent` is int64[requests], row numbers; the rows from the first to its greatest are all sent.
    """
    different = min(len(sent), int(sent.max(initial=-1)) + 1)
    return DataFacts(
        kind=kind,
        file=lines.path,
        file_digest=lines.digest(),
        rows=len(lines),
        sent=different,
        repeated=len(sent) - different,
    )


_PARQUET = b"PAR1"  # the first bytes of the file
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_BATCH_ROWS = 1024
_PROMPT_COLUMN, _LENGTH = "prompt", "output_tokens"
_HEADER_ROW = 1
_NO_PARQUET = f"is Parquet, which needs pyarrow: {describe_install('parquet')}"


def is_sheet(file: OpenedFile) -> bool:
    """Whether a file is Parquet, or CSV by its name or its column `prompt`."""
    if file.read(0, len(_PARQUET)) == _PARQUET:
        return True
    if file.read_first_byte() in b"{[":
        return False
    names = file.read(file.begin, 4096).partition(b"\n")[0].split(b",")
    return _find_separator(file) is not None or _PROMPT_COLUMN.encode() in [
        name.strip(b' "\r') for name in names
    ]


def convert_rows(file: OpenedFile) -> Lines:
    """Convert a sheet to lines of JSON, one key per column; raises UsageError that names file and row.

    Of Parquet all columns, those left out of a row that are null in it. Of CSV those of prompts: `prompt` and
    `output_tokens`, whose first row is the header.
    """
    if file.read(0, len(_PARQUET)) == _PARQUET:
        return Lines(SpooledFile(file.path, file.flag, _convert_parquet_rows(file), file.digest))
    # Raised from 128 KiB a cell; here, not where rows are made: an error keeps that generator from its end.
    before = csv.field_size_limit(MOST_ROW_BYTES)
    try:
        rows, first_row = _convert_csv_rows(file), _HEADER_ROW + 1
        return Lines(SpooledFile(file.path, file.flag, rows, file.digest, first_row))
    finally:
        csv.field_size_limit(before)


def _find_separator(file: OpenedFile) -> str | None:
    return _SEPARATORS.get(PurePath(file.path).suffix.lower())


def _convert_csv_rows(file: OpenedFile) -> Iterator[bytes]:
    """Yield each row of CSV as JSON of its prompt, and of its length if it has one; b"" for a blank row."""
    cells = _read_csv_rows(file)
    names = [name.strip() for name in next(cells, [])]
    try:
        kind = row_kinds.find_kind(names)
    except ValueError as error:
        raise file.refusal(str(error), _HEADER_ROW) from None
    if kind != row_kinds.PROMPTS:
        raise file.refusal(f"is CSV of {kind}: give them as JSONL", _HEADER_ROW)
    if why := row_kinds.explain_unread(names, kind):
        raise file.refusal(why, _HEADER_ROW)
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise file.refusal(f"has the column {quote_value(twice)} twice", _HEADER_ROW)
    prompt, length = names.index(_PROMPT_COLUMN), names.index(_LENGTH) if _LENGTH in names else None
    for number, row in enumerate(cells, _HEADER_ROW + 1):
        if not row:
            yield b""
            continue
        if len(row) != len(names):
            raise file.refusal(f"has {len(row)} cells, and the header {len(names)}", number)
        fields: dict[str, Any] = {_PROMPT_COLUMN: row[prompt]}
        if cell := "" if length is None else row[length].strip():
            if not (cell.isascii() and cell.isdecimal() and len(cell) <= len(str(MOST_TOKENS))):
                raise file.refusal(f"has {quote_value(cell)} as {_LENGTH}: give 1 to {MOST_TOKENS}", number)
            fields[_LENGTH] = int(cell)
        yield msgspec.json.encode(fields)


def _read_csv_rows(file: OpenedFile) -> Iterator[list[str]]:
    """Yield the cells of each row, the header too; raises UsageError that names the row."""
    number, text = 0, map(bytes.decode, file.read_lines())
    try:
        for row in csv.reader(text, delimiter=_find_separator(file) or ",", strict=True):
            number += 1
            yield row
    except csv.Error as error:
        raise file.refusal(f"is not valid CSV: {error}", number + 1) from None
    except UnicodeDecodeError:
        raise file.refusal("is not UTF-8: convert the file to it", number + 1) from None


def _convert_parquet_rows(file: OpenedFile) -> Iterator[bytes]:
    """Yield each row as JSON of its columns that are not null; raises UsageError, also without pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise file.refusal(_NO_PARQUET) from None
    number = 0
    try:
        with parquet.ParquetFile(expand_path(file.path)) as table:
            for batch in table.iter_batches(_BATCH_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    kept = {key: value for key, value in row.items() if value is not None}
                    try:
                        encoded = msgspec.json.encode(kept)
                    except (TypeError, ValueError, OverflowError) as error:
                        raise file.refusal(f"cannot be JSON: {error}", number) from None
                    yield encoded
    except (OSError, pyarrow.ArrowException) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise file.refusal(f"is not valid Parquet: {why}") from None
