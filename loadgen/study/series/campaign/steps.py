"""Steps: what a campaign does next to its loads on each arm's server, and the arms.

A step is the table of a campaign's file that asks for it, as `[quality]`: a `StepTable`, which is a field of
`CampaignOptions`, and the `CampaignStep` that it begins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import msgspec
from pydantic import BaseModel, Field

from loadgen.plan.profile import Profile
from loadgen.run.command.options import Options
from loadgen.run.command.progress import Display
from loadgen.settings.validation import ServerSettings
from loadgen.study.series.point_runs import PointServers
from loadgen.study.series.series_store import SeriesStore

Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^\S(.*\S)?$")]


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
        """The arm's name in comparisons."""
        return f"{self.checkpoint} on {self.server}"

    @property
    def attached(self) -> bool:
        """Whether its server runs already, and is left running."""
        return self.options.base_url is not None


class CampaignStep(ABC):
    """A step of all arms: it goes on where it stands, and keeps what it has done in the campaign's store.

    Why it failed for an arm is kept in NAME/failed/ARM.json there, and costs nothing else.
    """

    name: ClassVar[str]

    @abstractmethod
    def describe_left(self) -> str:
        """Describe the step, and what is left of it."""

    @abstractmethod
    def choose_arm(self) -> Arm | None:
        """Choose the arm whose server is started once more for this step; None if nothing is left."""

    @abstractmethod
    def measure_all(self, arm: Arm, servers: PointServers) -> None:
        """Do what can be done on the arm's server, which is reached or started for it if it is not up.

        Raises StoreError, and KeyboardInterrupt on a signal.
        """


class StepTable(BaseModel, ABC, extra="forbid", frozen=True, strict=True, allow_inf_nan=False):
    """A table of a campaign's file that asks for a step."""

    decides: ClassVar[frozenset[str]] = frozenset()  # keys that may not change once cells were measured

    def read_beside(self, directory: Path) -> Self:
        """Return the table with its files found from the campaign's directory, or raise UsageError."""
        return self

    @abstractmethod
    def check(self, every: Sequence[Arm]) -> None:
        """Raise UsageError for what cannot be done with the file's arms."""

    @abstractmethod
    def begin(
        self,
        store: SeriesStore,
        arms: Sequence[Arm],
        every: Sequence[Arm],
        retry_failed: bool,
        display: Display,
    ) -> CampaignStep:
        """Read how far the step is for `arms`, of all that the file has; nothing is started or written."""
