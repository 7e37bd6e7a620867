"""Arms: what is compared, each a checkpoint on a server, and the order in which their cells are measured.

A campaign's file is a program: it names commands to run, and hosts to send to. `Trust` is what it may do that
its reader did not write: start programs, read the environment. docs/security.md argues what is allowed.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path as expanded
from loadgen.base.parsing import suggest_name
from loadgen.base.secrecy import hide_argument_secrets
from loadgen.base.structs import replace
from loadgen.base.urls import is_this_machine, read_host
from loadgen.facts.run_facts import ATTACHED, Cell
from loadgen.figures import objectives
from loadgen.plan import profile
from loadgen.plan.profile import Profile
from loadgen.run.attach import collect_settings
from loadgen.run.command import bench
from loadgen.run.command.credentials import DEFAULT_VARIABLE, NO_KEY, read_api_key
from loadgen.run.command.options import Options, bench_parser, parse
from loadgen.run.launched_server import dry_run
from loadgen.settings.validation import ServerSettings
from loadgen.study.limit_record import LimitTable
from loadgen.study.series.campaign import campaign_file
from loadgen.study.series.campaign.campaign_file import CampaignFile, CampaignOptions, CheckpointTable
from loadgen.study.series.campaign.steps import Arm
from loadgen.study.series.series_store import SeriesStore
from loadgen.study.series.time_estimate import Pace, TimedStep, TimeLeft


class Trust(msgspec.Struct, frozen=True):
    """Trust is what the command line allows; a campaign that ships with this tool is allowed everything."""

    launch: bool = False
    variables: tuple[str, ...] = ()
    key_env: str | None = None
    key_file: str | None = None
    shipped: bool = False

    def apply_to(self, path: Path) -> Trust:
        """Return this trust for a campaign's file: `shipped` is set if the file ships with loadgen."""
        directory = profile.find_shipped().resolve()
        return replace(self, shipped=Path(os.path.realpath(path)).is_relative_to(directory))

    @property
    def may_start(self) -> bool:
        """Whether servers may be started."""
        return self.launch or self.shipped

    def may_read(self, variable: str) -> bool:
        """Whether the file may read a variable of the environment."""
        return self.shipped or variable in self.variables

    def may_get_key(self, options: Options) -> bool:
        """Whether an arm's server gets the environment's key: the file is shipped, or all URLs are local."""
        return self.shipped or all(map(is_this_machine, options.urls))


def show_program(options: Options, settings: ServerSettings, asks: bool) -> str:
    """Return the command line that would start an arm's server, or why it cannot be started here.

    With `asks` the interpreter that it names is run to learn what is installed.
    """
    try:
        return dry_run(options, settings, asks)
    except UsageError as error:
        return f"cannot be started here: {error}"


_NONE = Trust()


def render_command(arm: Arm, repeats: int, seed: int | None, limit: LimitTable | None = None) -> str:
    """Return the command that would measure an arm's cells, secrets hidden: `bench`, or if given, `limit`."""
    words = campaign_file.make_arguments(arm.flags, bench_parser())
    words += ["--profile", ",".join(arm.places[workload.name] for workload in arm.profiles)]
    words += ["--fingerprint"] if arm.options.fingerprint else []
    words += ["--repeat", str(repeats)] if repeats > 1 and limit is None else []
    words += ["--seed", str(seed)] if seed is not None else []
    words += [] if limit is None else limit.words
    return shlex.join(["loadgen", "bench" if limit is None else "limit", *hide_argument_secrets(words)])


def make_arms(file: CampaignFile, path: Path, trust: Trust = _NONE) -> tuple[Arm, ...]:
    """Make the arms in the file's order, reading only variables that `trust` allows; raises UsageError."""
    arms = tuple(
        arm for row in file.checkpoints for arm in _make_arms_of(row, file, path, trust.apply_to(path))
    )
    places: dict[str, str] = {}
    for arm in arms:
        for name, path_of in arm.places.items():
            if places.setdefault(name, path_of) != path_of:
                raise UsageError(f"{path}: two profiles have the name {name}: {places[name]} and {path_of}")
    known, wanted = [*(row.name for row in file.checkpoints), *(arm.name for arm in arms)], file.baseline
    if wanted and wanted not in known:
        raise UsageError(f"{path}: baseline = {wanted!r}: no such checkpoint{suggest_name(wanted, known)}")
    for key, table in file.steps.items():
        try:
            table.check(arms)
        except UsageError as error:
            raise UsageError(f"{path}: [{key}]: {error}") from None
    return arms


def _make_arms_of(row: CheckpointTable, file: CampaignFile, path: Path, trust: Trust) -> Iterator[Arm]:
    """Yield a checkpoint's arm on each of its servers, with the key `trust` allows; raises UsageError."""
    servers = file.servers if row.servers is None else row.servers
    for server in servers or ("",):
        origin = f"{path}: checkpoint {row.name!r}" + (f" on {server!r}" if server else "")
        flags = campaign_file.overlay_flags(file.servers.get(server, {}), row.model_extra or {})
        if file.hardware is not None:
            flags.setdefault("hardware", file.hardware)
        flags, missing, barred = campaign_file.fill_variables(flags, trust.may_read)
        try:
            arm = _make_arm(row, file, path, server, flags)
        except UsageError as error:
            raise UsageError(f"{origin}: {error}") from None
        options = arm.options
        if trust.key_env or trust.key_file:  # the command line's key
            options = replace(options, api_key_env=trust.key_env, api_key_file=trust.key_file)
        elif not trust.may_get_key(options):
            options = replace(options, api_key_env=NO_KEY)
        yield replace(
            arm,
            options=options,
            missing=tuple(sorted(missing)),
            barred=tuple(sorted(barred)),
        )


def _make_arm(
    row: CheckpointTable, file: CampaignFile, path: Path, server: str, flags: dict[str, Any]
) -> Arm:
    """Make the arm from its flags, with profiles loaded and checked, but no key; raises UsageError."""
    options = parse(campaign_file.make_arguments(flags, bench_parser()))
    options = replace(options, fingerprint=file.fingerprint)
    bench.check(options)
    # A relative path begins at the campaign's own file.
    places = [
        str(path.parent / expanded(name)) if name.endswith(".toml") or "/" in name else name
        for name in (file.profiles if row.profiles is None else row.profiles)
    ]
    profiles = tuple(profile.load(place, options.overrides) for place in places)
    for workload in profiles:
        objectives.check_workload(workload)
        if file.limit is not None:
            try:
                file.limit.check(workload)
            except UsageError as error:
                raise UsageError(f"[limit], profile {workload.name}: {error}") from None
    server_settings = collect_settings(options, profiles)
    profile_names = [workload.name for workload in profiles]
    if twice := next((name for name in profile_names if profile_names.count(name) > 1), None):
        raise UsageError(f"profile {twice} is listed twice: set `repeats` to run it several times")
    launch = options.launching
    if launch.wanted and launch.command is None and options.model is None:
        raise UsageError("no model: give a directory, or a name on the Hugging Face hub")
    located = dict(zip(profile_names, places, strict=True))
    options = replace(options, probe_memory=True)
    return Arm(row.name, server or name_server(options), flags, options, profiles, located, server_settings)


def name_server(options: Options) -> str:
    """Name a server that the file does not name: its engine if launched, else "attached" or "embedded"."""
    launch = options.launching
    return launch.name if launch.wanted else "attached" if options.base_url else "embedded"


def check_allowed(trust: Trust, path: Path, arms: Sequence[Arm]) -> None:
    """Raise UsageError if the file reads variables, or else starts programs, that `trust` does not allow."""
    if barred := sorted({name for arm in arms for name in arm.barred}):
        allowing = " ".join(f"--allow-env {name}" for name in barred)
        raise UsageError(
            f"{path} reads {', '.join(barred)} from the environment, and may send it to the servers that "
            f"it names: read the file, and allow it with {allowing}"
        )
    starting = [arm for arm in arms if arm.options.launching.wanted]
    if starting and not trust.may_start:
        lines = "".join(
            f"\n  {arm.name}: {show_program(arm.options, arm.settings, asks=False)}" for arm in starting
        )
        raise UsageError(
            f"{path} would run programs on this machine, as you; read them, and allow it with "
            f"--allow-launch:{lines}"
        )


def list_unsent_keys(trust: Trust, arms: Sequence[Arm]) -> list[str]:
    """List a message for each host that the environment's API key is not sent to, since the file names it.

    Empty if the command line names a key, or the environment has none.
    """
    if trust.key_env or trust.key_file or not read_api_key(None, None):
        return []
    hosts = {
        read_host(url): None for arm in arms if not trust.may_get_key(arm.options) for url in arm.options.urls
    }
    return [
        f"the key in {DEFAULT_VARIABLE} is not sent to {host}, which the file names: --api-key-env "
        f"{DEFAULT_VARIABLE} sends it"
        for host in filter(None, hosts)
    ]


ONCE = "once"
_LONGEST = 200  # bytes of an id: it is the name of a directory


class Planned(TimedStep, frozen=True, kw_only=True):
    """A cell of a campaign, or a point of a sweep, to be measured."""

    id: str  # its name in the store
    label: str  # in lines on how far the series is
    number: int  # of its prompts: steps of one number are sent the same
    cell: Cell | None = None  # of a campaign


def plan_cell(cell: Cell, workload: Profile, options: Options) -> Planned:
    """Plan a cell of a campaign, with an id that is valid as a file name: r0-Qwen3-8B-FP8-vllm-high-load.

    Its time is estimated by its repeats, else by the same profile on other arms.
    """
    name = re.sub(r"[^\w.]+", "-", f"r{cell.repeat}-{cell.checkpoint}-{cell.server}-{cell.profile}")
    label = f"r{cell.repeat} {cell.arm}, {cell.profile}"
    setting = (cell.arm, cell.profile)
    return Planned(
        workload, options, setting, cell.profile, id=name, label=label, number=cell.repeat, cell=cell
    )


class Start(msgspec.Struct, frozen=True):
    """One start of one arm's server, and what is measured on it, in this order."""

    arm: Arm
    name: str
    planned: tuple[Planned, ...]


def plan_starts(campaign: CampaignOptions, arms: Sequence[Arm]) -> tuple[Start, ...]:
    """Plan the starts in order; raises UsageError where two cells would have one id, or one is too long.

    Each repeat starts every arm's server again, and the arms' order is reversed from one repeat to the next
    (ABC, CBA, ABC, …), so that what drifts steadily falls on all of them alike; the profiles' order on a
    start turns with it. With `starts = "once"` a server is started once for all repeats. The start of a
    server that runs already is `attached`.
    """
    every = range(campaign.repeats)
    turns: list[tuple[Arm, range, str]]
    if campaign.starts == ONCE:
        turns = [(arm, every, ONCE) for arm in arms]
    else:
        turns = [
            (arm, range(repeat, repeat + 1), f"r{repeat}")
            for repeat in every
            for arm in (arms if repeat % 2 == 0 else arms[::-1])
        ]
    starts, labels = list[Start](), dict[str, str]()
    for arm, repeats, name in turns:
        start, own = ATTACHED if arm.attached else name, list[Planned]()
        for repeat in repeats:
            for workload in arm.profiles if repeat % 2 == 0 else arm.profiles[::-1]:
                cell = Cell(
                    campaign=campaign.name,
                    checkpoint=arm.checkpoint,
                    server=arm.server,
                    profile=workload.name,
                    repeat=repeat,
                    start=start,
                )
                own.append(plan_cell(cell, workload, arm.options))
        starts.append(Start(arm, start, tuple(own)))
    for planned in list_cells(starts):
        if (other := labels.setdefault(planned.id, planned.label)) != planned.label:
            names = [label.partition(" ")[2] for label in (other, planned.label)]
            raise UsageError(
                f"{names[0]!r} and {names[1]!r} would both be stored as {planned.id}: rename one"
            )
        if len(planned.id.encode()) > _LONGEST:
            raise UsageError(f"the names of {planned.label!r} are too long for a directory's: shorten them")
    return tuple(starts)


def list_cells(starts: Iterable[Start]) -> list[Planned]:
    """List every cell of the starts, in order."""
    return [planned for start in starts for planned in start.planned]


def describe_progress(store: SeriesStore, starts: Sequence[Start]) -> str:
    """Return how many steps are finished, and how many have failed: 3 of 4 cells are finished, 1 failed."""
    every = {planned.id for planned in list_cells(starts)}
    failed = f", {count} failed" if (count := len(every & store.list_failed())) else ""
    return f"{len(every & store.list_finished())} of {len(every)} {store.whole} are finished{failed}"


def read_pace(store: SeriesStore, starts: Sequence[Start]) -> Pace:
    """Read how long finished steps took, and the starts of their servers, from the runs in the store.

    Steps that are not in `starts` are left out. A step's time is the sum of its runs'.
    """
    pace = Pace()
    planned_on = {planned.id: (planned, start.arm.name) for start in starts for planned in start.planned}
    for step in sorted(store.list_finished() & planned_on.keys()):
        runs, (planned, arm) = list(store.read_facts(step)), planned_on[step]
        times = [[datetime.fromisoformat(run[key]) for key in ("started", "finished")] for run in runs]
        took_s = sum((ended - began).total_seconds() for began, ended in times)
        if runs:
            pace.steps.append((planned, took_s))
        if runs and (ready_s := (runs[0].get("launched") or {}).get("ready_s")):
            pace.starts.append((arm, ready_s))
    return pace


def estimate_left(
    pace: Pace, starts: Sequence[Start], done: Collection[str], up: Start | None = None
) -> TimeLeft:
    """Estimate the time of steps not in `done`, and of the starts for them; that of `up` has been made."""
    left = [[each for each in start.planned if each.id not in done] for start in starts]
    begun = (start.arm for start, cells in zip(starts, left, strict=True) if cells and start is not up)
    cells = (planned for cells in left for planned in cells)
    return pace.estimate_left(cells, (arm.name for arm in begun if not arm.attached))
