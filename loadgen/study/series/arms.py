"""Arms: what is compared, each a checkpoint on a server, with everything a run of it needs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path as expanded
from loadgen.base.parsing import suggest_name
from loadgen.base.secrecy import command_line
from loadgen.base.urls import host_of
from loadgen.features.data import data_files
from loadgen.plan import profile
from loadgen.plan.profile import Profile
from loadgen.plan.server_settings import ServerSettings
from loadgen.run import bench
from loadgen.run.asked_settings import settings
from loadgen.run.credentials import DEFAULT_VARIABLE, api_key
from loadgen.run.options import Options, bench_parser, parse
from loadgen.study.series import keys
from loadgen.study.series.file import CheckpointTable, File, LimitTable
from loadgen.study.series.keys import Variables
from loadgen.study.series.limit.limit_request import KEYS, SearchLoads, axis_of
from loadgen.study.series.trust import Trust, program
from loadgen.verdict import requested_metrics

_NONE = Trust()


class Arm(msgspec.Struct, frozen=True):
    """One checkpoint on one server."""

    checkpoint: str
    server: str
    flags: Mapping[str, Any]  # of `loadgen bench`, variables filled in; they may hold secrets
    options: Options
    profiles: tuple[Profile, ...]  # the flags laid over them
    places: Mapping[str, str]  # where each profile is, by its name
    settings: ServerSettings
    missing: tuple[str, ...] = ()  # variables of the environment that are not set
    barred: tuple[str, ...] = ()  # variables that are set but not allowed to this file

    @property
    def name(self) -> str:
        """As a comparison calls it."""
        return f"{self.checkpoint} on {self.server}"

    @property
    def attached(self) -> bool:
        """Whether its server is there before, and stays."""
        return self.options.base_url is not None

    def command(self, repeats: int, seed: int | None, limit: LimitTable | None = None) -> str:
        """The command line that would measure the same, secrets hidden; of a search that of one repeat."""
        words = keys.words(self.flags, bench_parser())
        words += ["--profile", ",".join(self.places[workload.name] for workload in self.profiles)]
        words += ["--fingerprint"] if self.options.fingerprint else []
        words += ["--repeat", str(repeats)] if repeats > 1 and limit is None else []
        words += ["--seed", str(seed)] if seed is not None else []
        words += [] if limit is None else limit.words
        return shlex.join(["loadgen", "bench" if limit is None else "limit", *command_line(words)])


def made(file: File, path: Path, only: Sequence[str] = (), trust: Trust = _NONE) -> tuple[Arm, ...]:
    """The arms in the file's order, all of it checked, or those of some checkpoints; raises UsageError.

    Only trusted variables that the file asks for are read from the environment.
    """
    names = [row.name for row in file.checkpoints]
    for name in only:
        if name not in names:
            raise UsageError(f"--only: no checkpoint {name!r} in {path}{suggest_name(name, names)}")
    arms = tuple(arm for row in file.checkpoints for arm in _of(row, file, path, trust.of(path)))
    places: dict[str, str] = {}
    for arm in arms:
        for name, path_of in arm.places.items():
            if places.setdefault(name, path_of) != path_of:
                raise UsageError(f"{path}: two profiles have the name {name}: {places[name]} and {path_of}")
    if file.baseline and file.baseline not in {*names, *(arm.name for arm in arms)}:
        hint = suggest_name(file.baseline, [*names, *(arm.name for arm in arms)])
        raise UsageError(f"{path}: baseline = {file.baseline!r}: no such checkpoint{hint}")
    return tuple(arm for arm in arms if not only or arm.checkpoint in only)


def _of(row: CheckpointTable, file: File, path: Path, trust: Trust) -> Iterator[Arm]:
    servers = file.servers if row.servers is None else row.servers
    for server in servers or ("",):
        origin = f"{path}: checkpoint {row.name!r}" + (f" on {server!r}" if server else "")
        flags = keys.laid_over(file.servers.get(server, {}), row.flags)
        if file.hardware is not None:
            flags.setdefault("hardware", file.hardware)
        asked = Variables(trust.reads)
        try:
            arm = _arm(row, file, path, server, keys.filled(flags, asked))
        except UsageError as error:
            raise UsageError(f"{origin}: {error}") from None
        yield replace(
            arm,
            options=trust.with_key(arm.options),
            missing=tuple(sorted(asked.missing)),
            barred=tuple(sorted(asked.barred)),
        )


def _arm(row: CheckpointTable, file: File, path: Path, server: str, flags: dict[str, Any]) -> Arm:
    options = replace(parse(keys.words(flags, bench_parser())), fingerprint=file.fingerprint)
    bench.check(options)
    places = [_place(name, path) for name in (file.profiles if row.profiles is None else row.profiles)]
    profiles = tuple(profile.load(place, options.overrides) for place in places)
    for workload in profiles:
        requested_metrics.check_profile(workload)
        data_files.check(workload)
    if file.limit is not None:
        _check_searches(file.limit, profiles)
    server_settings = settings(options, profiles)
    profile_names = [workload.name for workload in profiles]
    if twice := next((name for name in profile_names if profile_names.count(name) > 1), None):
        raise UsageError(f"profile {twice} is listed twice: set `repeats` to run it several times")
    launch = options.launching
    if launch.wanted and launch.command is None and options.model is None:
        raise UsageError("no model: give a directory, or a name on the Hugging Face hub")
    server_name = launch.name if launch.wanted else "attached" if options.base_url else "embedded"
    located = dict(zip(profile_names, places, strict=True))
    return Arm(row.name, server or server_name, flags, options, profiles, located, server_settings)


def _check_searches(table: LimitTable, profiles: Sequence[Profile]) -> None:
    """Raises UsageError of a workload that cannot be searched so, by its name."""
    loads = SearchLoads(table.start, table.lowest, table.highest)
    for workload in profiles:
        try:
            loads.check(workload, axis_of(workload, table.over), table.slo, KEYS)
        except UsageError as error:
            raise UsageError(f"[limit], profile {workload.name}: {error}") from None


def _place(name: str, path: Path) -> str:
    """A profile's name, or where it is: a relative path begins at the campaign's own file."""
    if name.endswith(".toml") or "/" in name:
        return str(path.parent / expanded(name))
    return name


def check_allowed(trust: Trust, path: Path, arms: Sequence[Arm]) -> None:
    """Raises UsageError that lists what the file would do without being allowed to."""
    if barred := sorted({name for arm in arms for name in arm.barred}):
        allowing = " ".join(f"--allow-env {name}" for name in barred)
        raise UsageError(
            f"{path} reads {', '.join(barred)} from the environment, and may send it to the servers that "
            f"it names: read the file, and allow it with {allowing}"
        )
    starting = [arm for arm in arms if arm.options.launching.wanted]
    if starting and not trust.starts:
        lines = "".join(
            f"\n  {arm.name}: {program(arm.options, arm.settings, asks=False)}" for arm in starting
        )
        raise UsageError(
            f"{path} would run programs on this machine, as you; read them, and allow it with "
            f"--allow-launch:{lines}"
        )


def key_lines(trust: Trust, arms: Sequence[Arm]) -> list[str]:
    """Messages on an API key in the environment that is not sent to the hosts that the file names."""
    if trust.key_env or trust.key_file or not api_key(None, None):
        return []
    hosts = {host_of(url): None for arm in arms if not trust.gives(arm.options) for url in arm.options.urls}
    return [
        f"the key in {DEFAULT_VARIABLE} is not sent to {host}, which the file names: --api-key-env "
        f"{DEFAULT_VARIABLE} sends it"
        for host in filter(None, hosts)
    ]
