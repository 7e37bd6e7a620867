"""ShareGPT: the first question and answer of conversations in one JSON array, by vLLM's rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from loadgen.base.json_lines import OpenedFile, explain_json
from loadgen.base.text import list_first
from loadgen.base.untrusted import NOT_JSON, read_text
from loadgen.features.data.listed_texts import FileTexts, count_tokens, oversample_rows, shuffle_rows
from loadgen.plan.planned_requests import DataFacts
from loadgen.plan.request_sources import PlanInputs, SourcedRequests
from loadgen.plan.tokenizers import FullTokenizer, find_needed_tokenizer, load_tokenizer

KIND = "sharegpt"
FLAG = "--dataset-path"
_MOST_BYTES = 1 << 30
_BATCH = 256  # conversations that are counted at once
_PEOPLE = frozenset({"human", "user"})  # who speaks a question
_SHOWN = 3
_LEAST, _MOST_PROMPT, _MOST_BOTH = 4, 1024, 2048
FEW_TURNS = "fewer than 2 turns"
SHORT_PROMPT = f"prompt of fewer than {_LEAST} tokens"
SHORT_ANSWER = f"response of fewer than {_LEAST} tokens"
LONG_PROMPT = f"prompt of more than {_MOST_PROMPT} tokens"
LONG_BOTH = f"prompt and output of more than {_MOST_BOTH} tokens"


class Conversation(msgspec.Struct):
    """One entry of the array, its turns not decoded."""

    conversations: list[msgspec.Raw] | None = None
    image: Any = None
    video: Any = None


class _Turn(msgspec.Struct):
    value: str


class _Speaker(msgspec.Struct, rename={"speaker": "from"}):
    speaker: str = ""


# An entry's place, from 1, its question, and the tokens of that and of its answer.
_Pair = tuple[int, str, int, int]


def requests(inputs: PlanInputs, by_role: bool = False) -> SourcedRequests:
    """Make the requests of ShareGPT's conversations: shuffled, filtered by tokens, drawn again if too few.

    Of each the first two turns are read, as vLLM does; `by_role`: the first of a person and the one after it.
    Raises UsageError for a file or row that is not ShareGPT's, no tokenizer, or if no row is left.
    """
    profile, seed = inputs.profile, inputs.shared_seed
    path = profile.dataset_path
    tokenizer = find_needed_tokenizer(
        inputs.subject, f"--dataset-name {KIND} counts and filters its rows by tokens"
    )
    file = OpenedFile(path, FLAG)
    entries = read_conversations(file)
    notes = _drop_and_note_openings(entries, by_role)
    kept = [i for i, entry in enumerate(entries) if len(entry.conversations or ()) >= 2]
    order = [kept[i] for i in shuffle_rows(len(kept), seed, profile.disable_shuffle)]
    skipped = Counter({FEW_TURNS: len(entries) - len(kept)})
    pairs, output_len = list[_Pair](), profile.sharegpt_output_len
    walk = _read_pairs(file, entries, order, load_tokenizer(tokenizer, KIND))
    for pair in walk:
        _, _, prompt_len, own_len = pair
        answer_len = output_len or own_len
        rules = {  # by which vLLM (`is_valid_sequence`) leaves a pair out
            SHORT_PROMPT: prompt_len < _LEAST,
            SHORT_ANSWER: output_len is None and answer_len < _LEAST,
            LONG_PROMPT: prompt_len > _MOST_PROMPT,
            LONG_BOTH: prompt_len + answer_len > _MOST_BOTH,
        }
        if why := next((why for why, holds in rules.items() if holds), ""):
            skipped[why] += 1
            continue
        pairs.append(pair)
        if len(pairs) == inputs.most:
            break
    if not pairs:
        whys = ", ".join(f"{count} with {why}" for why, count in skipped.items() if count)
        raise file.refusal(f"no row is left to send: {whys or 'it holds none'}")
    which = oversample_rows(len(pairs), inputs.most, seed, profile.no_oversample)
    facts = DataFacts(
        kind=KIND,
        file=path,
        file_digest=file.digest(),
        rows=len(entries),
        sent=len(pairs),
        repeated=len(which) - len(pairs),
        skipped={why: count for why, count in skipped.items() if count},
        text="conversations of the file: the first turn of each",
    )
    rows, prompts, prompt_lens, answer_lens = zip(*pairs, strict=True)
    input_lens = np.array(prompt_lens, np.int64)[which]
    output_lens = np.array([output_len or own_len for own_len in answer_lens], np.int64)[which]
    texts = FileTexts(list(prompts), which, (input_lens, output_lens), path, rows)
    return SourcedRequests(texts, facts, tokenizer=tokenizer, notes=notes)


def read_conversations(file: OpenedFile) -> list[Conversation]:
    """Read every entry of the array; raises UsageError if it is no array, or too large to read whole.

    The turns stay bytes of the file: only those that are sent are decoded.
    """
    if file.size > _MOST_BYTES:
        raise file.refusal(
            f"is larger than the {_MOST_BYTES >> 30} GiB that a JSON array may have: write it as JSONL, a "
            '{"prompt", "output_tokens"} a line, and leave out --dataset-name'
        )
    content = bytearray(file.size - file.begin)  # joined, the pieces would be there twice
    for at, chunk in file.read_chunks():
        content[at - file.begin : at - file.begin + len(chunk)] = chunk
    try:
        return msgspec.json.decode(content, type=list[Conversation])
    except NOT_JSON as error:
        why = explain_json(bytes(content), error)
        raise file.refusal(f"is not a JSON array of conversations: {why}") from None


def _drop_and_note_openings(entries: Sequence[Conversation], by_role: bool) -> tuple[str, ...]:
    """Return a note on conversations that do not begin with a person's turn, by who speaks their first.

    `by_role` also drops, from `entries`, the turns before the first of a person. A conversation in which no
    one is a person, as where no turn names its speaker, stays as it is.
    """
    found = Counter[str]()
    for entry in entries:
        turns = entry.conversations or []
        speakers = map(_read_speaker, turns if by_role else turns[:1])
        first = next((at for at, speaker in enumerate(speakers) if speaker in _PEOPLE), None)
        if first == 0 or not turns or not (speaker := _read_speaker(turns[0])):
            continue
        if first is not None:
            entry.conversations = turns[first:]
        if first is not None or not by_role:
            found[read_text(speaker)] += 1
    if not found:
        return ()
    named = list_first([f"{name} in {count}" for name, count in found.most_common()], _SHOWN)
    sent = (
        "left out: the prompt is the first human turn"
        if by_role
        else "sent as the prompt, as vLLM does; without --dataset-name the first human turn is sent"
    )
    others = f"{found.total()} of {len(entries)} conversations begin with another's turn ({named})"
    return (f"{others}, {sent}",)


def _read_speaker(turn: msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(turn, type=_Speaker).speaker
    except NOT_JSON:
        return ""


def _read_pairs(
    file: OpenedFile, entries: Sequence[Conversation], order: list[int], tokenizer: FullTokenizer
) -> Iterator[_Pair]:
    """Yield the pair of each entry in `order`, counted in batches; raises UsageError that names the row."""
    for begin in range(0, len(order), _BATCH):
        rows = order[begin : begin + _BATCH]
        prompts, answers = zip(*(_read_turns(file, entries[row], row) for row in rows), strict=True)
        lens = count_tokens(tokenizer, list(prompts)), count_tokens(tokenizer, list(answers))
        yield from zip((row + 1 for row in rows), prompts, *lens, strict=True)


def _read_turns(file: OpenedFile, entry: Conversation, row: int) -> tuple[str, str]:
    """Return the texts of the first two turns; raises UsageError for an image, a video or another form."""
    if entry.image or entry.video:
        raise file.refusal(
            f"row {row + 1} has {'an image' if entry.image else 'a video'}: only text is read from ShareGPT; "
            "send whole chat bodies with images as data URLs (docs/datasets.md)"
        )
    texts = list[str]()
    for turn in (entry.conversations or ())[:2]:
        try:
            texts.append(msgspec.json.decode(turn, type=_Turn).value)
        except NOT_JSON as error:
            why = explain_json(bytes(turn), error)
            what = f"row {row + 1}: a turn is no object with a text as its value"
            raise file.refusal(f"{what}: {why}") from None
    first, second = texts
    return first, second
