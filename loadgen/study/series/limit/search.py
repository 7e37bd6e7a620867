"""Search: which load is run next and for how long, from the runs so far alone; without I/O or state.

Loads go up or down by steps until one lies above the edge and one below it; from then on each run is at the
estimated edge, in turn a little below and above it, where it tells most, and longer the more is still to be
learned. Where shares jump from 0 to 1 this is bisection on a log scale.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import cached_property

import msgspec

from loadgen.base.text import format_count
from loadgen.figures.figure_table import SELECTABLE
from loadgen.figures.objectives import Objective, ObjectiveEvidence, Standing, join_standings
from loadgen.study.limit_record import LimitEstimate, SearchEnd
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


class Search(msgspec.Struct, frozen=True, dict=True):
    """A search so far: the objectives, between which loads, how closely, at what cost, and its runs.

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
    trials: tuple[Trial, ...] = ()  # its runs, in order

    def choose_next_run(self) -> NextRun | SearchEnd:
        """Return the next run, or why the search is over.

        The last run is repeated if it showed nothing and the budget allows it, before another load is chosen.
        """
        load, more = self._next_load, len(self.trials) < self.most_runs
        if load != "within" and more and (again := self._repeat_run()) and again.duration_s <= self._left_s:
            return again
        if isinstance(load, str):
            return load
        if not more:
            return "most-runs"
        if self.find_least_run(load)[0] > self._left_s:
            return "budget"
        return NextRun(load, _round_up_s(self._choose_run_length(load)[0]))

    def estimate_first_run(self) -> tuple[float, str]:
        """Return the seconds of a search's first run, and what makes it so long, in words."""
        return self._choose_run_length(self._round_load(self.start))

    def estimate_needed_s(self) -> float | None:
        """Return the least seconds of the budget that the next run would take; None if there is none."""
        if isinstance(self._next_load, str):
            return None
        return self.find_least_run(self._next_load)[0] + self._around_s

    def find_least_run(self, load: float) -> tuple[float, str]:
        """Return the seconds of the shortest run at a load, and what makes it so long, in words.

        It has enough requests to pass, and lasts `least_run_s`, else 60 s and ten times the P99 of E2EL of
        the run at the nearest load, or of one request alone.
        """
        count = _add_spare(max(map(_count_samples_to_pass, self.objectives)))
        reasons = {format_count(count, "request"): count / self._estimate_requests_per_s(load)}
        if self.least_run_s is not None:
            reasons["--min-duration"] = self.least_run_s
        else:
            slowest_s = self.alone_s or 0.0
            if timed := [trial for trial in self.trials if trial.p99_e2el_s is not None]:
                slowest_s = min(timed, key=lambda trial: abs(math.log(trial.load / load))).p99_e2el_s or 0.0
            reasons["the shortest run"] = _LEAST_RUN_S
            reasons[f"{_E2EL_TIMES:g} times E2EL"] = _E2EL_TIMES * slowest_s
        why = max(reasons, key=lambda reason: reasons[reason])
        return reasons[why], why

    @cached_property
    def edges(self) -> list[EdgeFit | None]:
        """The edge of each objective; None where no run is above it, or none below.

        Disturbed and empty runs are left out; an unusable one counts as 1,000 samples, all above the limit.
        """
        edges = []
        for at, objective in enumerate(self.objectives):
            points = []
            for trial in self._counted:
                if not trial.usable:
                    points.append(EdgePoint(trial.load, ((_NO_SHARE, _NO_SHARE),)))
                elif (evidence := trial.objectives[at]).samples:
                    points.append(EdgePoint(trial.load, list_parts(evidence), evidence.dispersion))
            is_s_shaped = SELECTABLE[objective.metric].phase == "token"
            edges.append(fit_edge(points, compute_allowed_share(objective), is_s_shaped))
        return edges

    @cached_property
    def edge(self) -> EdgeFit | None:
        """The lowest edge of all objectives, its interval widened to the lowest ends of theirs.

        Over concurrency it reaches at least from the load below all that failed to the one below the first
        that did. None without an edge, or if every undisturbed run is beyond it.
        """
        known = [edge for edge in self.edges if edge is not None]
        if not known or len(self._over) == len(self._counted):
            return None
        lowest = min(known, key=lambda edge: edge.load)
        # A NaN stays: what is not known of one is not known of the lowest.
        low = min((edge.low for edge in known), key=lambda low: low if low == low else -math.inf)
        high = min((edge.high for edge in known), key=lambda high: high if high == high else math.inf)
        if self.axis == "concurrency":
            first = min((trial.load for trial in self._over), default=math.inf)
            last = self._find_load_below(lambda trial: trial.beyond)
            # No load between them was tried, and no line through shares that jump is to be trusted there.
            low, high = (last if low > last else low), (first - 1 if high < first - 1 else high)
        return msgspec.structs.replace(lowest, low=low, high=high)

    @property
    def is_narrow(self) -> bool:
        """Whether the edge's width is at most `within`; over concurrency one whole number always is."""
        if self.edge is None or math.isnan(self.edge.low) or math.isnan(self.edge.high):
            return False
        one = self.axis == "concurrency" and math.floor(self.edge.low) == math.floor(self.edge.high)
        return one or self.edge.width <= self.within

    @cached_property
    def limit(self) -> LimitEstimate | None:
        """The limit and its interval by the lowest edge; concurrencies are rounded down.

        Without a usable edge the value is None, and the interval reaches from the highest passing load to the
        lowest failing one. A side that is not known is None; None if neither is.
        """
        edge = self.edge
        # If a server ended or failed its requests, no share says how far above the edge that was.
        if edge is not None and (self.is_narrow or any(not trial.invalid for trial in self._over)):
            low, high = map(self._round_known, self._find_ends(edge))
            return LimitEstimate(value=self._round_known(edge.load), low=low, high=high)
        passing, failing = self.highest_passing, self.lowest_failing
        return None if passing is failing is None else LimitEstimate(value=None, low=passing, high=failing)

    @cached_property
    def highest_passing(self) -> float | None:
        """The highest load, up to the upper end of the edge, at which a run passed; None without one."""
        most = math.inf if self.edge is None or math.isnan(self.edge.high) else self.edge.high
        passed = (trial.load for trial in self.trials if trial.passed and trial.load <= most)
        return max(passed, default=None)

    @property
    def lowest_failing(self) -> float | None:
        """The lowest load above the highest passing one at which a run failed; None without one."""
        failed = (trial.load for trial in self.trials if trial.standing is Standing.FAILS)
        return min((load for load in failed if load > (self.highest_passing or 0.0)), default=None)

    def find_binding(self) -> int | None:
        """Return the index of the objective with the lowest edge among those that a run exceeded.

        Of a tie, or without an edge, it is the one that exceeds its limit most, in the run of the highest
        load or of the lowest one above the limit. None if no run exceeded any.
        """
        # A server that ended shows of no objective that it is the limit.
        telling = [trial for trial in self.trials if trial.usable or (trial.saturated and not trial.invalid)]
        shown = {at for trial in telling for at, each in enumerate(trial.objectives) if is_above(each)}
        known = {at: edge.load for at, edge in enumerate(self.edges) if edge is not None and at in shown}
        if not known:
            failing = [trial for trial in telling if trial.beyond and trial.objectives]
            nearest = min(failing, key=lambda trial: trial.load, default=None)
            return None if nearest is None else _find_most_over(nearest)
        ties = [at for at, load in known.items() if load <= min(known.values()) * (1 + 1e-6)]
        if len(ties) == 1:
            return ties[0]
        return _find_most_over(max(telling, key=lambda trial: trial.load))

    @cached_property
    def _counted(self) -> list[Trial]:
        return [trial for trial in self.trials if not trial.disturbed]

    @cached_property
    def _over(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.beyond]

    @cached_property
    def _below(self) -> list[Trial]:
        return [trial for trial in self._counted if not trial.beyond]

    @property
    def _left_s(self) -> float:
        """The budget's seconds that the next run may measure, warm-up deducted; inf without a budget."""
        if self.budget_s is None:
            return math.inf
        return self.budget_s - math.fsum(trial.took_s for trial in self.trials) - self._around_s

    @property
    def _around_s(self) -> float:
        """The most seconds that a run took beyond its duration, as for warm-up; 0 without runs."""
        return max((trial.took_s - trial.duration_s for trial in self.trials), default=0.0)

    @cached_property
    def _next_load(self) -> float | SearchEnd:
        """The next load, below any that the client could not send, or why the search is over."""
        if not self.trials:
            return self._round_load(self.start)
        load = self._choose_load()
        # The lowest load that the client could not send, unless it did send as much in another run.
        sent = max((trial.load for trial in self.trials if trial.usable), default=0.0)
        unsent = (trial.load for trial in self.trials if trial.disturbed and trial.load > sent)
        ceiling = min(unsent, default=math.inf)
        if isinstance(load, str) or load < ceiling:
            return load
        return self._choose_load_below_client(ceiling)

    def _choose_load(self) -> float | SearchEnd:
        """Return the next load, if the client could send any, or why the search is over.

        It goes up while no run is beyond, down while none is below or no edge is known, then to near the
        edge. Inf if all runs were disturbed. "within" needs a narrow interval, and a run close below that
        seems to meet all.
        """
        if not self._counted:
            return math.inf  # the client was the limit of all
        if not self._over:
            return self._raise_load()
        if not self._below or self.edge is None:
            return self._lower_load()
        if not self.is_narrow:
            return self._choose_load_near_edge(self.edge)
        limit = math.floor(self.edge.load) if self.axis == "concurrency" else self.edge.load
        reach = min(limit * math.exp(-_CONFIRMED / self.edge.slope), limit / (1 + self.within))
        if any(trial.seems_met and trial.load >= reach for trial in self.trials):
            return "within"
        return self._round_load(self.edge.load * math.exp(-1 / self.edge.slope))

    def _choose_load_below_client(self, ceiling: float) -> float | SearchEnd:
        """Return a load between the highest usable one and `ceiling`, which the client could not send.

        "client-limited" if there is no load in between, or not by more than `within`.
        """
        below = [trial.load for trial in self.trials if trial.usable and trial.load < ceiling]
        if not below:
            if ceiling <= self.lowest:
                return "client-limited"
            return self._round_load(max(ceiling / STEP, self.lowest))
        top = max(below)
        between = self._round_load(math.sqrt(top * ceiling))
        done = top * (1 + self.within) >= ceiling or between in (top, ceiling)
        return "client-limited" if done else between

    def _raise_load(self) -> float | SearchEnd:
        """Return a load above all measured ones: 1.5 times the highest near the edge, else 4 times.

        At the search's bound it is that again, or "everything-passes" if a run there passed.
        """
        top = max(self._below, key=lambda trial: trial.load)
        if top.load < self.highest:
            near = any(
                compute_share_over(each) > _SOME * compute_allowed_share(each.objective)
                for each in top.objectives
            )
            return self._round_load(min(top.load * (_SMALL_STEP if near else STEP), self.highest))
        passed = any(trial.passed for trial in self._below if trial.load == top.load)
        return "everything-passes" if passed else self._round_load(top.load)

    def _lower_load(self) -> float | SearchEnd:
        """Return the lowest load beyond the edge ÷ 1.5 near it, else ÷ 4; "nothing-passes" at the bound."""
        bottom = min(self._over, key=lambda trial: trial.load)
        if bottom.load <= self.lowest:
            return "nothing-passes"
        near = bottom.usable and all(compute_share_over(each) < _MOST for each in bottom.objectives)
        return self._round_load(max(bottom.load / (_SMALL_STEP if near else STEP), self.lowest))

    def _choose_load_near_edge(self, edge: EdgeFit) -> float:
        """Return a load near the edge: below it if the last run was above, and the other way round.

        It keeps away from the ends of the bracket, and is an untried whole number over concurrency if there
        is one.
        """
        away = min(_AWAY / edge.slope, math.log(_SMALL_STEP))
        away = -away if self.trials[-1].load > edge.load else away
        load = edge.load * math.exp(away)
        low = max(trial.load for trial in self._below)
        high = min((trial.load for trial in self._over if trial.load > low), default=math.inf)
        if low < load and high < math.inf:
            inner = (high / low) ** _INNER
            load = min(max(load, low * inner), high / inner)
        if self.axis == "concurrency":
            load = math.floor(load) if away < 0 else max(load, math.floor(edge.load) + 1)
            if high - low >= _BETWEEN:  # a number that was not tried
                load = min(max(load, low + 1), high - 1)
        return self._round_load(load)

    def _repeat_run(self) -> NextRun | None:
        """Return the last run again if it was disturbed, or longer if only samples are missing; else None.

        None too if the load has had two such runs, or disturbed runs were repeated three times in all: what
        disturbs them does not go away, or the client is the limit.
        """
        if not self.trials:
            return None
        nothing = Counter(trial.load for trial in self.trials if trial.disturbed or trial.short)
        last = self.trials[-1]
        spent = last.disturbed and sum(tries - 1 for tries in nothing.values()) >= _MOST_AGAIN
        if not (last.disturbed or last.short) or nothing[last.load] >= _TRIES or spent:
            return None
        least_s, _ = self.find_least_run(last.load)
        if last.disturbed:
            again_s = _round_up_s(max(least_s, last.duration_s))
            return NextRun(last.load, again_s, "again: it was disturbed")
        times = 1.0  # as long, until each objective has samples for a bound
        for each in last.objectives:
            observed = last.count_observed(each)
            if each.bound is None and observed > 0:
                times = max(times, _add_spare(_count_samples_to_pass(each.objective)) / observed)
        enough_s = max(least_s, last.duration_s * times)
        return NextRun(last.load, _round_up_s(enough_s), "longer: its samples were too few")

    def _choose_run_length(self, load: float) -> tuple[float, str]:
        """Return the seconds of a run at a load, and what makes it so long, in words.

        They suffice for its samples within its share of the budget, but are never less than the shortest
        run's.
        """
        samples, runs = self._choose_samples(load), self.most_runs - len(self.trials)
        wanted_s = samples / self._estimate_requests_per_s(load)
        share_s = self._left_s / (runs if self.edge is None else min(_SPREAD_OVER, runs))
        of_samples = (
            format_count(math.ceil(samples), "request") if wanted_s <= share_s else "a share of the budget"
        )
        return max(self.find_least_run(load), (min(wanted_s, share_s), of_samples))

    def _choose_samples(self, load: float) -> float:
        """Return how many samples the next run should have: few while no edge is known, more at a repeat.

        Near an edge it has a share of the samples still missing for the width, at least four times as many as
        far away. Few too where shares jump and samples are independent.
        """
        few = max(
            *(_LEAST_OVER / compute_allowed_share(each) for each in self.objectives),
            *map(_count_samples_to_pass, self.objectives),
            _FEWEST,
        )
        if (edge := self.edge) is None:
            again = sum(trial.load == load for trial in self.trials)  # that did not tell enough
            return few * min(_GROWTH**again, _MOST_TIMES)
        if edge.slope > _JUMP and edge.dispersion < _ALIKE:
            return few
        longest = max(max((each.samples for each in trial.objectives), default=0) for trial in self.trials)
        most = min(_GROWTH * longest, _MOST_TIMES * few)
        width = edge.width if edge.width == edge.width else math.inf
        missing = edge.samples * ((width / (_AIM * self.within)) ** 2 - 1)
        runs = min(_SPREAD_OVER, self.most_runs - len(self.trials))
        return max(min(missing / runs, most), _NEAR_TIMES * few)

    def _estimate_requests_per_s(self, load: float) -> float:
        """Estimate how many requests per second end at a load, rather too few.

        That is a rate itself; a concurrency's is scaled from the nearest run, else √load ÷ the time of one
        alone.
        """
        if self.axis == "rate":
            return load
        timed = [trial for trial in self.trials if trial.requests_per_s]
        if not timed:
            # The gain in speed from more users than one is unknown: the root is in between.
            return math.sqrt(load) / self.alone_s if self.alone_s else load
        # The slowest of several at one load counts, so that none of the next ones is too short to tell.
        nearest = min(timed, key=lambda trial: (abs(math.log(trial.load / load)), trial.requests_per_s))
        return (nearest.requests_per_s or 0.0) * min(1.0, load / nearest.load)

    def _find_ends(self, edge: EdgeFit) -> tuple[float, float]:
        """Return the edge's interval; over concurrency single runs give an end that is NaN in the edge.

        The lower one is the load up to which all runs passed, else none was above the limit; the upper is one
        below the load from which all were. An end stays NaN if no run gives it.
        """
        low, high = edge.low, edge.high
        if self.axis == "concurrency":
            if math.isnan(low):
                low = self._find_load_below(lambda trial: not trial.passed)
            if math.isnan(low):
                low = self._find_load_below(lambda trial: trial.beyond)
            if math.isnan(high):
                last = max(trial.load for trial in self._below)
                high = min((trial.load - 1 for trial in self._over if trial.load > last), default=math.nan)
        return min(low, edge.load), max(high, edge.load)  # NaN stays

    def _find_load_below(self, failed: Callable[[Trial], bool]) -> float:
        """Return the highest load that lies below every load of a counted run that `failed`; else NaN."""
        first = min((trial.load for trial in self._counted if failed(trial)), default=math.inf)
        return max((trial.load for trial in self._counted if trial.load < first), default=math.nan)

    def _round_load(self, load: float) -> float:
        """Return a rate rounded to four digits, or a concurrency to a whole number, within the bounds."""
        few = float(f"{load:.{_DIGITS}g}") if self.axis == "rate" else max(round(load), 1)
        return min(max(few, self.lowest), self.highest)

    def _round_known(self, load: float) -> float | None:
        """Return a load, of concurrency rounded down; None if it is NaN, or below one request."""
        if math.isnan(load):
            return None
        if self.axis == "rate":
            return load
        return float(math.floor(load)) if load >= 1 else None  # below one request in flight there is no load


def _round_up_s(seconds: float) -> float:
    return math.ceil(_ROUNDED_PER_S * seconds) / _ROUNDED_PER_S


def _count_samples_to_pass(objective: Objective) -> int:
    """Count the fewest samples, none of them above the limit, that show an objective met at 99 %."""
    return math.ceil(math.log(0.01) / math.log(1 - compute_allowed_share(objective)))


def _add_spare(needed: int) -> int:
    """Return a count plus three of its Poisson standard deviations, so that it is reached if few arrive."""
    return math.ceil(needed + _SPARE * math.sqrt(needed))


def _find_most_over(trial: Trial) -> int:
    """Return the index of the objective that a trial exceeds by most, as a multiple of its limit."""
    excess = [each.objective.measure_excess(each.value) for each in trial.objectives]
    return max(range(len(excess)), key=lambda at: -math.inf if math.isnan(excess[at]) else excess[at])


_ROUNDING = 1e-9


class Trial(msgspec.Struct, frozen=True):
    """One run of the search; `objectives` are in the order of the settings, empty if nothing was measured.

    `took_s` is all that the run cost of the budget, `duration_s` the measured time of it.
    """

    load: float
    duration_s: float
    took_s: float
    objectives: tuple[ObjectiveEvidence, ...] = ()
    shown: tuple[Standing, ...] = ()  # of each, as the run's record has it; (): by the evidence itself
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
        shown = self.shown or [each.standing for each in self.objectives]
        return join_standings(shown) if self.usable else Standing.FAILS

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
