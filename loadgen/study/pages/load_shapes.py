"""Load shapes: runs by the lengths that were asked for, and what distinguishes settings, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from loadgen.study.run_summary import Reported, grouped

_ALIKE, _TOKENS = 0.01, 2.0  # a server may count a token or two more


class LoadShape(msgspec.Struct, frozen=True):
    """Lengths in tokens, None: unknown, or as drawn; and what varies in them."""

    input_len: float | None
    output_len: float | None
    spread: str = ""

    @property
    def stem(self) -> str:
        """The lengths as the name of a file has them."""
        return "-".join("0" if length is None else f"{length:.0f}" for length in self._lengths)

    @property
    def words(self) -> str:
        """As 1024 tokens in and 64 out."""
        known = [(f"{length:.5g}", way) for length, way in zip(self._lengths, _WAYS, strict=True) if length]
        lengths = " and ".join(f"{length} {way}" for length, way in known)
        return ", ".join(filter(None, (lengths or "Unknown lengths", self.spread)))

    @property
    def _lengths(self) -> tuple[float | None, float | None]:
        return self.input_len, self.output_len


_WAYS = "tokens in", "out"


def grouped_by_shape(reported: Sequence[Reported]) -> dict[LoadShape, list[Reported]]:
    """The runs by the lengths that were asked for, else by those counted, and by how they vary."""
    known: list[list[float]] = [[], []]
    shapes = {}
    for run in reported:
        input_len, output_len = _lengths(run, known)
        shapes[id(run)] = LoadShape(input_len, output_len, run.load.shape)
    return grouped(reported, lambda run: shapes[id(run)])


def _lengths(run: Reported, known: Sequence[list[float]]) -> Iterator[float | None]:
    """Tokens in and out; counted ones as an earlier run has them, `known` being those of earlier runs."""
    load = run.load
    # Lengths that were drawn have another mean in every run, and are described by the spread.
    drawn = bool(load.shape) and run.facts is not None
    ways = (load.asked_input_len, load.input_len), (load.asked_output_len, load.output_len)
    for (asked, counted), earlier in zip(ways, known, strict=True):
        yield float(asked) if asked is not None else None if drawn else _settled(counted, earlier)


def _settled(length: float | None, earlier: list[float]) -> float | None:
    if length is None:
        return None
    near = (other for other in earlier if abs(length - other) <= max(_TOKENS, _ALIKE * other))
    if (found := next(near, None)) is None:
        earlier.append(length)
    return length if found is None else found


def distinguished(words: Sequence[Sequence[str]]) -> list[str]:
    """The words of each in which they differ, the columns in order of what they say; one column if it tells.

    Each of `words` has as many.
    """
    columns = [column for column in zip(*words, strict=True) if len(set(column)) > 1]
    whole = [column for column in columns if len(set(column)) == len(words)]
    return [", ".join(filter(None, row)) for row in zip(*(whole[:1] or columns), strict=True)]
