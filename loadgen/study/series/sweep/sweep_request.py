"""Sweep request: what a sweep is to measure, checked as far as can be without starting anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.features.data import data_files
from loadgen.plan import profile
from loadgen.plan.profile import Profile
from loadgen.plan.server_settings import ServerSettings
from loadgen.run.asked_settings import settings
from loadgen.run.bench import check
from loadgen.run.options import Options
from loadgen.study.series.points.point_servers import overlaid
from loadgen.study.series.series_options import digest_options, refuse_flags
from loadgen.study.series.sweep import grid
from loadgen.study.series.sweep.grid import Build, GridPoint, Variation
from loadgen.verdict import requested_metrics


class SweepRequest(msgspec.Struct, frozen=True):
    """A sweep as its command or its caller has it."""

    name: str  # the workload's, without what is varied
    options: Options
    variation: Variation
    points: tuple[GridPoint, ...]
    asked: ServerSettings  # of a server that is started, without what is varied

    @property
    def fixed(self) -> str:
        """A digest of all that changes a figure: what the points measure, files included, and with what."""
        workloads = [point.workload for point in self.points]
        measured = [workload.model_dump(mode="json", exclude={"name"}) for workload in workloads]
        return digest_options(self.options, measured, data_files.digest(workloads))


def by_flags(options: Options) -> Build:
    """What makes the profile of the command line with these keys over it."""
    names = options.profiles

    def build(keys: Mapping[str, Any]) -> Profile:
        return profile.load(names[0], keys, flags=True) if names else profile.build(keys)

    return build


def made(options: Options, variation: Variation, build: Build) -> SweepRequest:
    """The sweep of these options; raises UsageError for what cannot be done, before anything is started.

    `build` makes the workload with keys over it: those of the options, and what is varied.
    """
    _refuse(options)
    options = replace(options, reset_cache=True, stop_when_saturated=True)
    grid.check(variation, options.overrides, options.launching.wanted)
    points = grid.points(variation, options.overrides, build)
    for point in points:
        requested_metrics.check_profile(point.workload)
        data_files.check(point.workload)
    first = points[0]
    name = build({**options.overrides, **first.settings}).name or "bench"
    if first.workload.ladder is not None:
        raise UsageError(f"{name} is a ladder of input lengths: run it with `loadgen ladder`")
    check(options)
    asked = settings(options, [point.workload for point in points])
    if options.launching.wanted:
        _check_servers(options, asked, points)
    return SweepRequest(name, options, variation, points, asked)


def _check_servers(options: Options, asked: ServerSettings, points: tuple[GridPoint, ...]) -> None:
    """Raise UsageError where a server with a point's flags cannot be started."""
    from loadgen.run.launched_server import dry_run  # few sweeps start servers

    for serve in {tuple(point.serve.items()): point.serve for point in points}.values():
        dry_run(options, overlaid(asked, serve))


def _refuse(options: Options) -> None:
    """Flags of `bench` that a sweep would not heed."""
    if len(options.profiles) > 1:
        raise UsageError("--profile: one workload is swept at a time")
    saves = options.saves, "the run directories have every figure"
    refuse_flags(options, "a sweep", {"--save-result": saves})
