"""Replayed: the requests of a trace as token ids, each made from its hashes when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.features.traces.blocks import BlockContent, IdTexts
from loadgen.features.traces.trace_rows import TraceRows
from loadgen.plan.requests import PromptRequests, fingerprint
from loadgen.wire.openai import Dialect

_PIECE = 4096  # rows whose hashes are hashed at once


class ReplayedRequests(PromptRequests):
    """The requests of a trace: token ids made of each one's hashes when it is asked for.

    `rows` is int64[requests], each request's row in the file, from 1.
    """

    format = "ids"

    def __init__(
        self, trace: TraceRows, places: Int64, input_lens: Int64, output_lens: Int64, content: BlockContent
    ) -> None:
        self.input_lens, self.output_lens = input_lens, output_lens
        self.rows, self._file = trace.numbers[places], trace.file
        self.begins = trace.starts[places]
        self.hash_counts = trace.starts[places + 1] - self.begins
        self._places = places  # unlike a row's number, no two are equal
        self._hashes = trace.hashes
        self._content = content
        self._texts: IdTexts | None = None  # made with the first body

    def where(self, i: int) -> str:
        """Request i by file and row, as `trace.jsonl row 17`."""
        return f"{self._file} row {int(self.rows[i])}"

    def prompt(self, i: int) -> list[int] | str:
        """Prompt i, as a list of `input_lens[i]` ids."""
        ids: list[int] = self._content.allowed[self.places(i, int(self.input_lens[i]))].tolist()
        return ids

    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        """The fields of request i, its prompt as JSON: a list of 14,000 ids takes a millisecond to write."""
        if self._texts is None:
            self._texts = IdTexts(self._content.allowed)
        written = cast(list[int], self._texts.prompt(self.places(i, int(self.input_lens[i]))))
        return dialect.make_request(model, written, int(self.output_lens[i]))

    def digest(self) -> str:
        """A fingerprint of all that the prompts follow from: lengths, hashes, seeds, block size, ids."""
        columns = (self.input_lens, self.output_lens, self._places, self.hash_counts)
        return fingerprint(self.format, columns, [self._content.digest(), *self._pieces()])

    def places(self, i: int, length: int) -> Int64:
        """Prompt i, so long, as places in what its content is made of."""
        begin = int(self.begins[i])
        hashes = self._hashes[begin : begin + int(self.hash_counts[i])].astype(np.int64)
        return self._content.places(hashes, length, int(self._places[i]))

    def _pieces(self) -> Iterator[bytes]:
        for first in range(0, len(self.begins), _PIECE):
            spans = zip(
                self.begins[first : first + _PIECE].tolist(),
                self.hash_counts[first : first + _PIECE].tolist(),
                strict=True,
            )
            pieces = [self._hashes[begin : begin + count] for begin, count in spans]
            yield np.concatenate(pieces).astype("<i8").tobytes()
