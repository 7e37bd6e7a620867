"""Listed texts: prompts that all exist before the run, of which several requests may send one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.plan.requests import PromptRequests, fingerprint


class ListedTexts(PromptRequests):
    """Request i sends text `which[i]`, a place in `texts`; the columns are int64[requests], in tokens."""

    format = "text"

    def __init__(self, texts: list[str], which: Int64, input_lens: Int64, output_lens: Int64) -> None:
        self.texts = texts
        self.which = which
        self.input_lens = input_lens
        self.output_lens = output_lens

    def prompt(self, i: int) -> str:
        """The text of request i."""
        return self.texts[int(self.which[i])]

    def digest(self) -> str:
        """A fingerprint of every text, of who sends which, and of all lengths."""
        texts = (text.encode("utf-8", "surrogatepass") for text in self.texts)
        ends = np.cumsum([len(text) for text in self.texts], dtype=np.int64)
        return fingerprint(self.format, (self.which, self.input_lens, self.output_lens, ends), texts)


class FileTexts(ListedTexts):
    """Listed texts of a file; `rows` has the row of each text, counted from 1."""

    def __init__(
        self,
        texts: list[str],
        which: Int64,
        lens: tuple[Int64, Int64],
        path: str,
        rows: Sequence[int],
    ) -> None:
        super().__init__(texts, which, *lens)
        self._path, self._rows = path, rows

    def where(self, i: int) -> str:
        """Request i by file and row, as `data.jsonl row 17`."""
        return f"{self._path} row {self._rows[int(self.which[i])]}"
