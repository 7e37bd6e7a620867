"""Prompt texts: random prompts of ids, of real text of exact lengths, or of words that the server counts.

The texts of `vllm bench serve` by `random` are here too, token for token, to reproduce other clients' runs:
consecutive ids of the vocabulary, decoded. For one seed they are always the same, so that a second run may
meet the server's prefix cache.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base import untrusted
from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.base.json_lines import OpenedFile
from loadgen.plan.model_files import find_vocabulary
from loadgen.plan.planned_requests import DataFacts
from loadgen.plan.profile import Profile
from loadgen.plan.random_prompts import (
    IDS,
    PromptShape,
    PromptSource,
    RandomPrompts,
    SharedPrefixes,
    TokenIds,
    draw_lens,
    find_length_bounds,
    is_count_known,
    make_shape,
)
from loadgen.plan.request_sources import (
    FIRST_WORD,
    WORDS,
    ModelTarget,
    PlanInputs,
    RandomStream,
    SourcedRequests,
    WordCounts,
    list_common_words,
)
from loadgen.plan.tokenizers import (
    Tokenizer,
    find_needed_tokenizer,
    find_optional_tokenizer,
    fit_text,
    load_tokenizer,
)
from loadgen.wire.openai import Dialect

TEXT_VLLM, TEXT_VLLM_0_9 = "text-vllm", "text-vllm-0.9"


class TextPrompts(RandomPrompts):
    """Texts that are all made beforehand; `input_lens` is the client's count, int64[requests]."""

    def __init__(
        self, form: str, texts: list[str], input_lens: Int64, output_lens: Int64, reusable_tokens: int
    ) -> None:
        self.format = form
        self.reusable_tokens = reusable_tokens
        self.texts = texts
        self.input_lens = input_lens
        self.output_lens = output_lens

    def prompt(self, i: int) -> str:
        """Return text i."""
        return self.texts[i]


def make_text_vllm(shape: PromptShape, tokenizer: Tokenizer, seed: int) -> TextPrompts:
    """Make the random texts of vLLM since PR #24937 (September 2025): `text-vllm`.

    Texts are cut or filled until exact. All draws come from one `default_rng(seed)` in this order: input
    lengths, output lengths, offsets, the prefix, then the filling. `input_lens` is exact but for texts that
    do not settle within ten rounds. The tokens that the tokenizer adds to every prompt are part of input_len.
    Raises UsageError for a negative seed, or where no prompt is left.
    """
    if seed < 0:
        raise UsageError(f"--seed {seed}: text-vllm takes 0 or more, as numpy's default_rng does")
    rng = np.random.default_rng(seed)
    n, added = shape.num_prompts, tokenizer.num_special_tokens_to_add()
    if shape.input_dist is None:
        _find_inner_len(shape, tokenizer)
    inner_lens, output_lens = draw_lens(shape, rng, added, least=0)
    offsets = rng.integers(0, tokenizer.vocab_size, n)
    allowed = np.setdiff1d(np.arange(tokenizer.vocab_size), tokenizer.all_special_ids)
    prefix: list[int] = []

    def draw_ids(count: int) -> list[int]:
        # Any id at all, special ones in the base vocabulary too: vLLM does not leave them out here.
        ids: list[int] = rng.integers(0, tokenizer.vocab_size, count).tolist()
        return ids

    if shape.prefix_len:
        first = allowed[rng.integers(0, len(allowed), shape.prefix_len)].tolist()
        _, prefix = fit_text(tokenizer, first, shape.prefix_len, draw_ids)
    texts, counts = [], []
    for i, (offset, inner_len) in enumerate(zip(offsets.tolist(), inner_lens.tolist(), strict=True)):
        inner = allowed[(offset + i + np.arange(inner_len)) % len(allowed)].tolist()
        text, ids = fit_text(tokenizer, prefix + inner, shape.prefix_len + inner_len, draw_ids)
        texts.append(text)
        counts.append(len(ids))
    return _gather_texts(TEXT_VLLM, texts, counts, output_lens, shape)


def make_text_vllm_0_9(shape: PromptShape, tokenizer: Tokenizer, seed: int) -> TextPrompts:
    """Make the random texts of vLLM 0.9–0.10.1 (mid-2025), cut but never filled: `text-vllm-0.9`.

    All draws come from the legacy `RandomState(seed)`, which is what numpy's global generator was, in this
    order: the prefix, input lengths, output lengths, offsets; special ids are not left out. Some texts
    re-encode short and stay short: 100 × 2048, seed 0 and Qwen's tokenizer make 204169. Raises UsageError.
    """
    if not 0 <= seed < 2**32:
        raise UsageError(f"--seed {seed}: text-vllm-0.9 takes 0 to {2**32 - 1}, as numpy's RandomState does")
    state = np.random.RandomState(seed)
    if shape.compat == "vllm":  # whose meaning of a range ratio was another: both bounds rounded down
        shape = replace(shape, compat="vllm-0.9")
    n, vocab_size, length = shape.num_prompts, tokenizer.vocab_size, _find_inner_len(shape, tokenizer)
    prefix = state.randint(0, vocab_size, shape.prefix_len).tolist()
    low, high = find_length_bounds(length, shape.range_ratio_input, shape.compat, least=0)
    inner_lens = state.randint(low, high + 1, n, np.int64)
    low, high = find_length_bounds(shape.output_len, shape.range_ratio_output, shape.compat)
    output_lens = state.randint(low, high + 1, n, np.int64)
    offsets = state.randint(0, vocab_size, n)
    texts, counts = [], []
    for i, (offset, inner_len) in enumerate(zip(offsets.tolist(), inner_lens.tolist(), strict=True)):
        inner = ((offset + i + np.arange(inner_len)) % vocab_size).tolist()
        text = tokenizer.decode(prefix + inner)
        ids = tokenizer.encode(text, add_special_tokens=False)[: shape.prefix_len + inner_len]
        texts.append(tokenizer.decode(ids))
        counts.append(len(ids))
    return _gather_texts(TEXT_VLLM_0_9, texts, counts, output_lens, shape)


def _gather_texts(
    form: str, texts: list[str], counts: list[int], output_lens: Int64, shape: PromptShape
) -> TextPrompts:
    """Make the prompts of these texts; reusable are the prefix's tokens, for each prompt but the first."""
    reusable = shape.prefix_len * max(0, shape.num_prompts - 1)
    return TextPrompts(form, texts, np.array(counts, np.int64), output_lens, reusable)


FORMATS = {TEXT_VLLM: make_text_vllm, TEXT_VLLM_0_9: make_text_vllm_0_9}


def make_vllm_texts(prompt_format: str, shape: PromptShape, tokenizer: str | None, seed: int) -> TextPrompts:
    """Make all prompts as the version of `vllm bench serve` that `prompt_format` names would.

    All at once, since they are drawn from one generator. Raises UsageError without a tokenizer that loads,
    and for options that this version lacks.
    """
    if shape.prefix_groups > 1:
        raise UsageError(
            f"--prefix-groups: {prompt_format} has one prefix: use --prompt-format corpus or ids"
        )
    if prompt_format == TEXT_VLLM_0_9 and (shape.input_dist or shape.output_dist):
        raise UsageError(
            "--input-dist and --output-dist: vLLM 0.9 has neither: use --prompt-format text-vllm"
        )
    return FORMATS[prompt_format](shape, load_tokenizer(tokenizer, prompt_format), seed)


def _find_inner_len(shape: PromptShape, tokenizer: Tokenizer) -> int:
    """Return a prompt's tokens without prefix and those the tokenizer adds; raises UsageError if none."""
    added = tokenizer.num_special_tokens_to_add()
    length = max(0, shape.input_len - added)
    if shape.prefix_len + find_length_bounds(length, shape.range_ratio_input, shape.compat, least=0)[0] < 1:
        raise UsageError(
            f"--random-input-len {shape.input_len}: no prompt is left after the "
            f"{added} tokens that the tokenizer adds to each: give more"
        )
    return length


SHIPPED = Path(__file__).with_name("alice_in_wonderland.txt")
_TITLE = "Alice's Adventures in Wonderland"
CORPUS = "corpus"
_FLAG = "--prompt-corpus"
_MOST_BYTES = 32 << 20
_LEAST_WORDS = 256
_PIECE = 1 << 18  # characters that are encoded at once
_LEAD = 6  # words before a passage: two prompts share them by a chance of one in some 10¹²
_LEAST_STARTS = 0.1  # of the tokens: with fewer the tokenizer does not show where words begin
_MOST_ROUNDS = 10
_NO_CHARACTER = "\ufffd"  # what a part of one is decoded to
_FILLER = " a"


def requests(inputs: PlanInputs) -> SourcedRequests:
    """Make a profile's random requests; raises UsageError if profile and server do not fit."""
    shape, notes = make_shape(inputs)
    form = choose_form(inputs.profile, inputs.subject, inputs.dialect)
    source = open_source(form, inputs)
    made = source.make(shape, inputs.stream)
    reusable = made.reusable_tokens if is_count_known(shape, inputs.profile) else None
    return SourcedRequests(
        made,
        replace(source.facts, sent=shape.num_prompts, reusable_tokens=reusable),
        ids_source=source.ids_source,
        tokenizer=source.tokenizer,
        notes=(*notes, *source.notes),
    )


def choose_form(profile: Profile, subject: ModelTarget, dialect: Dialect) -> str:
    """Choose the form of prompts: the profile's, else token ids, else texts by a tokenizer, else words.

    Raises UsageError where the API does not take it, or a corpus is named and another form.
    """
    wanted, text = profile.prompt_format, profile.prompt_corpus
    if wanted in ("auto", IDS) and not text and subject.takes_ids(dialect):
        return IDS
    if text and wanted not in ("auto", CORPUS):
        raise UsageError(f"--prompt-corpus and --prompt-format {wanted} are two texts: leave out one of them")
    if wanted == IDS:
        who = subject.name_text_api(dialect)
        raise UsageError(f"{who} takes text, not token ids: use --prompt-format words or corpus")
    if wanted != "auto":
        return wanted
    if text:
        return CORPUS
    return WORDS if find_optional_tokenizer(subject) is None else TEXT_VLLM


def open_source(form: str, inputs: PlanInputs) -> PromptSource:
    """Open the source of prompts of a form; raises UsageError if its file or tokenizer is missing."""
    subject = inputs.subject
    if form == CORPUS:
        return _open_corpus(inputs)
    if form == IDS:
        found = find_vocabulary(subject.tokenizer, subject.model_root, subject.vocab_size)
        return PromptSource(
            lambda shape, stream: TokenIds(shape, found.draw, stream), ids_source=found.source
        )
    if form == WORDS:
        counts = subject.word_counts or WordCounts()
        return PromptSource(
            lambda shape, stream: WordTexts(shape, counts, stream),
            DataFacts(text=f"{len(counts.choices)} common words"),
            notes=(f"prompts of words: {counts.explanation}",),
        )
    tokenizer = _find_tokenizer(inputs.profile, subject)

    def make(shape: PromptShape, stream: RandomStream) -> TextPrompts:
        """Make texts as other clients do, all beforehand."""
        _check_count(form, shape, inputs.profile)
        return make_vllm_texts(form, shape, tokenizer, inputs.shared_seed)

    return PromptSource(make, tokenizer=tokenizer)


def _open_corpus(inputs: PlanInputs) -> PromptSource:
    """Open prompts of passages of real text, as ids where the API takes them, else as texts made beforehand.

    Raises UsageError without a tokenizer, or for a bad text.
    """
    text = load_corpus(inputs.profile.prompt_corpus)
    facts = DataFacts(file=text.file, file_digest=text.digest if text.file else "", text=text.name)
    tokenizer = _find_tokenizer(inputs.profile, inputs.subject)
    tokens, encoder = encode_corpus(text, tokenizer)

    def cut(shape: PromptShape, stream: RandomStream) -> TokenIds:
        return TokenIds(shape, tokens.draw_passage, stream, CORPUS, text.digest)

    def make_texts(shape: PromptShape, stream: RandomStream) -> TextPrompts:
        _check_count(CORPUS, shape, inputs.profile)
        ids = cut(shape, stream)
        fitted = [_fit_passage(ids.ids(i), tokens, encoder) for i in range(len(ids.input_lens))]
        lens = np.array([count for _, count in fitted], np.int64)
        return TextPrompts(CORPUS, [text for text, _ in fitted], lens, ids.output_lens, ids.reusable_tokens)

    if inputs.subject.takes_ids(inputs.dialect):
        return PromptSource(cut, facts, ids_source=f"{text.name}, by {tokenizer}", tokenizer=tokenizer)
    return PromptSource(make_texts, facts, tokenizer=tokenizer)


def _find_tokenizer(profile: Profile, subject: ModelTarget) -> str:
    """Return the tokenizer to make texts with; raises UsageError, with what needs it, if there is none."""
    what, instead = "the data set is text", ""
    if profile.dataset_name not in (None, "random"):
        what = f"--dataset-name {profile.dataset_name} is text"
    elif profile.prompt_format != "auto" or profile.prompt_corpus:
        given = f"--prompt-format {profile.prompt_format}"
        what = f"{'--prompt-corpus' if profile.prompt_format == 'auto' else given} sends text"
        instead = "; --prompt-format words needs none"
    return find_needed_tokenizer(subject, what, instead)


def _check_count(form: str, shape: PromptShape, profile: Profile) -> None:
    """Raise UsageError if texts must be made beforehand and their number is unknown."""
    if not is_count_known(shape, profile):
        raise UsageError(f"--duration with {form} needs --num-prompts: texts are all built beforehand")


class Corpus(msgspec.Struct, frozen=True):
    """A text that prompts are cut from; `file` is its path as given, "" for the shipped one."""

    text: str
    name: str
    file: str
    digest: str


class CorpusTokens(msgspec.Struct, frozen=True):
    """A corpus as int64[tokens], without special ones, and the indices at which words begin."""

    ids: Int64
    starts: Int64

    def draw_passage(self, rng: np.random.Generator, n: int) -> Int64:
        """Return `n` tokens: six random words, then a random passage, which wraps at the end.

        The words make it differ from every other passage within the first block of a prefix cache.
        """
        lead = self.ids[rng.choice(self.starts, _LEAD)]
        return np.concatenate([lead, self.take_following(int(rng.choice(self.starts)), max(0, n - _LEAD))])[
            :n
        ]

    def take_following(self, start: int, n: int) -> Int64:
        """Return the `n` tokens from index `start`, wrapping at the end."""
        return np.take(self.ids, np.arange(start, start + n), mode="wrap")


def load_corpus(path: str) -> Corpus:
    """Load the text in a file, "" for the shipped one; raises UsageError if it is no text, or too short."""
    where = f"{_FLAG} {path}"
    if path:
        OpenedFile(path, _FLAG)  # refuses what is not a text file
    try:
        raw = untrusted.read_file_bytes(expand_path(path) if path else SHIPPED, _MOST_BYTES)
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror}: give a text file") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{where} row {line} is not UTF-8: convert it, or give another text") from None
    words = len(text.split())
    if words < _LEAST_WORDS:
        what = "is empty" if not words else f"is too short, with {words} words of at least {_LEAST_WORDS}"
        raise UsageError(f"{where} {what}: give a longer text")
    digest = hashlib.blake2b(raw, digest_size=16).hexdigest()
    return Corpus(text, path or f"{_TITLE} (shipped)", path, digest)


@lru_cache(maxsize=2)  # a warm-up, a run and its repeats encode it once
def encode_corpus(corpus: Corpus, tokenizer: str) -> tuple[CorpusTokens, Tokenizer]:
    """Encode a corpus by a tokenizer; return its tokens without special ones, and the loaded tokenizer.

    If under a tenth of the tokens show where a word begins, passages begin at any. Raises UsageError for
    too few tokens. The last two results are cached.
    """
    encoder = load_tokenizer(tokenizer, "corpus")
    lines = corpus.text.splitlines(keepends=True)
    pieces, size = [""], 0
    for line in lines:
        if size + len(line) > _PIECE:
            pieces.append("")
            size = 0
        pieces[-1] += line
        size += len(line)
    columns = [np.array(encoder.encode(piece, add_special_tokens=False), np.int64) for piece in pieces]
    ids = np.concatenate(columns)
    ids = ids[~np.isin(ids, encoder.all_special_ids)]
    if len(ids) < _LEAST_WORDS:
        raise UsageError(
            f"--tokenizer {tokenizer} makes {len(ids)} tokens of {corpus.name}: is it the model's?"
        )
    kinds, which = np.unique(ids, return_inverse=True)
    texts = (encoder.decode([token]) for token in kinds.tolist())
    begins = np.array([text[:1] == " " and text[1:2].isalpha() for text in texts])
    starts = np.flatnonzero(begins[which])
    if len(starts) < _LEAST_STARTS * len(ids):
        starts = np.arange(len(ids))
    return CorpusTokens(ids, starts), encoder


def _fit_passage(ids: Int64, tokens: CorpusTokens, tokenizer: Tokenizer) -> tuple[str, int]:
    """Find a text that encodes to as many tokens as `ids`; return it and how many it encodes to.

    It neither begins nor ends with blanks, which chat templates may cut off, and has no part of a character.
    Where pieces join to fewer tokens it is longer by some words of the text, and at last by short ones; after
    ten rounds it is what it is.
    """
    n, rest = len(ids), 0
    wanted = ids.tolist()
    for rounds in range(_MOST_ROUNDS):
        text = tokenizer.decode(wanted).replace(_NO_CHARACTER, "").strip()
        found = tokenizer.encode(text, add_special_tokens=False)
        if len(found) < n and rounds >= _MOST_ROUNDS // 2:
            text += _FILLER * (n - len(found))
            found = tokenizer.encode(text, add_special_tokens=False)
        if len(found) == n:
            break
        if len(found) < n:
            rest += 1
            more = tokens.take_following(
                int(tokens.starts[(ids[-1] + rest) % len(tokens.starts)]), n - len(found)
            )
            found = found + more.tolist()
        wanted = found[:n]
    return text, len(found)


class WordTexts(SharedPrefixes[str]):
    """Prompts of random words, made when needed; `input_lens` is in the server's tokens.

    No two share a first block of 16 tokens but by a chance of about one in (words)^15.
    """

    format = WORDS

    def __init__(self, shape: PromptShape, counts: WordCounts, stream: RandomStream) -> None:
        super().__init__(shape, stream, lambda rng: self._draw_words(rng, self._prefix_words - 1))
        least = math.ceil(counts.tokens(1))
        if len(self.input_lens) and int(self.input_lens.max()) < least:
            raise UsageError(
                f"--random-input-len {shape.input_len}: the server adds {counts.overhead:.0f} tokens to each "
                f"prompt: give {least} or more"
            )
        self.input_lens = np.maximum(self.input_lens, least)
        self._words = np.array(counts.choices)
        self._prefix_words = counts.count_words(shape.prefix_len) if shape.prefix_len else 0
        # Each cut is at the word nearest to the tokens of all prompts up to there, so that what one
        # prompt has too much by rounding the next has less.
        shared = counts.tokens(max(1, self._prefix_words))  # the first word among them
        own = np.maximum(self.input_lens - shared, 0)
        ends = np.floor(np.round(np.cumsum(own) / counts.per_word, 6) + 0.5).astype(np.int64)
        self._bounds: Int64 = np.concatenate([np.zeros(1, np.int64), ends])

    def prompt(self, i: int) -> str:
        """Return the text of prompt i."""
        begin, end = self._bounds[i : i + 2].tolist()
        shared = [self._groups.prefix(i)] if self._prefix_words > 1 else []
        return " ".join(
            [FIRST_WORD, *shared, *([self._deal_words(begin, end - begin)] if end > begin else [])]
        )

    def _deal_words(self, begin: int, n: int) -> str:
        """Return `n` words from position `begin` of the plan's sequence, in which all are equally frequent.

        Words of one token make each prompt exact; of others only the mean is, and drawn prompt by prompt it
        would not be within a hundredth.
        """
        kinds = len(self._words)
        # One generator shuffles all, since starting one takes longer than its shuffling.
        rounds = -(-len(list_common_words()) // kinds)
        size = kinds * rounds
        order = []
        for deal in range(begin // size, (begin + n - 1) // size + 1):
            rng = self.make_rng(deal, 0)
            order += [rng.permutation(kinds) for _ in range(rounds)]
        return " ".join(self._words[np.concatenate(order)[begin % size :][:n]].tolist())

    def _draw_words(self, rng: np.random.Generator, n: int) -> str:
        """Draw `n` words, repeating none until all were drawn: so texts differ least in tokens."""
        kinds = len(self._words)
        drawn = [rng.permutation(kinds) for _ in range(0, n, kinds)]
        return " ".join(self._words[np.concatenate(drawn)[:n]].tolist()) if drawn else ""
