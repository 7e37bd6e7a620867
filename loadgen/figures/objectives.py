"""Objectives: figures and limits that a profile asks for (--slo, --goodput), and what a run shows of them.

A latency has a ceiling, a speed a floor. Both are judged as one: by how slow each sample is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict

from loadgen.base.arrays import Bool, Float64, Int64
from loadgen.base.clock import MS_NS
from loadgen.base.errors import UsageError
from loadgen.base.parsing import MOST_SECONDS, suggest_name
from loadgen.base.text import quote_value
from loadgen.figures.distribution import (
    PARTS,
    UNLIKELY,
    UNSURE,
    count_independent,
    find_lower_place,
    find_upper_index,
    find_upper_place,
)
from loadgen.figures.figure_table import (
    SELECTABLE,
    SPEED,
    UNIT_SUFFIXES,
    parse_metrics,
    parse_percentiles,
)
from loadgen.figures.metrics import BlockFacts, list_gaps
from loadgen.figures.per_request import MetricOptions, PerRequest
from loadgen.figures.steady_state import Trim
from loadgen.plan import request_sources
from loadgen.plan.profile import Profile, check_body
from loadgen.records.record import Records
from loadgen.transport.failure import NO_EVIDENCE

_UNITS_MS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}
_SPEED_UNITS = ("", "tok/s", "tokens/s", "t/s", "tps")
_CLAUSE = re.compile(
    r"(?P<metric>[a-z][\w.]*)\s+(?P<rank>[a-z][\w.]*)\s*(?P<side>[<>])=?\s*"
    r"(?P<limit>[\d.]+(?:e[+-]?\d+)?)\s*(?P<unit>[a-zµ/]*)",
    re.ASCII | re.IGNORECASE,
)
_RANK = re.compile(r"p[\d.]+|mean|avg|average|median", re.IGNORECASE)
GOODPUT = ("ttft", "tpot", "e2el", "tps_user")  # what --goodput may name: vLLM's three, and a floor
_EXAMPLE = "write it as 'ttft p90 < 500ms' or 'tps_user p10 > 30'"
_MEDIAN = 50.0
_MOST_TOK_S = 1e9

# The limits that others hold servers to. MLPerf Inference, server and interactive scenarios:
# `loadgen/mlperf.conf` of mlcommons/inference as of 2026-08, P99 of TTFT and TPOT, or of the whole answer.
# AA-AgentPerf: https://artificialanalysis.ai/methodology/agentperf as of 2026-07-21, P25 of the output speed
# and P95 of TTFT.
_SOURCES = {"mlperf": "MLPerf Inference", "agentperf": "AA-AgentPerf"}
_Row = tuple[str, float, float]  # metric, percentile, limit in milliseconds or tokens per second
_BATCHES = 20  # of a run, with at least
_BATCH = 10  # requests each
_SLOW = 0.9  # of a run's samples lie at or below what is slow for it, or fewer for a lower percentile


def _limit_streamed(ttft_ms: float, tpot_ms: float) -> tuple[_Row, ...]:
    return ("ttft", 99.0, ttft_ms), ("tpot", 99.0, tpot_ms)


def _limit_tier(speed_tok_s: float, ttft_ms: float) -> tuple[_Row, ...]:
    return ("tps_user", 25.0, speed_tok_s), ("ttft", 95.0, ttft_ms)


PUBLISHED: dict[str, tuple[_Row, ...]] = {
    "mlperf/llama2-70b": _limit_streamed(2000, 200),
    "mlperf/llama2-70b-interactive": _limit_streamed(450, 40),
    "mlperf/llama3.1-405b": _limit_streamed(6000, 175),
    "mlperf/llama3.1-405b-interactive": _limit_streamed(4500, 80),
    "mlperf/llama3.1-8b": _limit_streamed(2000, 100),
    "mlperf/llama3.1-8b-interactive": _limit_streamed(500, 30),
    "mlperf/mixtral-8x7b": _limit_streamed(2000, 200),
    "mlperf/deepseek-r1": _limit_streamed(2000, 80),
    "mlperf/deepseek-r1-interactive": _limit_streamed(1500, 15),
    "mlperf/gpt-oss-120b": _limit_streamed(3000, 80),
    "mlperf/gpt-oss-120b-interactive": _limit_streamed(2000, 15),
    "mlperf/qwen3-vl": (("e2el", 99.0, 12_000),),
    "agentperf/deepseek-v4-pro-1": _limit_tier(20, 10_000),
    "agentperf/deepseek-v4-pro-2": _limit_tier(60, 5_000),
    "agentperf/deepseek-v4-pro-3": _limit_tier(180, 3_000),
    "agentperf/gpt-oss-120b-1": _limit_tier(100, 5_000),
    "agentperf/gpt-oss-120b-2": _limit_tier(250, 3_000),
    "agentperf/gpt-oss-120b-3": _limit_tier(500, 2_000),
    "agentperf/gpt-oss-120b-4": _limit_tier(2_000, 1_000),
}


class Objective(msgspec.Struct, frozen=True):
    """A percentile of a latency that must not exceed a limit, or of a speed that must not be below one."""

    metric: str  # a key of figures.SELECTABLE: ttft, tpot, itl, e2el, tps_user, …
    percentile: float  # 0 to 100, exclusive; a speed's slow tail is below P50
    limit: float  # milliseconds, or tokens per second

    def __str__(self) -> str:
        """The objective as `parse_objectives` reads it: a search gives it to each of its runs."""
        return f"{self.metric} p{self.percentile:.12g} {'<>'[self.is_floor]} {self.limit:.12g} {self.unit}"

    @property
    def is_floor(self) -> bool:
        """Whether values must not be below the limit, as speeds; latencies must not be above it."""
        return SELECTABLE[self.metric].kind == SPEED

    @property
    def unit(self) -> str:
        """The unit of the limit and of values: ms or tok/s."""
        return SELECTABLE[self.metric].unit

    @property
    def tail(self) -> float:
        """The percentage of samples that the limit is asked of: 90 of ttft p90 and of tps_user p10."""
        return 100 - self.percentile if self.is_floor else self.percentile

    def holds(self, value: float) -> bool:
        """Whether a value is within the limit; NaN is not."""
        return value >= self.limit if self.is_floor else value <= self.limit

    def measure_excess(self, value: float) -> float:
        """Return how many times slower a value is than the limit; NaN of NaN, inf of a speed of 0."""
        if self.is_floor:
            return self.limit / value if value else math.inf
        return value / self.limit


class Standing(StrEnum):
    """Whether a run is shown to meet an objective, to miss it, or neither, at 99 % confidence."""

    MEETS = "meets"  # the bound on the slow side is within the limit
    NOT_SHOWN = "not shown"  # the limit lies between the bounds, or there are too few samples for them
    FAILS = "fails"  # the bound on the fast side is beyond the limit


class ObjectiveEvidence(msgspec.Struct, frozen=True):
    """The evidence of one run for one objective, in its unit; a failed request is beyond any limit.

    `batches` are (samples, samples beyond the limit) of successive parts of the run by time of sending, for
    the spread between them: samples of one run follow one another, and are not independent. Among requests
    that failed a latency is infinite, a speed 0. `dispersion` is how many times as much the counts slower
    than the run's own P90 (of a speed P10), or the objective's percentile where that is nearer to the
    median, vary between parts of the run as those of independent samples would; at least 1. `independent` is
    how many independent requests the samples are worth, on which the bounds rest; None: not known.
    """

    objective: Objective
    samples: int
    over: int  # of them, beyond the limit: above a ceiling, below a floor
    value: float  # the percentile; NaN if empty
    bound: float | None  # its bound on the slow side at 99 % confidence; None: too few samples
    batches: tuple[tuple[int, int], ...] = ()
    fast_bound: float | None = None  # its bound on the fast side at 99 % confidence; None: too few samples
    dispersion: float = 1.0
    independent: int | None = None

    @property
    def passes(self) -> bool:
        """Whether the percentile is shown to meet the objective: its bound on the slow side is within it.

        Where the bound does not know what the samples are worth, the dispersion must allow it too.
        """
        if self.bound is None or not self.objective.holds(self.bound):
            return False
        sure = self.dispersion <= UNLIKELY or self.independent is not None
        return sure or self.allows(self.samples / (UNSURE * self.dispersion))

    @property
    def standing(self) -> Standing:
        """Whether the objective is shown to be met, shown to be missed, or neither."""
        if self.passes:
            return Standing.MEETS
        missed = self.fast_bound is not None and not self.objective.holds(self.fast_bound)
        return Standing.FAILS if missed else Standing.NOT_SHOWN

    def allows(self, worth: float) -> bool:
        """Whether `worth` independent samples with this share beyond the limit would show it met."""
        n, share = math.floor(worth), self.over / max(self.samples, 1)
        index = find_upper_index(n, self.objective.tail)
        return index is not None and share * n <= n - 1 - index


def parse_objectives(text: str) -> tuple[Objective, ...]:
    """Parse `--slo "ttft p90 < 500ms, tps_user p10 > 30"` or a published set, as mlperf/llama3.1-8b.

    Clauses and names of sets may be mixed; () for "". Raises UsageError that names the first wrong clause, or
    two that contradict each other.
    """
    if not text.strip():
        return ()
    objectives = [objective for clause in text.split(",") for objective in _parse_clause(clause.strip())]
    for place, later in enumerate(objectives):
        for earlier in objectives[:place]:
            if earlier.metric != later.metric:
                continue
            if earlier.percentile == later.percentile:
                raise UsageError(
                    f"--slo: {earlier} and {later} are of the same percentile: give its limit once"
                )
            fewer, more = sorted((earlier, later), key=lambda objective: objective.tail)
            if fewer.holds(more.limit):
                raise UsageError(f"--slo: {fewer} follows from {more}: leave it out, or exchange the limits")
    return tuple(objectives)


def parse_goodput(pairs: Iterable[str]) -> dict[str, float]:
    """Parse `--goodput ttft:500 tps_user:30` into name → milliseconds or tokens/s; raises UsageError."""
    limits: dict[str, float] = {}
    for pair in pairs:
        name, colon, text = pair.partition(":")
        if not colon:
            raise UsageError(
                f"--goodput {pair}: write NAME:MILLISECONDS, for example ttft:500, or tps_user:30"
            )
        if name not in GOODPUT:
            raise UsageError(
                f"--goodput {pair}: unknown objective {name!r}: choose from {', '.join(GOODPUT)}"
            )
        unit = "tokens per second" if SELECTABLE[name].kind == SPEED else "milliseconds"
        if name in limits:
            raise UsageError(f"--goodput: {name} is given twice; give it once")
        try:
            value = float(text)
        except ValueError:
            raise UsageError(f"--goodput {pair}: {text!r} is not a number of {unit}") from None
        if not math.isfinite(value) or value < 0:
            raise UsageError(f"--goodput {pair}: give a finite number of {unit}, 0 or more")
        limits[name] = value
    return limits


def make_metric_options(profile: Profile) -> MetricOptions:
    """Make the options of which figures a profile needs; raises UsageError if they cannot be computed.

    Without --goodput the limits of --slo say which requests are good, each figure's by its slowest tail.
    """
    slo = parse_objectives(profile.slo)
    blind = [f"--slo {objective}" for objective in slo if not is_judgeable(objective, profile.stream)]
    percentiles, goodput = parse_percentiles(profile.metric_percentiles), parse_goodput(profile.goodput)
    if not profile.stream:
        blind += [f"--goodput {metric}" for metric in sorted(goodput) if SELECTABLE[metric].needs_tokens]
    if blind:
        raise UsageError(f"{blind[0]} needs a stream to judge it: leave out --disable-stream, or use e2el")
    limits = goodput or find_goodput_limits(slo)
    return MetricOptions(percentiles, goodput_limits=limits, streamed=profile.stream)


def make_block_facts(profile: Profile) -> BlockFacts:
    """Make the settings that the result block shows; raises UsageError for an unknown metric."""
    return BlockFacts(
        request_rate_per_s=profile.request_rate,
        max_concurrency=profile.max_concurrency,
        selected=parse_metrics(profile.percentile_metrics),
    )


def check_workload(profile: Profile) -> None:
    """Raise UsageError before a run if a file of its profile is missing, or as `check_profile` does."""
    check_profile(profile)
    request_sources.check_files(profile)


def check_profile(profile: Profile) -> None:
    """Raise UsageError before a run if its profile's figures could not be reported, or would be untrue."""
    check_reportable(profile)
    check_body(profile)


def check_reportable(profile: Profile) -> None:
    """Raise UsageError if a run of this profile, new or stored, cannot be reported."""
    make_metric_options(profile)
    make_block_facts(profile)
    if profile.warmup or profile.cooldown:
        Trim.parse(profile.warmup, profile.cooldown)


def encode_evidence(evidence: ObjectiveEvidence) -> dict[str, Any]:
    """Encode the evidence and its standing as JSON; an infinite figure becomes null, NaN stays."""
    unit = evidence.objective.unit
    row = {**asdict(evidence), "standing": evidence.standing}
    row["objective"] = name_numbers(asdict(evidence.objective), unit)
    row = name_numbers(row, unit)
    return {name: None if value in (math.inf, -math.inf) else value for name, value in row.items()}


def list_written_names(unit: str) -> dict[str, str]:
    """Return the name in JSON of each number of an objective: value_ms, of a speed value_tok_s."""
    fast = "lower" if unit == "ms" else "upper"
    names = {"limit": "limit", "value": "value", "bound": "bound", "fast_bound": fast}
    return {name: f"{word}_{UNIT_SUFFIXES[unit]}" for name, word in names.items()}


def name_numbers(row: Mapping[str, Any], unit: str) -> dict[str, Any]:
    """Return a row with the numbers of an objective under their names in JSON."""
    written = list_written_names(unit)
    return {written.get(name, name): value for name, value in row.items()}


def join_standings(standings: Iterable[Standing]) -> Standing:
    """Return the worst standing of several objectives: missed, then not shown (also for none), then met."""
    shown = set(standings)
    gravest = (Standing.FAILS, Standing.NOT_SHOWN, Standing.MEETS)
    return next((standing for standing in gravest if standing in shown), Standing.NOT_SHOWN)


def is_judgeable(objective: Objective, times_tokens: bool) -> bool:
    """Whether a run has an objective's figure: without token times only one that needs none."""
    return times_tokens or not SELECTABLE[objective.metric].needs_tokens


def find_goodput_limits(objectives: Sequence[Objective]) -> dict[str, float]:
    """Derive --goodput's limits from --slo, of each figure that it may name by the slowest tail."""
    slowest = sorted(objectives, key=lambda objective: objective.tail)
    return {objective.metric: objective.limit for objective in slowest if objective.metric in GOODPUT}


def _parse_clause(clause: str) -> Iterator[Objective]:
    """Yield the objective of a clause, or those of a published set; raises UsageError."""
    if clause in PUBLISHED:
        yield from (Objective(*row) for row in PUBLISHED[clause])
        return
    if (source := clause.partition("/")[0]) in _SOURCES:
        names = [name for name in PUBLISHED if name.startswith(f"{source}/")]
        near, known = suggest_name(clause, names), ", ".join(names)
        raise UsageError(f"--slo {clause}: no such set{near}; those of {_SOURCES[source]}: {known}")
    match = _CLAUSE.fullmatch(clause)
    if match is None:
        raise UsageError(
            f"--slo {quote_value(clause)} is not an objective: {_EXAMPLE}, several with commas between"
        )
    if _RANK.fullmatch(match["metric"]) and match["rank"].lower() in SELECTABLE:
        order = f"{match['rank']} {match['metric']} {match['side']} {match['limit']}{match['unit']}"
        raise UsageError(f"--slo {clause}: the figure comes before its percentile: write '{order}'")
    metric, rank = match["metric"].lower(), match["rank"]
    if metric not in SELECTABLE:
        known = suggest_name(metric, SELECTABLE) or f": choose from {', '.join(SELECTABLE)}"
        raise UsageError(f"--slo {clause}: unknown figure {metric!r}{known}")
    if SELECTABLE[metric].kind == SPEED:
        yield _parse_floor(clause, match, metric)
        return
    if match["side"] == ">":
        raise UsageError(
            f"--slo {clause}: {metric} is a latency, which has no floor: write '{metric} {rank} < …', or a "
            "floor of a speed, as 'tps_user p10 > 30'"
        )
    if (unit := match["unit"].lower()) not in _UNITS_MS:
        what = f"unknown unit {unit!r}{suggest_name(unit, _UNITS_MS)}" if unit else "the limit has no unit"
        raise UsageError(f"--slo {clause}: {what}: write us, ms or s after the number")
    limit_ms = _parse_number(clause, match["limit"]) * _UNITS_MS[unit]
    if not 0 < limit_ms <= MOST_SECONDS * 1e3:
        raise UsageError(f"--slo {clause}: the limit must be above 0 and at most {MOST_SECONDS:g} s")
    yield Objective(metric, _parse_rank(clause, rank), limit_ms)


def _parse_floor(clause: str, match: re.Match[str], metric: str) -> Objective:
    """Parse the floor of a speed; raises UsageError for a ceiling, a time and the fast tail."""
    percentile, unit = _parse_rank(clause, match["rank"]), match["unit"].lower()
    limit = _parse_number(clause, match["limit"])
    if match["side"] == "<":
        raise UsageError(
            f"--slo {clause}: {metric} is a speed, and a higher one is better: write '{metric} p10 > "
            f"{match['limit']}' for 90 % of the requests"
        )
    if unit not in _SPEED_UNITS:
        raise UsageError(f"--slo {clause}: {metric} is in tokens per second: leave out {unit!r}")
    if percentile > _MEDIAN:
        raise UsageError(
            f"--slo {clause}: of a speed that is the fast tail, which {100 - percentile:.6g} % of the "
            f"requests reach: write '{metric} p{100 - percentile:.6g} > {match['limit']}' to ask it of "
            f"{percentile:.6g} %"
        )
    if not 0 < limit <= _MOST_TOK_S:
        raise UsageError(f"--slo {clause}: the floor must be above 0 and at most {_MOST_TOK_S:g} tok/s")
    return Objective(metric, percentile, limit)


def _parse_rank(clause: str, rank: str) -> float:
    """Parse p99 or median as a percentile, 0 and 100 excluded; raises UsageError, also for a mean."""
    word = rank.lower()
    if word in ("mean", "avg", "average"):
        raise UsageError(
            f"--slo {clause}: a mean has no bound that holds for every distribution, and hides how many "
            "requests are slow: give a percentile, such as p50 or p99"
        )
    try:
        percentile = 50.0 if word == "median" else float(word.removeprefix("p"))
    except ValueError:
        raise UsageError(
            f"--slo {clause}: {rank!r} is not a percentile: write p99, p99.9 or median"
        ) from None
    if not 0 < percentile < 100:
        raise UsageError(f"--slo {clause}: the percentile must lie between 0 and 100, both excluded")
    return percentile


def _parse_number(clause: str, number: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise UsageError(f"--slo {clause}: {number!r} is not a number") from None


class _Samples(msgspec.Struct, frozen=True):
    """The samples of one figure by how slow they are, and each sample's request.

    A latency is in nanoseconds, infinite for a failed request; a speed is negative, and 0 for such a one.
    """

    slowness: Float64
    request: Int64  # row of the records


_NO_SAMPLES = _Samples(np.zeros(0), np.zeros(0, np.int64))


def judge_objectives(
    records: Records, objectives: Iterable[Objective], ask: MetricOptions
) -> tuple[ObjectiveEvidence, ...]:
    """Judge each objective by a run's requests; return the evidence in order.

    A request that failed counts as beyond any limit, for ITL and token time with as many samples as were
    planned. Left out are requests that the client ended or lost, and answers without such a figure (one
    token has no TPOT). If no token was timed, no objective of tokens has samples. Bounds rest on as many
    samples as there are independent requests: the gaps of one answer are alike, requests in a queue wait
    together.
    """
    each = PerRequest.from_records(records, ask)
    return tuple(
        _judge(
            objective,
            _list_samples(objective.metric, records, each)
            if is_judgeable(objective, ask.times_tokens)
            else _NO_SAMPLES,
            records,
        )
        for objective in objectives
    )


def _judge(objective: Objective, samples: _Samples, records: Records) -> ObjectiveEvidence:
    """Judge one objective by its samples, with bounds as of those that are worth independent ones."""
    order, n, rank = np.argsort(samples.slowness), len(samples.slowness), objective.tail
    unit = -1.0 if objective.is_floor else float(MS_NS)
    over = samples.slowness > objective.limit * unit
    # Samples of one request are no more than its mean, in the order in which requests were sent.
    rows, place, counts = np.unique(samples.request, return_inverse=True, return_counts=True)
    means = np.bincount(place, samples.slowness, len(rows)) / counts
    independent = count_independent(means[np.argsort(records.sent_ns[rows], kind="stable")])

    fast = find_lower_place(n, n, rank)
    if fast is None or samples.slowness[order[fast]] < (0.0 if objective.is_floor else math.inf):
        # Failed requests were counted, whatever they waited for: of them each is one.
        fast = find_lower_place(n, independent, rank)

    dispersion = 1.0  # how many times more the counts of slow samples vary between parts than by chance
    if n:
        slowest = order[math.ceil(choose_slow_rank(objective) * n) - 1]
        slow = samples.slowness > samples.slowness[slowest]
        dispersion = measure_dispersion(_count_batches(samples.request, slow, records))

    def bound(place: int | None) -> float | None:
        # Failed requests give 0, not -0.
        return None if place is None else float(samples.slowness[order[place]]) / unit + 0.0

    return ObjectiveEvidence(
        objective=objective,
        samples=n,
        over=int(over.sum()),
        value=_find_percentile(samples.slowness[order], rank) / unit + 0.0,
        bound=bound(find_upper_place(n, independent, rank)),
        fast_bound=bound(fast),
        batches=_count_batches(samples.request, over, records),
        dispersion=dispersion,
        independent=independent,
    )


def choose_slow_rank(objective: Objective) -> float:
    """Return the rank by slowness, 0 to 1, above which samples are slow: 0.9, or the objective's if lower.

    Above P90 there are too few to count; but waits of half of all requests last longer than those of a tenth,
    so a median's dispersion is taken at the median.
    """
    return min(_SLOW, objective.tail / 100)


def measure_dispersion(batches: Sequence[tuple[int, int]]) -> float:
    """Compute the variance of the counts of slow samples over parts of a run ÷ the binomial one; at least 1.

    `batches` are (samples, slow samples), joined to six parts. The first is left out: the queue is empty when
    a run begins. 1 for fewer than three batches.
    """
    kept = np.array(batches[1:], float).reshape(-1, 2)
    if len(kept) < 2:
        return 1.0
    n, over = np.array([part.sum(0) for part in np.array_split(kept, min(PARTS, len(kept)))]).T
    share = over.sum() / max(n.sum(), 1.0)
    if not 0 < share < 1:
        return 1.0
    squares = float(((over - n * share) ** 2 / (n * share * (1 - share))).sum())
    return max(squares / (len(n) - 1), 1.0)


def _find_percentile(ordered: Float64, percentile: float) -> float:
    """Return a percentile of ascending values, the last maybe infinite, linear in rank; NaN if empty."""
    if not len(ordered):
        return math.nan
    rank = (len(ordered) - 1) * (percentile / 100)
    low, high = float(ordered[math.floor(rank)]), float(ordered[math.ceil(rank)])
    return low if low == high else low + (high - low) * (rank - math.floor(rank))


def _count_batches(request: Int64, over: Bool, records: Records) -> tuple[tuple[int, int], ...]:
    """Count (samples, those in `over`) in up to 20 parts of the run, by time of sending; () for none."""
    having = np.unique(request)
    having = having[np.argsort(records.sent_ns[having], kind="stable")]
    parts = max(min(_BATCHES, len(having) // _BATCH), 1)
    batch = np.zeros(len(records), np.int64)
    batch[having] = np.arange(len(having)) * parts // max(len(having), 1)
    samples = np.bincount(batch[request], minlength=parts)
    above = np.bincount(batch[request[over]], minlength=parts)
    return tuple(zip(samples.tolist(), above.tolist(), strict=True)) if len(request) else ()


def _list_samples(metric: str, records: Records, each: PerRequest) -> _Samples:
    """List a figure's samples: of successes as measured, of failures slowest, of their gaps as planned."""
    failed = ~records.ok & ~records.mark_kinds(NO_EVIDENCE)
    figure = SELECTABLE[metric]
    if figure.of == "requests":
        values, has = figure.samples(each)
        rows = np.flatnonzero(has | failed)
        slowness, slowest = (-values, 0.0) if figure.kind == SPEED else (values, np.inf)
        return _Samples(np.where(failed, slowest, slowness)[rows], rows)
    values_ns, rows = _list_gap_samples(records, each.ok, per_token=figure.of == "tokens")
    lost = np.repeat(np.flatnonzero(failed), np.maximum(records.planned_output[failed] - 1, 1))
    request = np.concatenate([rows, lost])
    infinite = np.full(len(lost), np.inf)
    return _Samples(np.concatenate([values_ns, infinite]), request)


def _list_gap_samples(records: Records, ok: Bool, per_token: bool) -> tuple[Float64, Int64]:
    """List the gaps (ns) of successes and each one's row; `per_token`: gap ÷ tokens, once for each token."""
    values: list[Float64] = [np.zeros(0)]
    rows: list[Int64] = [np.zeros(0, np.int64)]
    for block in records.blocks():
        good = ok[block.first : block.last]
        gap_ns, tokens = list_gaps(block, good)
        row = np.repeat(
            np.arange(block.first, block.last), np.where(good, np.maximum(np.diff(block.start) - 1, 0), 0)
        )
        if per_token:
            gap_ns, row = np.repeat(gap_ns / np.maximum(tokens, 1), tokens), np.repeat(row, tokens)
        values.append(gap_ns.astype(np.float64))
        rows.append(row)
    return np.concatenate(values), np.concatenate(rows)
