"""Word blocks: a trace's prompts for APIs that take text: blocks of words that the server counts as tokens.

A hash stands for as many words as make its block's tokens by the server's own count, chosen as the tokens of
a block of ids are. So equal hashes are equal text, and prompts share the tokens that the trace says, where
each of the words is one token (WordCounts has only such words if it found enough of them).
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.features.traces.blocks import BlockContent
from loadgen.features.traces.replayed import ReplayedRequests
from loadgen.features.traces.trace_rows import TraceRows
from loadgen.plan.plan_inputs import WordCounts
from loadgen.plan.prompts import words
from loadgen.wire.openai import Dialect


class ReplayedWords(ReplayedRequests):
    """The requests of a trace as text; `content` is of ids, of which its seeds and its block are used."""

    format = "words"

    def __init__(
        self,
        trace: TraceRows,
        places: Int64,
        lens: tuple[Int64, Int64],
        content: BlockContent,
        counts: WordCounts,
    ) -> None:
        self._words = np.array(counts.words or words.common())
        spelled = BlockContent(
            counts.words_of(content.block), content.seed, content.own_seed, np.arange(len(self._words))
        )
        # A server's template and one word: no prompt is shorter.
        input_lens = np.maximum(lens[0], math.ceil(counts.tokens(1)))
        super().__init__(trace, places, input_lens, lens[1], spelled)
        self._counts = counts

    def prompt(self, i: int) -> str:
        """Prompt i; its first word is that of every prompt, as there is no blank before it."""
        count = self._counts.words_of(int(self.input_lens[i]) - self._counts.overhead) - 1
        return " ".join([words.FIRST, *self._words[self.places(i, max(0, count))].tolist()])

    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        """The fields of request i."""
        return dialect.make_request(model, self.prompt(i), int(self.output_lens[i]))

    def digest(self) -> str:
        """A fingerprint of what the prompts follow from: hashes, lengths, words and their count."""
        counted = msgspec.json.encode([self._counts.overhead, self._counts.per_word, self._words.tolist()])
        return super().digest() + hashlib.blake2b(counted, digest_size=8).hexdigest()
