"""Limit request: a search as it is asked for, and what is refused before anything is started."""

from __future__ import annotations

import msgspec

from loadgen.base.errors import UsageError
from loadgen.plan.profile import Profile
from loadgen.report.sweep_record import LoadAxis
from loadgen.run.options import Options
from loadgen.study.series.series_options import refuse_flags
from loadgen.verdict import requested_metrics

BUDGET_S = 1800.0
FLAGS = ("--start", "--from", "--to")
KEYS = ("start =", "lowest =", "highest =")  # in a campaign's [limit], and from Python


class LimitRequest(msgspec.Struct, frozen=True):
    """A search as it is asked for; loads and seconds that are None follow from the server and the profile."""

    slo: str = ""
    over: LoadAxis | None = None
    within: float = 0.05
    budget_s: float = BUDGET_S
    most_runs: int = 12
    least_run_s: float | None = None
    start: float | None = None
    lowest: float | None = None
    highest: float | None = None
    resume: str | None = None
    names: tuple[str, str, str] = FLAGS  # of start, lowest and highest, where they were written


class SearchLoads(msgspec.Struct, frozen=True):
    """The first load of a search and its bounds; None: they follow from the server."""

    start: float | None = None
    lowest: float | None = None
    highest: float | None = None

    def check(self, workload: Profile, axis: LoadAxis, slo: str, names: tuple[str, str, str]) -> None:
        """Raises UsageError of a workload that no limit can be searched for, and of loads that cannot be.

        `slo` are the objectives of the search; `names` are those of start, lowest and highest where they
        were written.
        """
        check_load(workload)
        requested_metrics.check_profile(workload.model_copy(update={"slo": slo}))
        start, lowest, highest = names
        if axis == "concurrency":
            for name, load in zip(names, (self.start, self.lowest, self.highest), strict=True):
                if load is not None and load != round(load):
                    raise UsageError(f"{name} {load:g}: requests in flight are whole numbers")
        if self.lowest and self.highest and self.lowest >= self.highest:
            raise UsageError(f"{lowest} {self.lowest:g} is not below {highest} {self.highest:g}")
        if self.lowest and self.start and self.start < self.lowest:
            raise UsageError(f"{start} {self.start:g} lies below {lowest} {self.lowest:g}")
        if self.highest and self.start and self.start > self.highest:
            raise UsageError(f"{start} {self.start:g} lies above {highest} {self.highest:g}")


def axis_of(workload: Profile, over: LoadAxis | None) -> LoadAxis:
    """What is varied: as it was asked, else what the workload limits."""
    return over or ("concurrency" if workload.max_concurrency and not workload.open_loop else "rate")


def check_load(workload: Profile) -> None:
    """Raises UsageError of a workload whose load is not one rate or one concurrency."""
    if workload.ladder is not None:
        raise UsageError("a ladder has a load of one request at a time: `loadgen ladder` measures it")
    if workload.shaped or workload.timed:
        raise UsageError(
            "a search varies one rate or one concurrency: leave out the schedule, ramp, bursts or times of "
            "the workload"
        )


def check_options(options: Options) -> None:
    """Raises UsageError for flags of `loadgen bench` that a search would not heed."""
    shortest = "--min-duration is the least time of a run"
    varied = "the search varies the load: --start, --from and --to bound it, --over names what is varied"
    refuse_flags(
        options,
        "a search",
        {
            "--repeat": (options.repeat > 1, "the search repeats runs itself"),
            "--duration": ("duration" in options.overrides, shortest),
            "--num-prompts": ("num_prompts" in options.overrides, shortest),
            "--max-duration": (options.max_duration_s is not None, shortest),
            "--request-rate": ("request_rate" in options.overrides, varied),
            "--max-concurrency": ("max_concurrency" in options.overrides, varied),
            "--save-result": (options.saves, "limit.json and the run directories have every figure"),
            "--strict": (options.strict, "an INVALID run never passes"),
            "--dry-run": (options.launching.dry_run, "`loadgen bench --dry-run` shows the server's command"),
        },
    )
