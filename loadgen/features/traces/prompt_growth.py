"""Prompt growth: prompts of a trace without blocks, each of which begins as an earlier one of its line does.

Row i's prompt is the first `kept[i]` tokens of its origin's prompt, and then tokens of its own: the first of
the block with the hash i under the trace's own seed. An origin below 0 is a text that several sessions begin
with, as a system prompt: the block with that hash under the seed of shared blocks.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec
import numpy as np

from loadgen.base.arrays import Int64


class Growth(msgspec.Struct, frozen=True):
    """The row with whose prompt each row's prompt begins, and for how many tokens; int64[rows]."""

    origins: Int64  # an earlier row, or below 0 a shared text
    kept: Int64  # no more than the origin has; 0 where nothing is known to be shared

    def find_origin(self, row: int) -> int:
        """Return a row's origin; of rows from the number of rows up, which are the trace's again, as well.

        A shared text has none: -1.
        """
        if row < 0:
            return -1
        again, row = divmod(row, len(self.kept))
        origin = int(self.origins[row])
        return origin if origin < 0 else origin + again * len(self.kept)

    def reorder(self, order: Int64) -> Growth:
        """Return the growth of rows in another order; `order` is int64[rows], the earlier index of each."""
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        origins = self.origins[order]
        return Growth(np.where(origins < 0, origins, places[origins]), self.kept[order])


class GrowthLines:
    """Lines of prompts, filled row by row, of which each begins as the one before it on its line."""

    def __init__(self) -> None:
        self._origins: list[int] = []
        self._kept: list[int] = []
        self._lens: list[int] = []
        self._last: dict[Hashable, int] = {}  # of each line, its last row
        self._shared: dict[Hashable, int] = {}

    def add(self, line: Hashable, input_len: int, kept: int | None, shared: Hashable = None) -> None:
        """Add the next prompt of a line, which begins with the first `kept` tokens of the one before it.

        None: with all of it, or with none of it if that is longer. The first prompt of a line begins with the
        text that all lines with an equal `shared` begin with.
        """
        row = len(self._lens)
        before = self._last.get(line)
        if before is None:
            self._origins.append(self._shared.setdefault(shared, -1 - len(self._shared)))
            self._kept.append(min(kept or 0, input_len))
        else:
            most = self._lens[before]
            self._origins.append(before)
            grown = most if input_len >= most else 0
            self._kept.append(min(grown if kept is None else kept, most, input_len))
        self._lens.append(input_len)
        self._last[line] = row

    def make(self) -> Growth:
        """Make the growth of all rows that were added."""
        return Growth(np.array(self._origins, np.int64), np.array(self._kept, np.int64))
