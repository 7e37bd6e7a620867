"""File: a campaign as its TOML file has it: what is compared, on which servers, under which workloads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from loadgen.base.bounds import MOST_SECONDS, MOST_SEED
from loadgen.base.errors import UsageError
from loadgen.base.parsing import suggest_name
from loadgen.figures import objectives
from loadgen.plan import profile
from loadgen.plan.server_settings import validated

Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^\S(.*\S)?$")]
Names = Annotated[tuple[Name, ...], Field(strict=False)]


class CoolDown(BaseModel, extra="forbid", frozen=True, strict=True, allow_inf_nan=False):
    """How long to wait before a cell until the machine is no warmer than that."""

    to_c: float
    at_most_s: Annotated[float, Field(gt=0, le=MOST_SECONDS)] = 600.0


class LimitTable(BaseModel, extra="forbid", frozen=True, strict=True, allow_inf_nan=False):
    """`[limit]`: each cell is a search for the highest load that meets the objectives, as `loadgen limit`."""

    slo: Annotated[str, Field(min_length=1)]
    over: Literal["rate", "concurrency"] | None = None  # None: as the profile has it
    within: Annotated[float, Field(ge=0.001, le=1)] = 0.05  # share of the limit, 0.05 is 5 %
    budget_s: Annotated[float, Field(gt=0, le=MOST_SECONDS)] = 1800.0  # of one search
    max_runs: Annotated[int, Field(ge=2, le=1000)] = 12
    min_duration_s: Annotated[float, Field(gt=0, le=MOST_SECONDS)] | None = None  # of a run
    start: Annotated[float, Field(gt=0)] | None = None
    lowest: Annotated[float, Field(gt=0)] | None = None
    highest: Annotated[float, Field(gt=0)] | None = None

    @property
    def words(self) -> list[str]:
        """The same as flags of `loadgen limit`."""
        words = ["--slo", self.slo, "--within", f"{100 * self.within:g}%"]
        words += ["--budget", f"{self.budget_s:.12g}s", "--max-runs", f"{self.max_runs}"]
        words += [] if self.over is None else ["--over", self.over]
        words += [] if self.min_duration_s is None else ["--min-duration", f"{self.min_duration_s:.12g}s"]
        for flag, load in (("--start", self.start), ("--from", self.lowest), ("--to", self.highest)):
            words += [] if load is None else [flag, f"{load:g}"]
        return words


class CheckpointTable(BaseModel, extra="allow", frozen=True, strict=True):
    """One `[[checkpoints]]`: a row of the comparison; every other key is a flag of `loadgen bench`."""

    name: Name
    servers: Names | None = None  # None: all of the file's
    profiles: Names | None = None  # None: those of the file

    @property
    def flags(self) -> dict[str, Any]:
        """Its own flags, laid over its server's."""
        return dict(self.__pydantic_extra__ or {})


class CampaignOptions(BaseModel, extra="forbid", frozen=True, strict=True, allow_inf_nan=False):
    """What a campaign's file decides for the whole campaign, as its record has it too."""

    name: Name
    description: str = ""
    repeats: Annotated[int, Field(ge=1, le=1000)] = 5
    starts: Literal["every-repeat", "once"] = "every-repeat"  # of a server
    baseline: str = ""  # a checkpoint, or "checkpoint on server"; "": the first
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.02  # of equivalence, 0.02 is ± 2 %
    hardware: str | None = None  # key of the roofline's table
    fingerprint: bool = False
    cool_down: CoolDown | None = None
    limit: LimitTable | None = None


class File(CampaignOptions, frozen=True):
    """The whole file; relative profiles are next to it."""

    profiles: Names = ()
    seed: Annotated[int, Field(ge=0, le=MOST_SEED)] | None = None  # None: drawn and recorded
    servers: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    checkpoints: tuple[CheckpointTable, ...]


def shipped() -> dict[str, Path]:
    """The shipped campaigns by name."""
    return {path.stem: path for path in sorted((profile.shipped_directory() / "campaigns").glob("*.toml"))}


def locate(name_or_path: str) -> Path:
    """The file of a campaign, as of a profile; raises UsageError."""
    return profile.locate(name_or_path, shipped(), "campaign")


def load(path: Path) -> File:
    """The campaign in a file; raises UsageError that names the file, the key and the nearest valid one."""
    table = profile.read_toml(path, "campaign")
    rows = table.pop("checkpoints", None)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows) or not rows:
        raise UsageError(f"{path}: nothing to compare: write a [[checkpoints]] table for each")
    servers = table.get("servers", {})
    if not isinstance(servers, dict) or not all(isinstance(server, dict) for server in servers.values()):
        raise UsageError(f"{path}: servers: write a [servers.NAME] table for each")
    if isinstance(cool_down := table.get("cool_down"), dict):
        table["cool_down"] = validated(CoolDown, cool_down, f"{path}: [cool_down]")
    if isinstance(limit := table.get("limit"), dict):
        table["limit"] = _limit(limit, f"{path}: [limit]")
    campaign = validated(
        File, {"name": path.stem, **table, "checkpoints": tuple(_rows(rows, path))}, str(path)
    )
    _check(campaign, path)
    return campaign


def _limit(table: Mapping[str, Any], where: str) -> LimitTable:
    """A `[limit]`; raises UsageError, of objectives too."""
    limit = validated(LimitTable, table, where)
    try:
        objectives.parse(limit.slo)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return limit


def _rows(rows: Iterable[Mapping[str, Any]], path: Path) -> Iterator[CheckpointTable]:
    for number, row in enumerate(rows, 1):
        name = row.get("name")
        if name is None:
            raise UsageError(f"{path}: [[checkpoints]] number {number} has no name")
        yield validated(CheckpointTable, row, f"{path}: checkpoint {name!r}")


def _check(campaign: File, path: Path) -> None:
    """Checks that need several keys; raises UsageError."""
    names = [row.name for row in campaign.checkpoints]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"{path}: checkpoint {twice!r} is listed twice: give each a name of its own")
    for row in campaign.checkpoints:
        for server in row.servers or ():
            if server not in campaign.servers:
                raise UsageError(
                    f"{path}: checkpoint {row.name!r}: no [servers.{server}]"
                    f"{suggest_name(server, campaign.servers)}"
                )
        if row.servers == ():
            raise UsageError(f"{path}: checkpoint {row.name!r} has no server: leave `servers` out for all")
        if not (campaign.profiles if row.profiles is None else row.profiles):
            raise UsageError(
                f"{path}: checkpoint {row.name!r} has no workload: name some, as profiles = "
                '["high-load", "low-load"]'
            )
