"""Length histogram: how often each length occurs, from a JSON or CSV file."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from loadgen.base import untrusted
from loadgen.base.arrays import Float64, Int64
from loadgen.base.bounds import MOST_TOKENS, read_figure
from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.base.text import quote_value

_MOST_BYTES = 1 << 26
_FORM = (
    "write a JSON object {LENGTH: COUNT, …}, a JSON list of [LENGTH, COUNT] or [LEAST, MOST, COUNT], "
    "or such rows as CSV"
)
_SEPARATOR = re.compile(r"\s*[,;\t]\s*")


class Histogram:
    """Bins of lengths from `least` to `most`, both of them included, by their weights; float64[bins]."""

    def __init__(self, least: Int64, most: Int64, weights: Float64) -> None:
        self.least, self.most = least, most
        self._shares = np.cumsum(weights / weights.sum())
        self.mean = float(np.average((least + most) / 2, weights=weights))

    def sample(self, rng: np.random.Generator, n: int) -> Float64:
        """Lengths float64[n]: a bin by its weight, then any of its lengths alike."""
        bins = np.minimum(np.searchsorted(self._shares, rng.random(n), side="right"), len(self.least) - 1)
        return rng.integers(self.least[bins], self.most[bins] + 1).astype(np.float64)


def load(name: str, flag: str) -> Histogram:
    """The histogram in a file; raises UsageError that names the file and the row."""
    where = f"{flag} histogram:{name}"
    if not name:
        raise UsageError(f"{where} names no file: {_FORM}")
    try:
        raw = untrusted.read_file_bytes(expand_path(name), _MOST_BYTES)
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{where}: it is no text, JSON or CSV: {_FORM}") from None
    rows = _json_rows(text, where) if text.lstrip()[:1] in ("{", "[") else _csv_rows(text)
    bins = [_bin(row, f"{where} row {number}") for number, row in rows]
    if not bins:
        raise UsageError(f"{where} holds no lengths: {_FORM}")
    least, most, weights = (np.array(column) for column in zip(*bins, strict=True))
    if not weights.sum() > 0:
        raise UsageError(f"{where}: every count is 0: {_FORM}")
    return Histogram(least, most, weights.astype(np.float64))


def _json_rows(text: str, where: str) -> list[tuple[int, object]]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{where}: it is not valid JSON ({error}): {_FORM}") from None
    rows = list(value.items()) if isinstance(value, dict) else value
    return list(enumerate(rows, 1))


def _csv_rows(text: str) -> list[tuple[int, object]]:
    """The rows of a CSV with their line numbers; a first line without a digit is its head."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if lines and not any(character.isdigit() for character in lines[0][1]):
        del lines[0]
    return [(number, _SEPARATOR.split(line)) for number, line in lines]


def _bin(row: object, where: str) -> tuple[int, int, float]:
    """A row as least and most length and weight; raises UsageError."""
    parts = list(row) if isinstance(row, list | tuple) else []
    if len(parts) not in (2, 3):
        raise UsageError(f"{where} has not two or three numbers: {_FORM}")
    *ends, count = (_number(part) for part in parts)
    least, most = ends[0], ends[-1]
    if least is None or most is None or least != int(least) or most != int(most):
        raise UsageError(f"{where}: {quote_value(parts[0])} is not a length: {_FORM}")
    if not 1 <= least <= most <= MOST_TOKENS:
        raise UsageError(f"{where}: lengths are from 1 to {MOST_TOKENS}, and the least comes first")
    if count is None or count < 0:
        raise UsageError(f"{where}: {quote_value(parts[-1])} is not a count: {_FORM}")
    return int(least), int(most), count


def _number(value: object) -> float | None:
    try:
        return read_figure(float(value) if isinstance(value, str) else value)
    except ValueError:
        return None
