"""Words: prompts of common words, as many as the server itself counts as the tokens that were asked for."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np

from loadgen.arrays import Int64
from loadgen.errors import UsageError
from loadgen.workload.plan_inputs import WordCounts
from loadgen.workload.prompts.random_ids import PromptShape, drawn_lens, grouped
from loadgen.workload.requests import PromptRequests
from loadgen.workload.streams import RandomStream

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
        self._counts = counts
        self._begins = self._dealt_before()
        self._groups = grouped(shape, stream, lambda rng: self._drawn(rng, self._prefix_words - 1))
        self.reusable_tokens = self._groups.reusable(shape.prefix_len)

    def prompt(self, i: int) -> str:
        """Prompt i."""
        rng = np.random.default_rng(np.random.SeedSequence(self._key, spawn_key=(i,)))
        words = max(1, self._counts.words_of(int(self.input_lens[i]) - self._counts.overhead, rng.random()))
        shared = [self._groups.prefix(i)] if self._prefix_words > 1 else []
        own = words - max(1, self._prefix_words)
        return " ".join([FIRST, *shared, *([self._dealt(int(self._begins[i]), own)] if own > 0 else [])])

    def digest(self) -> str:
        """A fingerprint of all lengths, of the first 64 prompts, and of which prefix each prompt has."""
        return self._groups.digest(super().digest())

    def _dealt_before(self) -> Int64:
        """How many words the prompts before each one have of their own, int64[prompts], parts left out."""
        words = np.floor(np.round((self.input_lens - self._counts.overhead) / self._counts.per_word, 6))
        own = np.maximum(words.astype(np.int64) - max(1, self._prefix_words), 0)
        dealt: Int64 = np.cumsum(own) - own
        return dealt

    def _dealt(self, begin: int, n: int) -> str:
        """`n` words from a place in the deal of a whole plan: each word as often, whatever tokens it has.

        Words of one token make each prompt exact; of a small vocabulary's words only the mean would be, and
        drawn prompt by prompt not within a hundredth of it.
        """
        kinds = len(self._words)
        deals = range(begin // kinds, (begin + n - 1) // kinds + 1)
        keys = (np.random.SeedSequence(self._key, spawn_key=(deal, 0)) for deal in deals)
        order = np.concatenate([np.random.default_rng(key).permutation(kinds) for key in keys])
        return " ".join(self._words[order[begin % kinds :][:n]].tolist())

    def _drawn(self, rng: np.random.Generator, n: int) -> str:
        """`n` words, none again before all were there: so texts of one length differ least in tokens."""
        kinds = len(self._words)
        drawn = [rng.permutation(kinds) for _ in range(0, n, kinds)]
        return " ".join(self._words[np.concatenate(drawn)[:n]].tolist()) if drawn else ""
