"""Words: prompts of common words, as many as the server itself counts as the tokens that were asked for."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError
from loadgen.plan.plan_inputs import WordCounts
from loadgen.plan.prompts.random_ids import PromptShape, drawn_lens, grouped
from loadgen.plan.requests import PromptRequests
from loadgen.plan.streams import RandomStream

# The first word has no blank before it, and so may be more tokens than elsewhere: it is always the same.
FIRST = "the"
_FILE = Path(__file__).with_name("common_words.txt")


@cache
def common() -> tuple[str, ...]:
    """512 words of English, the commonest first; sources.md says how they were chosen."""
    return tuple(_FILE.read_text("utf-8").split())


class WordTexts(PromptRequests):
    """Prompts of random words, each made when it is asked for; `input_lens` is as the server will count.

    No two share a first block of 16 tokens but by a chance of about one in (words)^15.
    """

    format = "words"

    def __init__(self, shape: PromptShape, counts: WordCounts, stream: RandomStream) -> None:
        inner_lens, self.output_lens = drawn_lens(shape, stream.rng("lengths"))
        least = math.ceil(counts.tokens(1))
        asked = inner_lens + shape.prefix_len
        if len(asked) and int(asked.max()) < least:
            raise UsageError(
                f"--random-input-len {shape.input_len}: the server adds {counts.overhead:.0f} tokens to each "
                f"prompt: give {least} or more"
            )
        self.input_lens: Int64 = np.maximum(asked, least)
        self._words, self._key = np.array(counts.words or common()), stream.key("prompt")
        self._prefix_words = counts.words_of(shape.prefix_len) if shape.prefix_len else 0
        self._bounds = self._cuts(counts)
        self._groups = grouped(shape, stream, lambda rng: self._drawn(rng, self._prefix_words - 1))
        self.reusable_tokens = self._groups.reusable(shape.prefix_len)

    def prompt(self, i: int) -> str:
        """Prompt i."""
        begin, end = self._bounds[i : i + 2].tolist()
        shared = [self._groups.prefix(i)] if self._prefix_words > 1 else []
        return " ".join([FIRST, *shared, *([self._dealt(begin, end - begin)] if end > begin else [])])

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

    def _dealt(self, begin: int, n: int) -> str:
        """`n` words from a place in the deal of a whole plan: each word as often, whatever tokens it has.

        Words of one token make each prompt exact; of others only the mean is, and drawn prompt by prompt it
        would not be within a hundredth.
        """
        kinds = len(self._words)
        rounds = -(-len(common()) // kinds)  # by one generator, whose start takes longer than its shuffling
        size = kinds * rounds
        order = []
        for deal in range(begin // size, (begin + n - 1) // size + 1):
            rng = np.random.default_rng(np.random.SeedSequence(self._key, spawn_key=(deal, 0)))
            order += [rng.permutation(kinds) for _ in range(rounds)]
        return " ".join(self._words[np.concatenate(order)[begin % size :][:n]].tolist())

    def _drawn(self, rng: np.random.Generator, n: int) -> str:
        """`n` words, none again before all were there: so texts of one length differ least in tokens."""
        kinds = len(self._words)
        drawn = [rng.permutation(kinds) for _ in range(0, n, kinds)]
        return " ".join(self._words[np.concatenate(drawn)[:n]].tolist()) if drawn else ""
