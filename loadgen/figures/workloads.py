"""Workloads: how requests arrive, how long they are, what a prefix cache would reuse, their sessions.

The cache is that of an engine with prefix caching: blocks by their whole prefix, evicted by last use (LRU),
of one prompt the last blocks first, so that a block is there only if all before it are. A prompt is looked up
when it is sent, and in the cache as a whole before the next one. Its hit share at all sizes follows from one
pass (Mattson, Gecsei, Slutz, Traiger 1970): a block is a hit of every cache that holds more blocks than
different ones were used since its own last use, its stack distance.

Distances are counted for runs of blocks that two prompts have in common, whose distances go down by one from
block to block: O(n) for n blocks but for two sorts, and O(r log r) for r runs. Of more than 16 Mi blocks
those are measured whose hash falls below a threshold, and distances and counts are scaled up (SHARDS-adj;
Waldspurger, Park, Garthwaite, Ahmad 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Float64, Int64
from loadgen.base.block_hashes import chain_hashes, find_savings, mix_words
from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.base.passages import Passage
from loadgen.base.tables import make_table
from loadgen.figures.distribution import rank_values
from loadgen.plan.planned_requests import LengthFacts

NO_DELAY = -1


class LoadColumns(msgspec.Struct, frozen=True):
    """The requests of one workload in the order of sending, as columns of int64[requests].

    The blocks of request i are `blocks[starts[i] : starts[i + 1]]`, equal where all up to their end is equal
    or where the block alone is; tokens that no block covers are shared with no other request.
    """

    name: str  # of the file or the workload
    input_lens: Int64  # in tokens, UNKNOWN_LEN where only the server knows them
    output_lens: Int64
    times_ns: Int64 | None = None  # after its begin, never decreasing; None: as answers come
    blocks: NDArray[Any] | None = None  # int32 or int64; None: what is shared is unknown
    starts: Int64 | None = None  # int64[requests + 1], with `blocks`
    block_tokens: int = 0  # tokens of a block, with `blocks`
    sessions: Int64 | None = None  # any number of each session; None: there are none
    delays_ns: Int64 | None = None  # the pause before each request, NO_DELAY where there is none
    depths: Int64 | None = None  # 0: a session's main line, 1: its sub-agents, 2: theirs
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.input_lens)

    def find_gaps_ns(self) -> Int64:
        """Return the time between successive requests, int64[requests − 1]; [] without times."""
        return np.diff(self.times_ns) if self.times_ns is not None else np.zeros(0, np.int64)


class SessionShape(msgspec.Struct, frozen=True):
    """The sessions of a workload."""

    sessions: int
    requests: LengthFacts  # of each session: requests, not tokens
    delays_s: tuple[float, ...]  # P10, P50, P90 of the pauses before requests; () where they are unknown
    delay_sum_s: float
    by_depth: tuple[int, ...]  # requests of the main lines, of their sub-agents, of theirs; () if unknown


def count_requests(sessions: Int64) -> Int64:
    """Return the number of requests of each session, int64[sessions], by ascending session numbers."""
    counts: Int64 = np.unique(sessions, return_counts=True)[1]
    return counts


def find_delays_ns(load: LoadColumns) -> Int64:
    """Return the known pauses before requests (ns), in their order; [] where there are none."""
    return np.zeros(0, np.int64) if load.delays_ns is None else load.delays_ns[load.delays_ns >= 0]


def measure_sessions(load: LoadColumns) -> SessionShape | None:
    """Measure the sessions of a workload; None where it has none."""
    if load.sessions is None or not len(load):
        return None
    requests = LengthFacts.measure(counts := count_requests(load.sessions))
    assert requests is not None
    delays_s = find_delays_ns(load) / SECOND_NS
    ranks = np.percentile(delays_s, (10, 50, 90), method="inverted_cdf") if len(delays_s) else np.zeros(0)
    return SessionShape(
        len(counts),
        requests,
        tuple(ranks.tolist()),
        float(delays_s.sum()),
        () if load.depths is None else tuple(np.bincount(load.depths).tolist()),
    )


# Each length of a window has a name, for tables and axes.
SCALES_NS = {
    "1 ms": MS_NS,
    "10 ms": 10 * MS_NS,
    "100 ms": 100 * MS_NS,
    "1 s": SECOND_NS,
    "10 s": 10 * SECOND_NS,
    "1 min": 60 * SECOND_NS,
    "10 min": 600 * SECOND_NS,
    "1 h": 3600 * SECOND_NS,
}
_FINEST_GRID_NS = MS_NS  # which is the unit of many traces
_OFF = 0.01  # of the step
_ENOUGH_INSTANTS = 16  # fewer may have a step in common by chance
_LEAST_WINDOWS = 30  # a Poisson process' index is then 1 ± 0.26 (one standard deviation)


class WindowDispersion(msgspec.Struct, frozen=True):
    """How much the number of arrivals in windows of one width varies."""

    window: str  # a key of SCALES_NS
    windows: int
    mean: float  # arrivals in a window
    index: float  # of dispersion: variance / mean; 1 of a Poisson process


class ArrivalFigures(msgspec.Struct, frozen=True):
    """How requests arrive; a Poisson process has a `gap_cv` of 1 and an index of 1 at all scales."""

    span_s: float  # first to last
    rate_per_s: float | None  # (requests − 1) / span; None where all come at once
    gap_cv: float | None  # standard deviation of the gaps / their mean
    grid_s: float  # the times are its multiples, rounded; 0: there is none over a millisecond
    instants: int  # different times
    scales: tuple[WindowDispersion, ...]  # those with 30 windows, not below the grid

    def find_index(self, window: str) -> float | None:
        """Return the index of dispersion at a scale, a key of SCALES_NS; None where it is not measured."""
        return next((scale.index for scale in self.scales if scale.window == window), None)


def measure_arrivals(times_ns: Int64) -> ArrivalFigures | None:
    """Measure arrivals at ascending times (ns), int64[requests]; None of fewer than two."""
    if len(times_ns) < 2:
        return None
    gaps_ns = np.diff(times_ns)
    span_ns = int(times_ns[-1] - times_ns[0])
    grid_ns = find_grid_ns(times_ns)
    mean_ns = float(gaps_ns.mean())
    return ArrivalFigures(
        span_s=span_ns / SECOND_NS,
        rate_per_s=len(gaps_ns) / span_ns * SECOND_NS if span_ns else None,
        gap_cv=float(gaps_ns.std()) / mean_ns if span_ns else None,
        grid_s=grid_ns / SECOND_NS,
        instants=int(np.count_nonzero(gaps_ns)) + 1,
        scales=tuple(
            _measure_window(times_ns - times_ns[0], name, width)
            for name, width in SCALES_NS.items()
            if width >= grid_ns and span_ns // width >= _LEAST_WINDOWS
        ),
    )


def _measure_window(after_ns: Int64, name: str, width_ns: int) -> WindowDispersion:
    """Measure the index of dispersion, s² / mean of the counts, over all whole windows from the first on.

    The work is that of the requests, not of the windows, most of which are empty at small scales.
    """
    windows = int(after_ns[-1]) // width_ns
    numbers = after_ns // width_ns
    numbers = numbers[: int(np.searchsorted(numbers, windows))]
    ends = np.concatenate((np.flatnonzero(np.diff(numbers)) + 1, [len(numbers)]))
    counts = np.diff(ends, prepend=0).astype(np.float64)
    mean = len(numbers) / windows
    variance = max(0.0, float((counts * counts).sum()) - windows * mean * mean) / (windows - 1)
    return WindowDispersion(name, windows, mean, variance / mean)


def count_arrivals(times_ns: Int64, bins: int) -> tuple[Float64, Float64]:
    """Return begins (s) of `bins` equal stretches of the span, and arrivals per second in each.

    Both are float64[bins]; ([], []) where all arrive at once.
    """
    after_ns = times_ns - times_ns[0]
    span_ns = int(after_ns[-1])
    if not span_ns:
        return np.zeros(0), np.zeros(0)
    counts = np.bincount(np.minimum(after_ns * (bins / span_ns), bins - 1).astype(np.int64), minlength=bins)
    width_s = span_ns / bins / SECOND_NS
    rates: Float64 = counts / width_s
    return np.arange(bins, dtype=np.float64) * width_s, rates


def find_grid_ns(at_ns: Int64) -> int:
    """Find the step, over a millisecond, of which ascending times are multiples; 0: none, or too few times.

    Each may be off by a hundredth of the step: Mooncake's steps of 3 s are off by up to 3 ms.
    """
    instants = at_ns[np.diff(at_ns, prepend=at_ns[:1] - 1) > 0]  # np.unique takes 14 s for 10⁷
    gaps = np.diff(instants)
    if len(instants) < _ENOUGH_INSTANTS:
        return 0
    after = instants - instants[0]
    step = float(after[-1]) / float(np.rint(gaps / gaps.min()).sum())
    off = np.abs(after - np.rint(after / step) * step)
    if off.max() > step * _OFF:
        return 0
    rounded = round(step / _FINEST_GRID_NS) * _FINEST_GRID_NS
    return rounded if rounded > _FINEST_GRID_NS else 0


MOST_BLOCKS = 1 << 24  # uses that are measured: 1 GiB of memory meanwhile
_WORD_BITS = 64
_ROOT = np.int64(0x1E37_79B9_7F4A_7C15)  # before any block; with 0, blocks of the hash 0 would all be equal
_SHARES = (0.1, 0.5, 0.9)
# Sizes of caches in tokens: 1,024 × 2^(k / 2), so that those of two workloads are the same.
_FIRST_SIZE, _PER_OCTAVE, _MOST_SIZES = 1024, 2, 80


class ReuseFigures(msgspec.Struct, frozen=True):
    """What a prefix cache would reuse of the prompts' tokens, in the order of sending, empty at first.

    `sizes` (tokens) and `shares` (of all prompt tokens, 0 to 1) are float64, up to the first size that holds
    all that is reused.
    """

    block_tokens: int
    prompt_tokens: int  # of all requests
    unique_tokens: int  # in blocks, as many as a cache needs that drops none
    share: float  # without a limit of size
    sizes: Float64
    shares: Float64
    distances: tuple[float, ...]  # tokens used between two uses: P10, P50, P90 by reused token; () if none is
    gaps_s: tuple[float, ...]  # seconds between two uses, the same; () without times
    measured: float  # share of the blocks that were measured

    def find_share(self, size: float) -> float:
        """Return the reused share of a cache of `size` tokens: of the next size down; 0 below the first."""
        at = int(np.searchsorted(self.sizes, size, "right"))
        return float(self.shares[at - 1]) if at else 0.0


class _Uses(msgspec.Struct, frozen=True):
    """Uses of blocks in the order in which a cache sees them: of each prompt the last block first."""

    before: Int64  # the index of the last use of the same block with all before it; -1 of a first use
    requests: NDArray[Any]  # int32
    tokens: Int64  # that its reuse saves: of whole blocks of the server's, and never a prompt's last token
    scale: float  # uses of the workload for each of these


def measure_reuse(load: LoadColumns, most_blocks: int = MOST_BLOCKS) -> ReuseFigures | None:
    """Measure what a prefix cache would reuse; None where blocks are unknown or no prompt has a token.

    Of more than `most_blocks` uses of blocks a share is measured.
    """
    if load.blocks is None or load.starts is None or load.block_tokens < 1:
        return None
    total = int(load.input_lens[load.input_lens > 0].sum())
    if not total:
        return None
    uses = _list_uses(load, most_blocks)
    scale, reused = uses.scale, uses.before >= 0
    gaps_s: tuple[float, ...] = ()
    saved = uses.tokens[reused]
    if load.times_ns is not None:  # between two uses of each reused block
        gaps_ns = load.times_ns[uses.requests[reused]]
        gaps_ns -= load.times_ns[uses.requests[uses.before[reused]]]
        gaps_s = tuple(gap / SECOND_NS for gap in _find_quantiles(*_sort_weighted(gaps_ns, saved)))
        del gaps_ns
    distances = _find_distances(uses)
    distances *= scale * load.block_tokens
    excess = 0.0
    if scale > 1:  # what the sample has too few of is as near as can be: blocks that nearly all share
        in_all = int(_find_savings(load, np.arange(len(load)), _count_used(load)).sum())
        excess = in_all - scale * int(uses.tokens.sum())
    del uses  # the arrays of this function are most of the memory that a workload takes
    ordered, grown = _sort_weighted(distances, saved)
    del distances, saved
    grown *= scale
    sizes = _FIRST_SIZE * 2.0 ** (np.arange(_MOST_SIZES) / _PER_OCTAVE)
    # Up to the first that holds the farthest.
    sizes = sizes[: int(np.searchsorted(sizes, ordered[-1] if len(ordered) else 0.0)) + 1]
    reached = np.searchsorted(ordered, sizes, "right")
    shares = (np.append(grown, 0.0)[reached - 1] + excess) / total  # none reached: the last
    share = float(np.clip(((grown[-1] if len(grown) else 0.0) + excess) / total, 0.0, 1.0))
    return ReuseFigures(
        load.block_tokens,
        total,
        round(int((~reused).sum()) * scale) * load.block_tokens,
        share,
        sizes,
        np.clip(shares, 0.0, 1.0),
        _find_quantiles(ordered, grown),
        gaps_s,
        1 / scale,
    )


def _find_distances(uses: _Uses) -> Float64:
    """Find the stack distance of each use that is not a first one, in blocks that were measured.

    By runs of one prompt's successive uses whose last uses are successive uses of one earlier prompt.
    """
    requests, before = uses.requests, uses.before
    reused = np.flatnonzero(before >= 0)
    rows, origins = requests[reused], requests[before[reused]]
    breaks = (
        (np.diff(reused) != 1)
        | (np.diff(before[reused]) != 1)
        | (np.diff(rows) != 0)
        | (np.diff(origins) != 0)
    )
    runs = np.concatenate(([0], np.flatnonzero(breaks) + 1))[: len(reused)]
    lens = np.diff(runs, append=len(reused)).astype(np.int64)
    firsts, last_uses = reused[runs], before[reused[runs]]
    del reused, rows, origins, breaks, runs
    begins = np.searchsorted(requests, requests[firsts])
    deepest = _count_distances(last_uses, lens, begins, np.concatenate(([0], np.cumsum(before < 0))))
    distances = np.repeat(deepest + 1 + np.cumsum(lens) - lens, lens).astype(np.float64)
    distances -= np.arange(len(distances))
    return distances


def _count_used(load: LoadColumns) -> Int64:
    """Return how many blocks of each prompt are in it, int64[requests], without those behind its end."""
    assert load.starts is not None
    used: Int64 = np.minimum(np.diff(load.starts), -(-np.maximum(load.input_lens, 0) // load.block_tokens))
    return used


def _find_savings(load: LoadColumns, rows: NDArray[Any], counts: NDArray[Any]) -> Int64:
    """Return the tokens that a cache with the first `counts` blocks of these rows saves, int64[rows]."""
    return find_savings(counts * load.block_tokens, load.input_lens[rows])


def _list_uses(load: LoadColumns, most: int) -> _Uses:
    """List the uses of blocks in a cache's order: all, or those of about `most` uses, sampled by block."""
    assert load.blocks is not None
    assert load.starts is not None
    used = _count_used(load)
    scale = max(1.0, int(used.sum()) / most)
    threshold = np.uint64(min(2**_WORD_BITS - 1, int(2**_WORD_BITS / scale)))
    alive = np.argsort(-used, kind="stable")
    chain, ids, rows, depths = np.full(len(used), _ROOT), [], [], []
    live = np.searchsorted(-used[alive], -np.arange(int(used.max(initial=0))), "left").tolist()
    for depth, count in enumerate(live):
        own = alive[:count]
        chain = chain_hashes(chain[:count], load.blocks[load.starts[own] + depth].astype(np.int64))
        # A hash decides, so the same id is always or never in the sample.
        kept = mix_words(chain.view(np.uint64) + np.uint64(1)) < threshold if scale > 1 else slice(None)
        ids.append(chain[kept])
        rows.append(own[kept].astype(np.int32))
        depths.append(np.full(len(rows[-1]), depth, np.int32))
    if not ids:
        return _Uses(empty := np.zeros(0, np.int64), empty.astype(np.int32), empty, 1.0)
    row, depth_of = np.concatenate(rows), np.concatenate(depths)
    del rows, depths
    order = np.argsort(np.cumsum(used)[row] - depth_of)
    row, depth_of = row[order], depth_of[order]
    all_ids = np.concatenate(ids)[order]
    del ids, order
    before = np.full(len(all_ids), -1, np.int64)
    order = np.argsort(all_ids, kind="stable")
    again = np.flatnonzero(np.diff(all_ids[order]) == 0)
    before[order[again + 1]] = order[again]
    del all_ids, order, again
    tokens = _find_savings(load, row, depth_of + 1) - _find_savings(load, row, depth_of)
    return _Uses(before, row, tokens, scale)


def _count_distances(last_uses: Int64, lens: Int64, begins: Int64, firsts: Int64) -> Int64:
    """Count the different blocks between each run's last use and its prompt's begin, int64[runs].

    `begins` is the first use of each run's prompt; `firsts`, int64[uses + 1], counts first uses up to each
    index. A use since the last one, p, is of a new block if it is a first use or its own last use is not
    after p: uses before the prompt that have a last use up to p, less p + 1, which all do.
    """
    n = len(lens)
    if not n:
        return np.zeros(0, np.int64)
    # Later last uses in a prompt come first, so that none counts another of the same prompt.
    order = np.lexsort((-last_uses, begins))
    weights, keys = lens[order], last_uses[order]
    repeated = np.empty(n, np.int64)
    repeated[order] = _sum_before(keys, weights)
    counted: Int64 = firsts[begins] + repeated - last_uses - 1
    return counted


def _sum_before(keys: Int64, weights: Int64) -> Int64:
    """Sum, for each item, the weights of the items before it with smaller keys, int64[items].

    No two keys are equal. From all items down to blocks of two, sums go from the left half of each block to
    the right, in the order of keys.
    """
    n = len(keys)
    order, sums = np.argsort(keys), np.zeros(n, np.int64)
    for level in reversed(range(max(n - 1, 0).bit_length())):
        # `order` has blocks of 2^(level + 1) items one after another, each in the order of keys.
        right = (order >> level & 1).astype(np.bool_)
        grown = np.cumsum(np.where(right, 0, weights[order]))
        begin = order >> (level + 1) << (level + 1)
        base = np.where(begin > 0, grown[begin - 1], 0)
        late = order[right]
        sums[late] += (grown - base)[right]
        rights = np.cumsum(right)
        lefts = np.arange(1, n + 1) - rights
        rank = np.where(
            right,
            rights - np.where(begin > 0, rights[begin - 1], 0),
            lefts - np.where(begin > 0, lefts[begin - 1], 0),
        )
        divided = np.empty_like(order)
        divided[(order >> level << level) + rank - 1] = order
        order = divided
    return sums


def _sort_weighted(values: Float64 | Int64, weights: Int64) -> tuple[Float64 | Int64, Float64]:
    """Return the values ascending, and the running sum of their weights."""
    order = np.argsort(values, kind="stable")
    return values[order], np.cumsum(weights[order], dtype=np.float64)


def _find_quantiles(values: Float64 | Int64, grown: Float64) -> tuple[float, ...]:
    """Return the P10, P50 and P90 of ascending values by the sums of their weights; () if there are none."""
    if not len(values) or not grown[-1]:
        return ()
    return tuple(float(values[int(np.searchsorted(grown, share * grown[-1]))]) for share in _SHARES)


T = TypeVar("T")
_SAME_RATE = 0.02  # two rates that differ by less are one


class LengthCount(msgspec.Struct, frozen=True):
    """How many requests have a prompt and an answer of at least these tokens, and of less than twice them."""

    input_from: int
    output_from: int
    requests: int


class JointLengths(msgspec.Struct, frozen=True):
    """The lengths of a workload's prompts and answers; None where none is known."""

    input: LengthFacts | None
    output: LengthFacts | None
    rank_correlation: float | None  # Spearman's, of the requests with both; None where one never varies
    counts: tuple[LengthCount, ...]  # a joint histogram, by powers of two, without empty places


def measure_lengths(input_lens: Int64, output_lens: Int64) -> JointLengths:
    """Measure the lengths of requests in tokens, int64[requests] each, UNKNOWN_LEN where unknown."""
    both = (input_lens > 0) & (output_lens > 0)
    own, other = input_lens[both], output_lens[both]
    powers = [np.frexp(lens.astype(np.float64))[1].astype(np.int64) - 1 for lens in (own, other)]
    counts = np.bincount(powers[0] * 64 + powers[1])
    places = np.flatnonzero(counts).tolist()
    return JointLengths(
        LengthFacts.measure(input_lens),
        LengthFacts.measure(output_lens),
        correlate_ranks(own, other),
        tuple(LengthCount(1 << place // 64, 1 << place % 64, int(counts[place])) for place in places),
    )


def correlate_ranks(own: Int64, other: Int64) -> float | None:
    """Compute Spearman's rank correlation, ties by their mean rank; None if one of both does not vary."""
    if len(own) < 2:
        return None
    ranks = [rank_values(column) for column in (own, other)]
    first, second = (column - column.mean() for column in ranks)
    scale = float(np.sqrt((first * first).sum() * (second * second).sum()))
    return float((first * second).sum()) / scale if scale else None


class WorkloadFigures(msgspec.Struct, frozen=True):
    """All that is measured of one workload; None: it has no times, no blocks, no sessions."""

    name: str
    requests: int
    arrivals: ArrivalFigures | None
    lengths: JointLengths
    reuse: ReuseFigures | None
    sessions: SessionShape | None
    notes: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        """Encode the figures as JSON: times in seconds, lengths in tokens, null if unknown."""
        encoded: dict[str, Any] = msgspec.to_builtins(self, enc_hook=lambda column: column.tolist())
        return encoded


def measure_workload(load: LoadColumns) -> WorkloadFigures:
    """Measure a workload's arrivals, lengths, reuse and sessions; None for what it has no columns of."""
    return WorkloadFigures(
        load.name,
        len(load),
        None if load.times_ns is None else measure_arrivals(load.times_ns),
        measure_lengths(load.input_lens, load.output_lens),
        measure_reuse(load),
        measure_sessions(load),
        load.notes,
    )


class Measure(StrEnum):
    """How two workloads are compared in one figure."""

    RATIO = "ratio"  # the second over the first
    POINTS = "points"  # the second less the first, of shares in percent
    DIFFERENCE = "difference"
    DISTANCE = "KS"  # the greatest difference of two distributions, 0 to 1 (Kolmogorov and Smirnov)


class FidelityFigure(msgspec.Struct, frozen=True):
    """One figure of two workloads, and how far they are apart; None where a value is not known."""

    label: str
    first: float | None
    second: float | None
    measure: Measure
    apart: float | None


class Fidelity(msgspec.Struct, frozen=True):
    """How far the second of two workloads is from the first."""

    first: str
    second: str
    figures: tuple[FidelityFigure, ...]
    remarks: tuple[str, ...] = ()

    def find(self, label: str) -> FidelityFigure | None:
        """Return the figure with a label; None if both have none."""
        return next((figure for figure in self.figures if figure.label == label), None)

    def json(self) -> dict[str, Any]:
        """Encode the comparison as JSON."""
        encoded: dict[str, Any] = msgspec.to_builtins(self)
        return encoded

    def make_passage(self, first: str, second: str) -> Passage:
        """Make the passage of the comparison, the two workloads under these short names."""
        rows = (
            (figure.label, format_value(figure.first), format_value(figure.second), format_apart(figure))
            for figure in self.figures
        )
        table = make_table(("", ("first", first), ("second", second), "apart"), rows, notes=self.remarks)
        return Passage(f"How far {second} is from {first}", "fidelity", "Fidelity", table=table)


def format_value(value: float | None) -> str:
    """Format a figure in four digits, without decimals from 1,000 on; "" if it is None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def format_apart(figure: FidelityFigure) -> str:
    """Format how far two workloads are apart: × 1.020, +0.30 points, KS 0.0040; "" if it is None."""
    if figure.apart is None:
        return ""
    if figure.measure is Measure.RATIO:
        return f"× {figure.apart:.3f}"
    if figure.measure is Measure.DISTANCE:
        return f"KS {figure.apart:.4f}"
    return f"{figure.apart:+.2f}" + (" points" if figure.measure is Measure.POINTS else "")


def find_ks_distance(own: NDArray[Any], other: NDArray[Any]) -> float | None:
    """Return the greatest difference of two samples' distributions, 0 to 1; None if one is empty."""
    if not len(own) or not len(other):
        return None
    own, other = np.sort(own), np.sort(other)
    distance = 0.0
    for values in (own, other):
        places = [np.searchsorted(column, values, "right") / len(column) for column in (own, other)]
        distance = max(distance, float(np.abs(places[0] - places[1]).max()))
    return distance


def compare_measured(
    first: tuple[LoadColumns, WorkloadFigures], second: tuple[LoadColumns, WorkloadFigures]
) -> Fidelity:
    """Compare two workloads whose figures are measured already; figures that neither has are left out."""
    loads, both = (first[0], second[0]), (first[1], second[1])
    kept = tuple(
        figure
        for figure in _list_figures(loads, both)
        if (figure.first, figure.second, figure.apart) != (None, None, None)
    )
    return Fidelity(both[0].name, both[1].name, kept, tuple(_list_remarks(*both)))


def _make_figure(
    label: str, both: Sequence[T | None], find: Callable[[T], float | None], measure: Measure
) -> FidelityFigure:
    """Make the figure of what `find` returns of each workload; None of one that is None."""
    first, second = (None if own is None else find(own) for own in both)
    apart = None
    if first is not None and second is not None:
        is_ratio = measure is Measure.RATIO
        apart = second - first if not is_ratio else second / first if first else None
    return FidelityFigure(label, first, second, measure, apart)


def _make_ratio(label: str, both: Sequence[T | None], find: Callable[[T], float | None]) -> FidelityFigure:
    return _make_figure(label, both, find, Measure.RATIO)


def _make_distance(label: str, samples: Iterable[NDArray[Any]]) -> FidelityFigure:
    return FidelityFigure(label, None, None, Measure.DISTANCE, find_ks_distance(*samples))


def _list_figures(loads: Sequence[LoadColumns], both: Sequence[WorkloadFigures]) -> Iterator[FidelityFigure]:
    """Yield every figure of two workloads: of their arrivals, lengths, reuse and sessions."""
    yield _make_ratio("requests", both, lambda own: own.requests)
    arrivals = [own.arrivals for own in both]
    yield _make_ratio("requests/s", arrivals, lambda own: own.rate_per_s)
    yield _make_ratio("gaps, CV", arrivals, lambda own: own.gap_cv)
    gaps = [load.find_gaps_ns() for load in loads]
    yield _make_distance("gaps", gaps)
    if all(column.any() for column in gaps):
        yield _make_distance("gaps / their mean", [column / column.mean() for column in gaps])
    measured = {scale.window for own in arrivals if own is not None for scale in own.scales}
    for window in (window for window in SCALES_NS if window in measured):
        find = partial(ArrivalFigures.find_index, window=window)
        yield _make_ratio(f"dispersion over {window}", arrivals, find)
    for name, facts, columns in (
        ("prompt", [own.lengths.input for own in both], [load.input_lens for load in loads]),
        ("output", [own.lengths.output for own in both], [load.output_lens for load in loads]),
    ):
        yield _make_ratio(f"{name} tokens, mean", facts, lambda own: own.mean)
        yield _make_distance(f"{name} tokens", [lens[lens > 0] for lens in columns])
    ranks = [own.lengths.rank_correlation for own in both]
    yield _make_figure("rank correlation of the two", ranks, float, Measure.DIFFERENCE)
    yield from _list_reuse([own.reuse for own in both])
    shapes = [own.sessions for own in both]
    yield _make_ratio("sessions", shapes, lambda own: own.sessions)
    yield _make_ratio("requests of a session, mean", shapes, lambda own: own.requests.mean)
    sessions = [load.sessions for load in loads if load.sessions is not None]
    if len(sessions) == len(loads):
        yield _make_distance("requests of a session", map(count_requests, sessions))
    yield _make_distance("pauses before requests", map(find_delays_ns, loads))
    yield _make_figure(
        "requests of sub-agents (%)",
        shapes,
        lambda own: 100 * (1 - own.by_depth[0] / sum(own.by_depth)) if own.by_depth else None,
        Measure.POINTS,
    )


def _list_reuse(both: Sequence[ReuseFigures | None]) -> Iterator[FidelityFigure]:
    """Yield the reuse of caches without a limit and of the size at which the shares differ most."""
    yield _make_figure("prefix reuse (%)", both, lambda own: 100 * own.share, Measure.POINTS)
    known = [own for own in both if own is not None]
    if len(known) == len(both):
        sizes = max((own.sizes for own in known), key=len).tolist()
        first, second = (np.array([100 * own.find_share(size) for size in sizes]) for own in known)
        size = sizes[int(np.abs(second - first).argmax())]
        label = f"in a cache of {size:,.0f} tokens"
        yield _make_figure(label, both, lambda own: 100 * own.find_share(size), Measure.POINTS)
    for name, quantiles in (
        ("tokens", [() if own is None else own.distances for own in both]),
        ("seconds", [() if own is None else own.gaps_s for own in both]),
    ):
        yield _make_ratio(f"{name} between two uses, P50", quantiles, lambda own: own[1] if own else None)


def _list_remarks(first: WorkloadFigures, second: WorkloadFigures) -> Iterator[str]:
    """Yield remarks where the rates are 2 % or more apart: on gaps, and on dispersion by thinning."""
    rates = [None if each.arrivals is None else each.arrivals.rate_per_s for each in (first, second)]
    if not rates[0] or not rates[1] or abs(rates[1] / rates[0] - 1) < _SAME_RATE:
        return
    ratio = rates[1] / rates[0]
    yield f"The rate is {ratio:.3g} times as high: compare the gaps over their mean."
    scales = first.arrivals.scales if first.arrivals is not None else ()
    if ratio < 1 and scales:
        thinned = (f"{1 + ratio * (scale.index - 1):.3g} over {scale.window}" for scale in scales)
        yield (
            f"Had each request been kept or left out by chance, dispersion would be {', '.join(thinned)}: "
            "1 + ratio × (index − 1)."
        )
