"""Matrix: every cell of a campaign, and the order in which they are measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from loadgen.base.errors import UsageError
from loadgen.plan.profile import Profile
from loadgen.study.series.arms import Arm
from loadgen.verdict.campaign_cell import Cell

ATTACHED = "attached"
ONCE = "once"
_LONGEST = 200  # bytes of an id: it is the name of a directory


class Planned(msgspec.Struct, frozen=True):
    """A cell to be measured."""

    cell: Cell
    workload: Profile

    @property
    def id(self) -> str:
        """Unique in the campaign, of letters that any file system takes: r0-Qwen3-8B-FP8-vllm-high-load."""
        cell = self.cell
        return re.sub(r"[^\w.]+", "-", f"r{cell.repeat}-{cell.checkpoint}-{cell.server}-{cell.profile}")


class Start(msgspec.Struct, frozen=True):
    """One start of one arm's server, and what is measured on it, in this order."""

    arm: Arm
    name: str
    planned: tuple[Planned, ...]


def starts(campaign: str, arms: Sequence[Arm], repeats: int, once: bool = False) -> tuple[Start, ...]:
    """The starts in order; raises UsageError where two cells would have one id.

    Each repeat starts every arm's server again, and the arms' order is reversed from one repeat to the next
    (ABC, CBA, ABC, …), so that what drifts steadily falls on all of them alike; the profiles' order on a
    start turns with it. With `once` a server is started once for all repeats.
    """
    if once:
        ordered = [_start(campaign, arm, range(repeats), ONCE) for arm in arms]
    else:
        ordered = [
            _start(campaign, arm, range(repeat, repeat + 1), f"r{repeat}")
            for repeat in range(repeats)
            for arm in (arms if repeat % 2 == 0 else arms[::-1])
        ]
    cells: dict[str, Cell] = {}
    for planned in cells_of(ordered):
        if (other := cells.setdefault(planned.id, planned.cell)) is not planned.cell:
            names = [f"{cell.arm}, {cell.profile}" for cell in (other, planned.cell)]
            raise UsageError(
                f"{names[0]!r} and {names[1]!r} would both be stored as {planned.id}: rename one"
            )
        if len(planned.id.encode()) > _LONGEST:
            raise UsageError(
                f"the names of {planned.cell.arm!r} are too long for a directory's: shorten them"
            )
    return tuple(ordered)


def cells_of(starts: Iterable[Start]) -> list[Planned]:
    """Every cell of these starts, in order."""
    return [planned for start in starts for planned in start.planned]


def _start(campaign: str, arm: Arm, repeats: range, name: str) -> Start:
    start, planned = ATTACHED if arm.attached else name, []
    for repeat in repeats:
        for workload in arm.profiles if repeat % 2 == 0 else arm.profiles[::-1]:
            cell = Cell(
                campaign=campaign,
                checkpoint=arm.checkpoint,
                server=arm.server,
                profile=workload.name,
                repeat=repeat,
                start=start,
            )
            planned.append(Planned(cell, workload))
    return Start(arm, start, tuple(planned))
