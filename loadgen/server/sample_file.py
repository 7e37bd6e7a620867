"""Sample file: what was sampled during a run, of this machine and of the server, next to its arrivals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base import arrays, untrusted
from loadgen.base.arrays import Float64, Int64
from loadgen.base.files import write_whole
from loadgen.server.server_counters import ServerWindow

SAMPLES = "samples.npz"
GAUGES = ("running", "waiting", "kv_cache_usage")
_COLUMNS = ("quantity", "where", "start", "at_ns", "value")
_LONGEST = 64  # letters of a name
_LARGEST = 16 << 20
_LATEST_NS = 1 << 62
LEAST_SAMPLES = 30  # of fewer no course over time can be shown, and no peak
MOST_KEPT = 2000  # samples of a series
MOST_SERIES = 128


class SampledSeries(msgspec.Struct, frozen=True):
    """Samples of one quantity at one place: CLOCK_MONOTONIC nanoseconds and values, equally long.

    `quantity` is one of the sensors', or a gauge of the server; `where` is a GPU, a rail, a zone, or "".
    """

    quantity: str
    where: str
    at_ns: Int64
    values: Float64


class KeptSamples(msgspec.Struct, frozen=True):
    """The sampled series of a run; `error` is why stored ones cannot be read, "" if they can."""

    series: tuple[SampledSeries, ...] = ()
    error: str = ""


NO_SAMPLES = KeptSamples()


def keep_samples(sensed: Iterable[SampledSeries], window: ServerWindow | None, began_ns: int) -> KeptSamples:
    """Collect the series of the server's gauges, sampled from `began_ns` on, and of sensors.

    The first 128 that have samples are kept, each thinned to 2000.
    """
    every = [*list_gauge_series(window, began_ns), *sensed]
    some = [thin_series(series, MOST_KEPT) for series in every if len(series.values)]
    return KeptSamples(tuple(some[:MOST_SERIES]))


def thin_series(series: SampledSeries, most: int) -> SampledSeries:
    """Reduce a series to `most` samples or fewer: first, last, least and greatest of equal stretches."""
    n = len(series.values)
    if n <= most:
        return series
    edges = np.linspace(0, n, (most - 2) // 2 + 1).astype(np.int64)
    parts = [(begin, series.values[begin:end]) for begin, end in pairwise(edges.tolist())]
    extremes = [begin + int(at) for begin, part in parts for at in (part.argmin(), part.argmax())]
    kept = np.unique([0, *extremes, n - 1])
    return SampledSeries(series.quantity, series.where, series.at_ns[kept], series.values[kept])


def list_gauge_series(window: ServerWindow | None, began_ns: int) -> Iterator[SampledSeries]:
    """Yield the series of the server's gauges, whose sampling began at `began_ns`; nothing if not scraped."""
    samples = window.samples if window is not None and not window.error else ()
    for gauge in GAUGES:
        pairs = [(each.at_s, value) for each in samples if (value := getattr(each, gauge)) is not None]
        if pairs:
            at_s, values = np.array(pairs, np.float64).T
            yield SampledSeries(gauge, "", began_ns + np.rint(at_s * 1e9).astype(np.int64), values)


def save(samples: KeptSamples, path: Path) -> None:
    """Write all series, one or more, as columns of one file, whole or not at all; raises OSError.

    Samples `start[i]` to `start[i + 1]` of `at_ns` and `value` are of `quantity[i]` in `where[i]`.
    """
    series = samples.series
    columns: dict[str, NDArray[Any]] = {
        "quantity": np.array([each.quantity for each in series], f"<U{_LONGEST}"),
        "where": np.array([each.where for each in series], f"<U{_LONGEST}"),
        "start": np.cumsum([0, *(len(each.values) for each in series)], dtype=np.int64),
        "at_ns": np.concatenate([each.at_ns for each in series]),
        "value": np.concatenate([each.values for each in series]),
    }
    write_whole(path, partial(arrays.write_columns, columns=columns))


def load(path: Path) -> KeptSamples:
    """Read the series in a file; none if it is missing; if it is damaged, `error` says why."""
    if not path.exists():
        return NO_SAMPLES
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST >> 20} MiB")
        return KeptSamples(tuple(_split_columns(arrays.read_columns(path, _COLUMNS, arrays.WITH_FLOATS))))
    except (OSError, ValueError, TypeError) as error:
        return KeptSamples(error=f"{path.name} cannot be read: {untrusted.read_line(str(error), 200)}")


def _split_columns(columns: dict[str, NDArray[Any]]) -> Iterator[SampledSeries]:
    """Yield the series held in these columns; raises ValueError if they are impossible."""
    if missing := [name for name in _COLUMNS if name not in columns]:
        raise ValueError(f"column {missing[0]} is missing")
    quantities, wheres, start, at_ns, values = (columns[name] for name in _COLUMNS)
    kinds = (("U", quantities), ("U", wheres), ("i", start), ("i", at_ns), ("f", values))
    if wrong := [column.dtype.str for kind, column in kinds if column.dtype.kind != kind]:
        raise ValueError(f"a column holds {wrong[0]}")
    count = len(quantities)
    if count > MOST_SERIES or len(wheres) != count or len(start) != count + 1:
        raise ValueError(f"{count} quantities, {len(wheres)} places and {len(start)} starts")
    lengths = np.diff(start)
    whole = start[0] == 0 and start[-1] == len(at_ns) == len(values)
    if not whole or (lengths < 0).any() or (lengths > MOST_KEPT).any():
        raise ValueError(f"its starts do not divide {len(at_ns)} times and {len(values)} values")
    if not np.isfinite(values).all() or (np.abs(values) > untrusted.MOST).any():
        raise ValueError("a value is none that can be measured")
    if ((at_ns < 0) | (at_ns > _LATEST_NS)).any():
        raise ValueError("a time is none of a clock")
    names = zip(quantities.tolist(), wheres.tolist(), strict=True)
    for (quantity, where), begin, end in zip(names, start[:-1].tolist(), start[1:].tolist(), strict=True):
        texts = untrusted.read_line(quantity, _LONGEST), untrusted.read_line(where, _LONGEST)
        yield SampledSeries(*texts, at_ns[begin:end], values[begin:end])
