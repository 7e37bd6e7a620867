"""Lengths: how many tokens prompts and answers have, by --input-dist and --output-dist; pauses likewise."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base import untrusted
from loadgen.base.arrays import Float64, Int64
from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.base.parsing import MOST_TOKENS, read_figure, suggest_name
from loadgen.base.text import quote_value

_EXAMPLE = "write it as lognormal:mean=1024,sd=512,min=16,max=8192"
_SECONDS_EXAMPLE = "write it in seconds, as 2.5 or as lognormal:mean=2.5,sd=1,min=0.5,max=20"
_MS = 1000  # of a second
_DIGITS = 6
_TRIED = 1 << 16  # draws that show where a distribution's mean lies
_LEAST_KEPT = 0.05  # of the draws: with fewer from min to max another distribution is meant
_MOST_RANKS = 1 << 20  # lengths that a Zipf distribution may have
_STEEPEST = 16.0  # exponent: all but one in 65,536 have the least length
_HALVINGS = 48
_MOVED = 0.01  # of the mean: what is remarked on
_ERRORS = 4  # standard errors of the mean of the draws
_NAMES = {"mean": "mean", "sd": "sd", "min": "low", "max": "high"}
_MOST_BYTES = 1 << 26
_FORM = (
    "write a JSON object {LENGTH: COUNT, …}, a JSON list of [LENGTH, COUNT] or [LEAST, MOST, COUNT], "
    "or such rows as CSV"
)
_SEPARATOR = re.compile(r"\s*[,;\t]\s*")


class LengthDistribution(msgspec.Struct, frozen=True):
    """A distribution of lengths in tokens; draws outside `low` to `high` are repeated.

    So no length piles up at a bound; the mean is that of what is left: `remark` says where it is another.
    """

    sample: Callable[[np.random.Generator, int], Float64]
    mean: float  # as it was asked for
    low: int = 1
    high: int = MOST_TOKENS
    per: int = 1  # lengths that are one of what is written: 1000 where milliseconds are written as seconds

    def draw(self, rng: np.random.Generator, n: int) -> Int64:
        """Draw n lengths in tokens, int64[n]."""
        lens = self._draw_rounded(rng, n)
        while len(outside := np.flatnonzero((lens < self.low) | (lens > self.high))):
            lens[outside] = self._draw_rounded(rng, len(outside))
        return lens

    def remark(self) -> str:
        """Describe how min and max shifted the mean of 65,536 draws; "" if it is about as requested."""
        drawn = self.draw(np.random.default_rng(0), _TRIED)
        achieved, error = float(drawn.mean()), float(drawn.std()) / math.sqrt(_TRIED)
        if abs(achieved - self.mean) <= max(_MOVED * self.mean, _ERRORS * error):
            return ""
        made, asked = self._write_length(achieved), self._write_length(self.mean)
        return f"its mean is about {made}, not {asked}, within min and max"

    def _write_length(self, length: float) -> str:
        return f"{length:.0f}" if self.per == 1 else f"{length / self.per:.3g}"

    def check_kept(self) -> LengthDistribution:
        """Return the distribution; raises ValueError if under 5 % of its draws lie within its bounds."""
        lens = self._draw_rounded(np.random.default_rng(0), _TRIED)
        if ((lens >= self.low) & (lens <= self.high)).mean() < _LEAST_KEPT:
            raise ValueError(f"hardly anything lies from {self.low} to {self.high}: set min and max wider")
        return self

    def _draw_rounded(self, rng: np.random.Generator, n: int) -> Int64:
        return np.rint(np.clip(self.sample(rng, n), -1, MOST_TOKENS + 1)).astype(np.int64)


class LengthBounds(msgspec.Struct, frozen=True):
    """The given parameters of a distribution, and the mean to use if none was given."""

    usual_mean: int | None
    mean: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def centre(self) -> float:
        """The mean, given or default; raises ValueError if there is neither."""
        mean = self.usual_mean if self.mean is None else self.mean
        if mean is None:
            raise ValueError("mean is missing")
        return mean

    @property
    def span(self) -> tuple[int, int]:
        """The least and the greatest length; raises ValueError if none lies between."""
        low, high = int(self.low or 1), int(self.high or MOST_TOKENS)
        if low > high:
            raise ValueError(f"min {low} is more than max {high}")
        return low, high

    @property
    def spread(self) -> float:
        """The standard deviation; raises ValueError if none was given."""
        if self.sd is None:
            raise ValueError("sd is missing")
        return self.sd


def parse_lengths(text: str, flag: str, usual_mean: int) -> LengthDistribution:
    """Parse a distribution of lengths, as `lognormal:mean=1024,sd=512`, or read it from `histogram:FILE`.

    Without a mean it has `usual_mean`. Raises UsageError that names a wrong parameter, or if under 5 % of
    the draws lie within min and max; it begins with the flag and the text unless `flag` is "".
    """
    where = f"{flag} {quote_value(text)}: " if flag else ""
    kind, _, rest = text.partition(":")
    if kind == "histogram":
        table = load_histogram(rest, flag)
        return LengthDistribution(table.sample, table.mean, 1, MOST_TOKENS)
    make = _KINDS.get(kind)
    if make is None:
        known = ", ".join((*_KINDS, "histogram:FILE"))
        raise UsageError(f"{where}{kind!r} is no distribution{suggest_name(kind, _KINDS)}: {known}")
    try:
        return make(_read_parameters(rest, usual_mean)).check_kept()
    except ValueError as error:
        raise UsageError(f"{where}{error}; {_EXAMPLE}") from None


def parse_pauses_ms(text: str, flag: str) -> LengthDistribution:
    """Parse seconds, as `2.5` or `lognormal:mean=2.5,sd=1`, to a distribution in ms; raises UsageError."""
    kind, _, rest = text.partition(":")
    try:
        if kind in _KINDS:
            return replace(_KINDS[kind](_read_parameters(rest, None, _MS)).check_kept(), per=_MS)
        try:
            seconds = float(text)
        except ValueError:
            raise ValueError(f"is no number, and no distribution: {', '.join(_KINDS)}") from None
        if not 0 <= seconds <= MOST_TOKENS / _MS:
            raise ValueError(f"is not a number from 0 to {MOST_TOKENS // _MS}")
        pause_ms = round(seconds * _MS)
    except ValueError as error:
        raise UsageError(f"{flag} {quote_value(text)}: {error}; {_SECONDS_EXAMPLE}") from None
    return LengthDistribution(lambda _, n: np.full(n, float(pause_ms)), pause_ms, 0, MOST_TOKENS, _MS)


def _read_parameters(text: str, usual_mean: int | None, per: int = 1) -> LengthBounds:
    """Parse `NAME=NUMBER,…`, multiplying each number by `per`; raises ValueError that names a wrong one."""
    given: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in _NAMES:
            raise ValueError(f"{name!r} is no parameter{suggest_name(name, _NAMES)}: mean, sd, min or max")
        if _NAMES[name] in given:
            raise ValueError(f"{name} is given twice")
        try:
            number = read_figure(round(float(value) * per, _DIGITS))
        except (ValueError, OverflowError):
            number = None
        least = 0 if name == "sd" else 1
        if number is None or not least <= number <= MOST_TOKENS:
            raise ValueError(
                f"{name} {quote_value(value)} is not a number from {least / per:g} to {MOST_TOKENS // per}"
            )
        if name in ("min", "max") and number != int(number):
            raise ValueError(
                f"{name} {quote_value(value)} is not a whole number{' of milliseconds' * (per > 1)}"
            )
        given[_NAMES[name]] = number
    return LengthBounds(usual_mean, **given)


def _allow_only(given: LengthBounds, kind: str, *names: str) -> None:
    """Raise ValueError for a parameter that this kind of distribution lacks."""
    for name, key in _NAMES.items():
        if name not in names and getattr(given, key) is not None:
            raise ValueError(f"{kind} has no {name}")


def _make_fixed(given: LengthBounds) -> LengthDistribution:
    _allow_only(given, "fixed", "mean")
    length = round(given.centre)
    return LengthDistribution(lambda rng, n: np.full(n, float(length)), length)


def _make_uniform(given: LengthBounds) -> LengthDistribution:
    """Make a uniform distribution of integers, by two of mean, min and max, or by mean and sd."""
    if given.sd is not None:
        _allow_only(given, "uniform with sd", "mean", "sd")
        # 2h + 1 whole numbers have the variance h (h + 1) / 3.
        half = (math.sqrt(12 * given.sd**2 + 1) - 1) / 2
        low, high = round(given.centre - half), round(given.centre + half)
    elif given.low is not None and given.high is not None:
        if given.mean is not None:
            raise ValueError("uniform has its mean from min and max: give two of the three")
        low, high = given.span
    elif given.low is None and given.high is None:
        raise ValueError("uniform needs min or max, or both, or sd")
    else:
        low = round(2 * given.centre - given.high) if given.high is not None else int(given.low or 1)
        high = int(given.high) if given.high is not None else round(2 * given.centre - low)
    if not 1 <= low <= high:
        raise ValueError(f"uniform would be from {low} to {high}")
    return LengthDistribution(
        lambda rng, n: rng.integers(low, high + 1, n).astype(np.float64), (low + high) / 2, low, high
    )


def _make_normal(given: LengthBounds) -> LengthDistribution:
    mean, sd = given.centre, given.spread
    return LengthDistribution(lambda rng, n: rng.normal(mean, sd, n), mean, *given.span)


def _make_lognormal(given: LengthBounds) -> LengthDistribution:
    """Make a lognormal distribution whose `mean` and `sd` are of the lengths: σ² = ln(1 + (sd / mean)²)."""
    mean, variance = given.centre, math.log1p((given.spread / given.centre) ** 2)
    middle, sigma = math.log(mean) - variance / 2, math.sqrt(variance)
    return LengthDistribution(lambda rng, n: rng.lognormal(middle, sigma, n), mean, *given.span)


def _make_zipf(given: LengthBounds) -> LengthDistribution:
    """Make a distribution P(length) ∝ length^−a from min to max, with a solved to give the mean."""
    _allow_only(given, "zipf", "mean", "min", "max")
    if given.high is None:
        raise ValueError("zipf needs max")
    (low, high), mean = given.span, given.centre
    lengths = np.arange(low, high + 1, dtype=np.float64)
    if len(lengths) > _MOST_RANKS:
        raise ValueError(f"zipf has {_MOST_RANKS} lengths at most: set max lower")
    if not low < mean <= (low + high) / 2:
        raise ValueError(f"zipf from {low} to {high} has a mean above {low} and up to {(low + high) / 2:g}")

    def weights(exponent: float) -> Float64:
        return np.exp(-exponent * np.log(lengths / low))

    flat, steep = 0.0, _STEEPEST
    for _ in range(_HALVINGS):
        middle = (flat + steep) / 2
        if np.average(lengths, weights=weights(middle)) > mean:
            flat = middle
        else:
            steep = middle
    table = Histogram(lengths.astype(np.int64), lengths.astype(np.int64), weights(flat))
    return LengthDistribution(table.sample, mean, low, high)


_KINDS: dict[str, Callable[[LengthBounds], LengthDistribution]] = {
    "fixed": _make_fixed,
    "uniform": _make_uniform,
    "normal": _make_normal,
    "lognormal": _make_lognormal,
    "zipf": _make_zipf,
}


class Histogram:
    """A distribution by bins of lengths `least` to `most`, both included, with weights, float64[bins]."""

    def __init__(self, least: Int64, most: Int64, weights: Float64) -> None:
        self.least, self.most = least, most
        self._shares = np.cumsum(weights / weights.sum())
        self.mean = float(np.average((least + most) / 2, weights=weights))

    def sample(self, rng: np.random.Generator, n: int) -> Float64:
        """Draw n lengths, float64[n]: a bin by its weight, then uniformly in it."""
        bins = np.minimum(np.searchsorted(self._shares, rng.random(n), side="right"), len(self.least) - 1)
        return rng.integers(self.least[bins], self.most[bins] + 1).astype(np.float64)


def load_histogram(name: str, flag: str) -> Histogram:
    """Load a histogram of lengths from a JSON or CSV file up to 64 MiB; raises UsageError naming the row."""
    where = f"{flag} histogram:{name}".lstrip()
    if not name:
        raise UsageError(f"{where} names no file: {_FORM}")
    try:
        raw = untrusted.read_file_bytes(expand_path(name), _MOST_BYTES)
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{where}: it is no text, JSON or CSV: {_FORM}") from None
    rows = _read_json_rows(text, where) if text.lstrip()[:1] in ("{", "[") else _read_csv_rows(text)
    bins = [_read_bin(row, f"{where} row {number}") for number, row in rows]
    if not bins:
        raise UsageError(f"{where} holds no lengths: {_FORM}")
    least, most, weights = (np.array(column) for column in zip(*bins, strict=True))
    if not weights.sum() > 0:
        raise UsageError(f"{where}: every count is 0: {_FORM}")
    return Histogram(least, most, weights.astype(np.float64))


def _read_json_rows(text: str, where: str) -> list[tuple[int, object]]:
    """Parse a JSON object or list into (position from 1, row); raises UsageError if it is not JSON."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{where}: it is not valid JSON ({error}): {_FORM}") from None
    rows = list(value.items()) if isinstance(value, dict) else value
    return list(enumerate(rows, 1))


def _read_csv_rows(text: str) -> list[tuple[int, object]]:
    """Parse CSV into (line number, row); a first line without digits is a header."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if lines and not any(character.isdigit() for character in lines[0][1]):
        del lines[0]
    return [(number, _SEPARATOR.split(line)) for number, line in lines]


def _read_bin(row: object, where: str) -> tuple[int, int, float]:
    """Parse a row into least length, most length and weight; raises UsageError."""
    parts = list(row) if isinstance(row, list | tuple) else []
    if len(parts) not in (2, 3):
        raise UsageError(f"{where} has not two or three numbers: {_FORM}")
    *ends, count = (_read_number(part) for part in parts)
    least, most = ends[0], ends[-1]
    if least is None or most is None or least != int(least) or most != int(most):
        raise UsageError(f"{where}: {quote_value(parts[0])} is not a length: {_FORM}")
    if not 1 <= least <= most <= MOST_TOKENS:
        raise UsageError(f"{where}: lengths are from 1 to {MOST_TOKENS}, and the least comes first")
    if count is None or count < 0:
        raise UsageError(f"{where}: {quote_value(parts[-1])} is not a count: {_FORM}")
    return int(least), int(most), count


def _read_number(value: object) -> float | None:
    try:
        return read_figure(float(value) if isinstance(value, str) else value)
    except ValueError:
        return None
