"""Search: which load is run next and for how long, from the runs so far alone; without I/O or state.

Loads go up or down by steps until one lies above the edge and one below it; from then on each run is at the
estimated edge, in turn a little below and above it, where it tells most, and longer the more is still to be
learned. Where shares jump from 0 to 1 this is bisection on a log scale.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from loadgen.base.text import format_count
from loadgen.figures.figure_table import SELECTABLE
from loadgen.figures.objectives import Objective, ObjectiveEvidence, Standing, join_standings
from loadgen.study.limit_record import SearchEnd
from loadgen.study.series.limit.edge import EdgeFit, EdgePoint, drop_first_part, fit_edge
from loadgen.study.sweep_record import LoadAxis

_LEAST_RUN_S = 60.0
_E2EL_TIMES = 10.0  # P99s of E2EL that a run lasts at least
STEP = 4.0  # of load, while the edge is only known to be on one side
_SMALL_STEP = 1.5  # once some samples are above the limit, or not all
_SOME = 0.1  # of the allowed share: from there on the edge is not far
_MOST = 0.5  # of all samples
_AWAY = 0.7  # of a run from the edge, in logits: half or twice the share that is allowed
_INNER = 0.15  # of the bracket, on a log scale, that a run stays away from its ends
_BETWEEN = 2  # numbers so far apart have another between them
_JUMP = 200.0  # a slope of the logit from which on the share jumps: longer runs tell no more
_ALIKE = 1.5  # a dispersion below which samples do not depend on those before: a longer run adds little
_LEAST_OVER = 10.0  # samples above the limit that a run should have at the edge
_FEWEST = 500  # samples, whatever the percentile
_NEAR_TIMES = 4.0  # as many in a run near the edge
_GROWTH = 4.0  # of a run over the longest before
_MOST_TIMES = 32.0  # as many samples as a run far from the edge has, at most
_TRIES = 2  # runs at one load that show nothing, before it is given up
_MOST_AGAIN = 3  # disturbed runs of a search that are made again
_SPREAD_OVER = 4  # runs that share what is left of the budget, or of what is to be learned
_AIM = 0.9  # of the width asked for
_CONFIRMED = 1.5  # logits below the edge: a run that passes there shows that the limit is reachable
_SPARE = 3.0  # standard deviations of a Poisson count
_DIGITS = 4  # of a rate
_ROUNDED_PER_S = 10  # a run's time is rounded up to a tenth of a second
_NO_SHARE = 1000  # samples, all of them above, that a run without shares of its own counts as


class NextRun(msgspec.Struct, frozen=True):
    """A run to be made; a rate in requests per second or a whole number of requests in flight."""

    load: float
    duration_s: float
    why: str = ""  # it is made at the load of the run before; "": it is not


def choose_next_run(settings: SearchSettings, trials: Sequence[Trial]) -> NextRun | SearchEnd:
    """Return the next run after `trials`, or why the search is over.

    The last run is repeated if it showed nothing and the budget allows it, before another load is chosen.
    """
    edge = find_limiting_edge(settings, trials)
    load, left_s = _choose_next_load(settings, trials, edge), _compute_left_s(settings, trials)
    more = len(trials) < settings.most_runs
    if load != "within" and more and (again := _repeat_run(settings, trials)) and again.duration_s <= left_s:
        return again
    if isinstance(load, str):
        return load
    if not more:
        return "most-runs"
    if find_least_run(settings, trials, load)[0] > left_s:
        return "budget"
    return NextRun(load, _round_up_s(_choose_run_length(settings, trials, edge, load)[0]))


def estimate_first_run(settings: SearchSettings) -> tuple[float, str]:
    """Return the seconds of a search's first run, and what makes it so long, in words."""
    return _choose_run_length(settings, (), None, _round_load(settings, settings.start))


def _choose_run_length(
    settings: SearchSettings, trials: Sequence[Trial], edge: EdgeFit | None, load: float
) -> tuple[float, str]:
    """Return the seconds of a run at a load, and what makes it so long, in words.

    They suffice for its samples within its share of the budget, but are never less than the shortest run's.
    """
    samples = _choose_samples(settings, trials, edge, load)
    wanted_s = samples / _estimate_requests_per_s(settings, trials, load)
    runs = settings.most_runs - len(trials)
    share_s = _compute_left_s(settings, trials) / (runs if edge is None else min(_SPREAD_OVER, runs))
    of_samples = (
        format_count(math.ceil(samples), "request") if wanted_s <= share_s else "a share of the budget"
    )
    return max(find_least_run(settings, trials, load), (min(wanted_s, share_s), of_samples))


def _compute_left_s(settings: SearchSettings, trials: Sequence[Trial]) -> float:
    """Return the budget's seconds that the next run may measure, warm-up deducted; inf without a budget."""
    if settings.budget_s is None:
        return math.inf
    return settings.budget_s - math.fsum(trial.took_s for trial in trials) - _estimate_around_s(trials)


def _estimate_around_s(trials: Sequence[Trial]) -> float:
    """Return the most seconds that a run took beyond its duration, as for warm-up; 0 without runs."""
    return max((trial.took_s - trial.duration_s for trial in trials), default=0.0)


def estimate_needed_s(settings: SearchSettings, trials: Sequence[Trial]) -> float | None:
    """Return the least seconds of the budget that the next run would take; None if there is no next load."""
    load = _choose_next_load(settings, trials, find_limiting_edge(settings, trials))
    if isinstance(load, str):
        return None
    least_s, _ = find_least_run(settings, trials, load)
    return least_s + _estimate_around_s(trials)


def _repeat_run(settings: SearchSettings, trials: Sequence[Trial]) -> NextRun | None:
    """Return the last run again if it was disturbed, or longer if only samples are missing; else None.

    None too if the load has had two such runs, or disturbed runs were repeated three times in all: what
    disturbs them does not go away, or the client is the limit.
    """
    if not trials:
        return None
    last, nothing = trials[-1], Counter(trial.load for trial in trials if trial.disturbed or trial.short)
    spent = last.disturbed and sum(tries - 1 for tries in nothing.values()) >= _MOST_AGAIN
    if not (last.disturbed or last.short) or nothing[last.load] >= _TRIES or spent:
        return None
    least_s, _ = find_least_run(settings, trials, last.load)
    if last.disturbed:
        return NextRun(last.load, _round_up_s(max(least_s, last.duration_s)), "again: it was disturbed")
    times = 1.0  # as long, until each objective has samples for a bound
    for each in last.objectives:
        observed = last.count_observed(each)
        if each.bound is None and observed > 0:
            times = max(times, _add_spare(_count_samples_to_pass(each.objective)) / observed)
    enough_s = max(least_s, last.duration_s * times)
    return NextRun(last.load, _round_up_s(enough_s), "longer: its samples were too few")


def _round_up_s(seconds: float) -> float:
    return math.ceil(_ROUNDED_PER_S * seconds) / _ROUNDED_PER_S


def _count_samples_to_pass(objective: Objective) -> int:
    """Count the fewest samples, none of them above the limit, that show an objective met at 99 %."""
    return math.ceil(math.log(0.01) / math.log(1 - compute_allowed_share(objective)))


def _add_spare(needed: int) -> int:
    """Return a count plus three of its Poisson standard deviations, so that it is reached if few arrive."""
    return math.ceil(needed + _SPARE * math.sqrt(needed))


def find_least_run(settings: SearchSettings, trials: Sequence[Trial], load: float) -> tuple[float, str]:
    """Return the seconds of the shortest run at a load, and what makes it so long, in words.

    It has enough requests to pass, and lasts `least_run_s`, else 60 s and ten times the P99 of E2EL of the
    run at the nearest load, or of one request alone.
    """
    count = _add_spare(max(map(_count_samples_to_pass, settings.objectives)))
    reasons = {format_count(count, "request"): count / _estimate_requests_per_s(settings, trials, load)}
    if settings.least_run_s is not None:
        reasons["--min-duration"] = settings.least_run_s
    else:
        slowest_s = settings.alone_s or 0.0
        if timed := [trial for trial in trials if trial.p99_e2el_s is not None]:
            slowest_s = min(timed, key=lambda trial: abs(math.log(trial.load / load))).p99_e2el_s or 0.0
        reasons["the shortest run"] = _LEAST_RUN_S
        reasons[f"{_E2EL_TIMES:g} times E2EL"] = _E2EL_TIMES * slowest_s
    why = max(reasons, key=lambda reason: reasons[reason])
    return reasons[why], why


def fit_edges(settings: SearchSettings, trials: Sequence[Trial]) -> list[EdgeFit | None]:
    """Fit the edge of each objective; None where no run is above it, or none below.

    Disturbed and empty runs are left out; an unusable one counts as 1,000 samples, all above the limit.
    """
    edges = []
    for at, objective in enumerate(settings.objectives):
        points = []
        for trial in (each for each in trials if not each.disturbed):
            if not trial.usable:
                points.append(EdgePoint(trial.load, ((_NO_SHARE, _NO_SHARE),)))
            elif (evidence := trial.objectives[at]).samples:
                points.append(EdgePoint(trial.load, list_parts(evidence), evidence.dispersion))
        is_s_shaped = SELECTABLE[objective.metric].phase == "token"
        edges.append(fit_edge(points, compute_allowed_share(objective), is_s_shaped))
    return edges


def find_limiting_edge(settings: SearchSettings, trials: Sequence[Trial]) -> EdgeFit | None:
    """Return the lowest edge of all objectives, its interval widened to the lowest ends of theirs.

    Over concurrency it reaches at least from the load below all that failed to the one below the first that
    did. None without an edge, or if every undisturbed run is beyond it.
    """
    known = [edge for edge in fit_edges(settings, trials) if edge is not None]
    if not known or all(trial.beyond for trial in trials if not trial.disturbed):
        return None
    lowest = min(known, key=lambda edge: edge.load)
    # A NaN stays: what is not known of one is not known of the lowest.
    low = min((edge.low for edge in known), key=lambda low: low if low == low else -math.inf)
    high = min((edge.high for edge in known), key=lambda high: high if high == high else math.inf)
    if settings.axis == "concurrency":
        first = min((trial.load for trial in trials if trial.beyond), default=math.inf)
        last = find_load_below([each for each in trials if not each.disturbed], lambda trial: trial.beyond)
        # None in between was tried, and no line through shares that jump is to be trusted there. NaN stays.
        low, high = (last if low > last else low), (first - 1 if high < first - 1 else high)
    return msgspec.structs.replace(lowest, low=low, high=high)


def is_narrow(settings: SearchSettings, edge: EdgeFit) -> bool:
    """Whether the interval's width is at most `within`; over concurrency one whole number always is."""
    if math.isnan(edge.low) or math.isnan(edge.high):
        return False
    one = settings.axis == "concurrency" and math.floor(edge.low) == math.floor(edge.high)
    return one or edge.width <= settings.within


def find_load_below(trials: Sequence[Trial], failed: Callable[[Trial], bool]) -> float:
    """Return the highest load that lies below every load of a trial that `failed`; NaN if there is none."""
    first = min((trial.load for trial in trials if failed(trial)), default=math.inf)
    return max((trial.load for trial in trials if trial.load < first), default=math.nan)


def _choose_next_load(
    settings: SearchSettings, trials: Sequence[Trial], edge: EdgeFit | None
) -> float | SearchEnd:
    """Return the next load, below any that the client could not send, or why the search is over."""
    if not trials:
        return _round_load(settings, settings.start)
    load = _choose_load(settings, trials, edge)
    # The lowest load that the client could not send, unless it did send as much in another run.
    sent = max((trial.load for trial in trials if trial.usable), default=0.0)
    unsent = (trial.load for trial in trials if trial.disturbed and trial.load > sent)
    ceiling = min(unsent, default=math.inf)
    if isinstance(load, str) or load < ceiling:
        return load
    return _choose_load_below_client(settings, trials, ceiling)


def _choose_load(
    settings: SearchSettings, trials: Sequence[Trial], edge: EdgeFit | None
) -> float | SearchEnd:
    """Return the next load, if the client could send any, or why the search is over.

    It goes up while no run is beyond, down while none is below or no edge is known, then to near the edge.
    Inf if all runs were disturbed. "within" needs a narrow interval, and a run close below that seems to meet
    all.
    """
    below = [trial for trial in trials if not trial.beyond and not trial.disturbed]
    over = [trial for trial in trials if trial.beyond]
    if not below and not over:
        return math.inf  # the client was the limit of all
    if not over:
        return _raise_load(settings, below)
    if not below or edge is None:
        return _lower_load(settings, over)
    if is_narrow(settings, edge):
        limit = math.floor(edge.load) if settings.axis == "concurrency" else edge.load
        reach = limit * math.exp(-_CONFIRMED / edge.slope)
        if any(
            trial.seems_met and trial.load >= min(reach, limit / (1 + settings.within)) for trial in trials
        ):
            return "within"
        return _round_load(settings, edge.load * math.exp(-1 / edge.slope))
    return _choose_load_near_edge(settings, trials, edge)


def _choose_load_below_client(
    settings: SearchSettings, trials: Sequence[Trial], ceiling: float
) -> float | SearchEnd:
    """Return a load between the highest usable one and `ceiling`, which the client could not send.

    "client-limited" if there is no load in between, or not by more than `within`.
    """
    below = [trial.load for trial in trials if trial.usable and trial.load < ceiling]
    if not below:
        if ceiling <= settings.lowest:
            return "client-limited"
        return _round_load(settings, max(ceiling / STEP, settings.lowest))
    top = max(below)
    between = _round_load(settings, math.sqrt(top * ceiling))
    done = top * (1 + settings.within) >= ceiling or between in (top, ceiling)
    return "client-limited" if done else between


def _raise_load(settings: SearchSettings, below: Sequence[Trial]) -> float | SearchEnd:
    """Return a load above all measured ones: 1.5 times the highest near the edge, else 4 times.

    At the search's bound it is that again, or "everything-passes" if a run there passed.
    """
    top = max(below, key=lambda trial: trial.load)
    if top.load < settings.highest:
        near = any(
            compute_share_over(each) > _SOME * compute_allowed_share(each.objective)
            for each in top.objectives
        )
        return _round_load(settings, min(top.load * (_SMALL_STEP if near else STEP), settings.highest))
    passed = any(trial.passed for trial in below if trial.load == top.load)
    return "everything-passes" if passed else _round_load(settings, top.load)


def _lower_load(settings: SearchSettings, over: Sequence[Trial]) -> float | SearchEnd:
    """Return the lowest load in `over` ÷ 1.5 near the edge, else ÷ 4; "nothing-passes" if at the bound."""
    bottom = min(over, key=lambda trial: trial.load)
    if bottom.load <= settings.lowest:
        return "nothing-passes"
    near = bottom.usable and all(compute_share_over(each) < _MOST for each in bottom.objectives)
    return _round_load(settings, max(bottom.load / (_SMALL_STEP if near else STEP), settings.lowest))


def _choose_load_near_edge(settings: SearchSettings, trials: Sequence[Trial], edge: EdgeFit) -> float:
    """Return a load near the edge: below it if the last run was above, and the other way round.

    It keeps away from the ends of the bracket, and is an untried whole number over concurrency if there is
    one.
    """
    away = min(_AWAY / edge.slope, math.log(_SMALL_STEP))
    away = -away if trials[-1].load > edge.load else away
    load = edge.load * math.exp(away)
    low = max(trial.load for trial in trials if not trial.beyond and not trial.disturbed)
    high = min((trial.load for trial in trials if trial.beyond and trial.load > low), default=math.inf)
    if low < load and high < math.inf:
        inner = (high / low) ** _INNER
        load = min(max(load, low * inner), high / inner)
    if settings.axis == "concurrency":
        load = math.floor(load) if away < 0 else max(load, math.floor(edge.load) + 1)
        if high - low >= _BETWEEN:  # a number that was not tried
            load = min(max(load, low + 1), high - 1)
    return _round_load(settings, load)


def _choose_samples(
    settings: SearchSettings, trials: Sequence[Trial], edge: EdgeFit | None, load: float
) -> float:
    """Return how many samples the next run should have: few while no edge is known, more at a repeated load.

    Near an edge it has a share of the samples still missing for the width, at least four times as many as far
    away. Few too where shares jump and samples are independent.
    """
    few = max(
        *(_LEAST_OVER / compute_allowed_share(each) for each in settings.objectives),
        *map(_count_samples_to_pass, settings.objectives),
        _FEWEST,
    )
    if edge is None:
        again = sum(trial.load == load for trial in trials)  # that did not tell enough
        return few * min(_GROWTH**again, _MOST_TIMES)
    if edge.slope > _JUMP and edge.dispersion < _ALIKE:
        return few
    longest = max(max((each.samples for each in trial.objectives), default=0) for trial in trials)
    most = min(_GROWTH * longest, _MOST_TIMES * few)
    width = edge.width if edge.width == edge.width else math.inf
    missing = edge.samples * ((width / (_AIM * settings.within)) ** 2 - 1)
    runs = min(_SPREAD_OVER, settings.most_runs - len(trials))
    return max(min(missing / runs, most), _NEAR_TIMES * few)


def _estimate_requests_per_s(settings: SearchSettings, trials: Sequence[Trial], load: float) -> float:
    """Estimate how many requests per second end at a load, rather too few.

    That is a rate itself; a concurrency's is scaled from the nearest run, else √load ÷ the time of one alone.
    """
    if settings.axis == "rate":
        return load
    timed = [trial for trial in trials if trial.requests_per_s]
    if not timed:
        # How far one user's speed goes up with more of them is not known: as the root, in between.
        return math.sqrt(load) / settings.alone_s if settings.alone_s else load
    # Of several at one load the slowest, so that none of the next ones is too short to tell.
    nearest = min(timed, key=lambda trial: (abs(math.log(trial.load / load)), trial.requests_per_s))
    return (nearest.requests_per_s or 0.0) * min(1.0, load / nearest.load)


def _round_load(settings: SearchSettings, load: float) -> float:
    """Return a rate rounded to four digits, or a concurrency to a whole number, within the bounds."""
    few = float(f"{load:.{_DIGITS}g}") if settings.axis == "rate" else max(round(load), 1)
    return min(max(few, settings.lowest), settings.highest)


_ROUNDING = 1e-9


class SearchSettings(msgspec.Struct, frozen=True):
    """The objectives that are searched for, between which loads, how closely and at what cost.

    Loads are requests per second or, over concurrency, whole numbers of requests in flight.
    """

    axis: LoadAxis
    objectives: tuple[Objective, ...]
    start: float
    lowest: float
    highest: float
    within: float = 0.05
    budget_s: float | None = None
    most_runs: int = 12
    least_run_s: float | None = None  # of one run; None: 60 s, or ten times the P99 of E2EL if that is longer
    alone_s: float | None = None  # that one request takes, alone on the server; None: not known


class Trial(msgspec.Struct, frozen=True):
    """One run of the search; `objectives` are in the order of the settings, empty if nothing was measured.

    `took_s` is all that the run cost of the budget, `duration_s` the measured time of it.
    """

    load: float
    duration_s: float
    took_s: float
    objectives: tuple[ObjectiveEvidence, ...] = ()
    invalid: bool = False
    saturated: bool = False  # ended early: the server fell further and further behind
    disturbed: bool = False  # by the client or its machine: it shows nothing of the server
    p99_e2el_s: float | None = None
    requests_per_s: float | None = None  # that ended

    @property
    def standing(self) -> Standing:
        """The standing of all objectives together; a disturbed run shows nothing, an unusable one fails."""
        if self.disturbed:
            return Standing.NOT_SHOWN
        return join_standings(each.standing for each in self.objectives) if self.usable else Standing.FAILS

    @property
    def passed(self) -> bool:
        """Whether the run is usable and shows every objective met."""
        return self.standing is Standing.MEETS

    @property
    def short(self) -> bool:
        """Whether the run lacks only samples: no objective is above its limit, and one has no bound."""
        few = any(  # requests, for a bound of independent ones
            each.bound is None and self.count_observed(each) < _count_samples_to_pass(each.objective)
            for each in self.objectives
        )
        return self.usable and few and not any(map(is_above, self.objectives))

    @property
    def seems_met(self) -> bool:
        """Whether the run would show every objective met if its requests were independent.

        Near the limit they are not, and a run that shows it by itself would take hours. The limit follows
        from all runs together, and this leads the search.
        """
        return self.usable and all(each.allows(self.count_observed(each)) for each in self.objectives)

    def count_observed(self, evidence: ObjectiveEvidence) -> float:
        """Count an objective's samples, of a latency within answers as many as there are requests."""
        requests = (self.requests_per_s or 0.0) * self.duration_s
        return min(evidence.samples, round(requests) or evidence.samples)

    @property
    def usable(self) -> bool:
        """Whether the run shows the server at this load: not invalid, saturated or disturbed."""
        return bool(self.objectives) and not (self.invalid or self.saturated or self.disturbed)

    @property
    def beyond(self) -> bool:
        """Whether this run alone shows its load to be above what meets the objectives."""
        if self.disturbed:
            return False
        return not self.usable or any(map(is_above, self.objectives))


def is_above(evidence: ObjectiveEvidence) -> bool:
    """Whether more samples are above the limit than the percentile allows, or there is no sample."""
    return not evidence.samples or compute_share_over(evidence) > compute_allowed_share(
        evidence.objective
    ) * (1 + _ROUNDING)


def compute_share_over(evidence: ObjectiveEvidence) -> float:
    """Compute the share of samples above the limit, without the run's first of several parts; 0 if empty."""
    parts = drop_first_part(list_parts(evidence))
    samples, over = (sum(part[column] for part in parts) for column in (0, 1))
    return over / max(samples, 1)


def list_parts(evidence: ObjectiveEvidence) -> tuple[tuple[int, int], ...]:
    """List (samples, those above the limit) of successive parts of a run; of one part if it has no others."""
    return evidence.batches or ((evidence.samples, evidence.over),)


def compute_allowed_share(objective: Objective) -> float:
    """Compute the share of samples that an objective allows beyond its limit: 0.1 of P90, of a floor P10."""
    return round(1 - objective.tail / 100, 12)  # 0.1 at P90, as it is written
