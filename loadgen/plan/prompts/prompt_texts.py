"""Prompt texts: passages of real text of exact lengths in tokens, and common words that the server counts."""

from __future__ import annotations

import hashlib
import math
from functools import cache, lru_cache
from pathlib import Path

import msgspec
import numpy as np

from loadgen.base import untrusted
from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.plan.plan_inputs import WordCounts
from loadgen.plan.planned_requests import PromptRequests, fingerprint
from loadgen.plan.prompts.random_ids import PromptShape, draw_lens, make_prefix_groups
from loadgen.plan.prompts.tokenizers import Tokenizer, load_tokenizer
from loadgen.plan.random_stream import RandomStream

SHIPPED = Path(__file__).with_name("alice_in_wonderland.txt")
_TITLE = "Alice's Adventures in Wonderland"
_FLAG = "--prompt-corpus"
_MOST_BYTES = 32 << 20
_LEAST_WORDS = 256
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zX": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
}
_PIECE = 1 << 18  # characters that are encoded at once
_LEAD = 6  # words before a passage: two prompts share them by a chance of one in some 10¹²
_LEAST_STARTS = 0.1  # of the tokens: with fewer the tokenizer does not show where words begin
_MOST_ROUNDS = 10
_NO_CHARACTER = "\ufffd"  # what a part of one is decoded to
_FILLER = " a"
# The first word has no blank before it, and so may be more tokens than elsewhere: it is always the same.
FIRST_WORD = "the"
_WORDS_FILE = Path(__file__).with_name("common_words.txt")


class Corpus(msgspec.Struct, frozen=True):
    """A text that prompts are cut from; `file` is its path as given, "" for the shipped one."""

    text: str
    name: str
    file: str
    digest: str


class CorpusTokens(msgspec.Struct, frozen=True):
    """A corpus encoded: int64[tokens], without special ones, and the places where a word begins."""

    ids: Int64
    starts: Int64

    def passage(self, rng: np.random.Generator, n: int) -> Int64:
        """`n` tokens: six words from anywhere, then the text from a drawn place on, round its end if need be.

        The words make it differ from every other passage within the first block of a prefix cache.
        """
        lead = self.ids[rng.choice(self.starts, _LEAD)]
        return np.concatenate([lead, self.following(int(rng.choice(self.starts)), max(0, n - _LEAD))])[:n]

    def following(self, start: int, n: int) -> Int64:
        """The `n` tokens from a place on."""
        return np.take(self.ids, np.arange(start, start + n), mode="wrap")


def load_corpus(path: str) -> Corpus:
    """The text in a file, the shipped one for ""; raises UsageError where it holds no text, or too little."""
    where = f"{_FLAG} {path}"
    try:
        raw = untrusted.read_file_bytes(expand_path(path) if path else SHIPPED, _MOST_BYTES)
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror}: give a text file") from None
    packed = next((name for magic, name in _COMPRESSED.items() if raw.startswith(magic)), None)
    if packed is not None:
        raise UsageError(f"{where} is compressed ({packed}): unpack it first")
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
    """The corpus by the tokenizer of this name, and that tokenizer; raises UsageError as loading it does."""
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
    begins = np.array([_begins_word(encoder.decode([token])) for token in kinds.tolist()])
    starts = np.flatnonzero(begins[which])
    if len(starts) < _LEAST_STARTS * len(ids):
        starts = np.arange(len(ids))
    return CorpusTokens(ids, starts), encoder


def _begins_word(text: str) -> bool:
    return text[:1] == " " and text[1:2].isalpha()


class CorpusIds(PromptRequests):
    """Prompts of exactly N token ids of a text, each cut when it is asked for."""

    format = "corpus"

    def __init__(
        self, shape: PromptShape, corpus: Corpus, tokens: CorpusTokens, stream: RandomStream
    ) -> None:
        self._inner_lens, self.output_lens = draw_lens(shape, stream.rng("lengths"))
        self.input_lens = self._inner_lens + shape.prefix_len
        self._corpus, self._tokens, self._key = corpus, tokens, stream.key("prompt")
        self._groups = make_prefix_groups(shape, stream, lambda rng: tokens.passage(rng, shape.prefix_len))
        self.reusable_tokens = self._groups.reusable(shape.prefix_len)

    def ids(self, i: int) -> Int64:
        """Prompt i, int64[input_lens[i]]."""
        rng = np.random.default_rng(np.random.SeedSequence(self._key, spawn_key=(i,)))
        return np.concatenate([self._groups.prefix(i), self._tokens.passage(rng, int(self._inner_lens[i]))])

    def prompt(self, i: int) -> list[int]:
        """Prompt i as the list that goes into the request's JSON."""
        ids: list[int] = self.ids(i).tolist()
        return ids

    def digest(self) -> str:
        """A fingerprint of the text, all lengths, the first 64 prompts, and which prefix each prompt has."""
        return fingerprint(self._groups.digest(super().digest()), (), (self._corpus.digest.encode(),))


class CorpusTexts(PromptRequests):
    """Prompts of a text as text; `input_lens` is how many tokens each is when it is encoded again."""

    format = "corpus"

    def __init__(self, cut: CorpusIds, tokens: CorpusTokens, tokenizer: Tokenizer) -> None:
        self.output_lens, self.reusable_tokens = cut.output_lens, cut.reusable_tokens
        fitted = [_fit_passage(cut.ids(i), tokens, tokenizer) for i in range(len(cut.input_lens))]
        self._texts = [text for text, _ in fitted]
        self.input_lens = np.array([count for _, count in fitted], np.int64)

    def prompt(self, i: int) -> str:
        """Prompt i."""
        return self._texts[i]


def _fit_passage(ids: Int64, tokens: CorpusTokens, tokenizer: Tokenizer) -> tuple[str, int]:
    """A text of the tokens `ids` that encodes to as many, and how many it encodes to.

    It neither begins nor ends with blanks, which chat templates may cut off, and has no part of a character.
    Where pieces join to fewer tokens it is longer by some words of the text, and at last by short ones;
    after ten rounds it is what it is.
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
            more = tokens.following(int(tokens.starts[(ids[-1] + rest) % len(tokens.starts)]), n - len(found))
            found = found + more.tolist()
        wanted = found[:n]
    return text, len(found)


@cache
def list_common_words() -> tuple[str, ...]:
    """512 words of English, the commonest first; sources.md says how they were chosen."""
    return tuple(_WORDS_FILE.read_text("utf-8").split())


class WordTexts(PromptRequests):
    """Prompts of random words, each made when it is asked for; `input_lens` is as the server will count.

    No two share a first block of 16 tokens but by a chance of about one in (words)^15.
    """

    format = "words"

    def __init__(self, shape: PromptShape, counts: WordCounts, stream: RandomStream) -> None:
        inner_lens, self.output_lens = draw_lens(shape, stream.rng("lengths"))
        least = math.ceil(counts.tokens(1))
        asked = inner_lens + shape.prefix_len
        if len(asked) and int(asked.max()) < least:
            raise UsageError(
                f"--random-input-len {shape.input_len}: the server adds {counts.overhead:.0f} tokens to each "
                f"prompt: give {least} or more"
            )
        self.input_lens: Int64 = np.maximum(asked, least)
        self._words, self._key = np.array(counts.words or list_common_words()), stream.key("prompt")
        self._prefix_words = counts.words_of(shape.prefix_len) if shape.prefix_len else 0
        self._bounds = self._cuts(counts)
        self._groups = make_prefix_groups(
            shape, stream, lambda rng: self._draw_words(rng, self._prefix_words - 1)
        )
        self.reusable_tokens = self._groups.reusable(shape.prefix_len)

    def prompt(self, i: int) -> str:
        """Prompt i."""
        begin, end = self._bounds[i : i + 2].tolist()
        shared = [self._groups.prefix(i)] if self._prefix_words > 1 else []
        return " ".join(
            [FIRST_WORD, *shared, *([self._deal_words(begin, end - begin)] if end > begin else [])]
        )

    def digest(self) -> str:
        """A fingerprint of all lengths, of the first 64 prompts, and of which prefix each prompt has."""
        return self._groups.digest(super().digest())

    def _cuts(self, counts: WordCounts) -> Int64:
        """Where the deal of the whole plan's words is cut: prompt i has those from [i] to [i + 1].

        Each cut is at the word nearest to the tokens of all prompts up to there, so that what one prompt
        has too much by rounding the next has less: int64[prompts + 1].
        """
        shared = counts.tokens(max(1, self._prefix_words))  # the first word among them
        own = np.maximum(self.input_lens - shared, 0)
        ends = np.floor(np.round(np.cumsum(own) / counts.per_word, 6) + 0.5).astype(np.int64)
        cuts: Int64 = np.concatenate([np.zeros(1, np.int64), ends])
        return cuts

    def _deal_words(self, begin: int, n: int) -> str:
        """`n` words from a place in the deal of a whole plan: each word as often, whatever tokens it has.

        Words of one token make each prompt exact; of others only the mean is, and drawn prompt by prompt it
        would not be within a hundredth.
        """
        kinds = len(self._words)
        rounds = -(
            -len(list_common_words()) // kinds
        )  # by one generator, whose start takes longer than its shuffling
        size = kinds * rounds
        order = []
        for deal in range(begin // size, (begin + n - 1) // size + 1):
            rng = np.random.default_rng(np.random.SeedSequence(self._key, spawn_key=(deal, 0)))
            order += [rng.permutation(kinds) for _ in range(rounds)]
        return " ".join(self._words[np.concatenate(order)[begin % size :][:n]].tolist())

    def _draw_words(self, rng: np.random.Generator, n: int) -> str:
        """`n` words, none again before all were there: so texts of one length differ least in tokens."""
        kinds = len(self._words)
        drawn = [rng.permutation(kinds) for _ in range(0, n, kinds)]
        return " ".join(self._words[np.concatenate(drawn)[:n]].tolist()) if drawn else ""
