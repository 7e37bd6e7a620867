"""Preview: what a campaign would do, without doing any of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import msgspec

from loadgen.base.secrecy import hide_secrets
from loadgen.base.table import align_cells
from loadgen.base.text import format_count, wrap_text
from loadgen.study.series.arms import Arm, key_lines
from loadgen.study.series.file import File
from loadgen.study.series.matrix import ONCE, Start, cells_of
from loadgen.study.series.time_estimate import Pace, duration
from loadgen.study.series.trust import Trust, program

_NO_BREAK = "\u00a0"


class Preview(msgspec.Struct, frozen=True):
    """A campaign's matrix, order, commands and time; `done` are ids of cells that need no more."""

    file: File
    arms: Sequence[Arm]
    starts: Sequence[Start]
    done: set[str]
    pace: Pace
    seed: int | None
    trust: Trust = Trust()

    def render(self) -> str:
        """As text for a terminal; command lines are as long as they are."""
        parts = (self._matrix(), self._order(), self._commands(), (*self._reach(), *self._time()))
        return "\n\n".join("\n".join(lines) for lines in parts)

    def _matrix(self) -> Iterator[str]:
        title = f"{self.file.name}: {self.file.description}" if self.file.description else self.file.name
        yield from wrap_text(title)
        cells = cells_of(self.starts)
        started = sum(not start.arm.attached for start in self.starts)
        arms, repeats = format_count(len(self.arms), "arm"), format_count(self.file.repeats, "repeat")
        starts = format_count(started, "start")
        yield (
            f"{arms} (checkpoint on server), {repeats}: {format_count(len(cells), 'cell')}, {starts} of a "
            "server"
        )
        if (limit := self.file.limit) is not None:
            budget = f"at most {format_count(limit.max_runs, 'run')} and {duration(limit.budget_s)}"
            yield from wrap_text(f"each cell is a search for the highest load at {limit.slo}: {budget}")
        if over := sum(planned.id in self.done for planned in cells):
            yield f"{over} are done, {len(cells) - over} are left"
        widths = (-max(len(arm.name) for arm in self.arms) - 4, -1)
        for arm in self.arms:
            yield align_cells(
                (f"  {arm.name}", ", ".join(workload.name for workload in arm.profiles)), widths
            )
            model = arm.options.model or ""
            is_path = arm.options.launching.wanted and model.startswith(("/", "./", "../"))
            if is_path and not os.path.exists(model):
                yield f"    {model} does not exist: its cells would fail"
        if unset := sorted({name for arm in self.arms for name in arm.missing}):
            yield f"environment variables to set first: {', '.join(unset)}"

    def _order(self) -> Iterator[str]:
        turns: dict[str, list[str]] = {}
        if self.file.starts == ONCE:
            yield "order: each server is started once, for all its repeats"
            turns["all"] = [self._called(start.arm) for start in self.starts]
        else:
            yield "order: each repeat starts every server again, in the reverse order of the repeat before"
            names: dict[int, list[str]] = {}
            for start in self.starts:
                names.setdefault(start.planned[0].cell.repeat, []).append(self._called(start.arm))
            for first in list(names)[:2]:
                turns[", ".join(f"r{repeat}" for repeat in list(names)[first::2])] = names[first]
        for label, order in turns.items():
            text = f"  {label}: {' → '.join(name.replace(' ', _NO_BREAK) for name in order)}"
            yield from (line.replace(_NO_BREAK, " ") for line in wrap_text(text, "    "))

    def _called(self, arm: Arm) -> str:
        """The checkpoint alone if all are on one server."""
        return arm.checkpoint if len({each.server for each in self.arms}) == 1 else arm.name

    def _commands(self) -> Iterator[str]:
        verb = "bench" if self.file.limit is None else "limit"
        yield f"commands that would measure the same with `loadgen {verb}`:"
        for arm in self.arms:
            yield f"  {arm.name}"
            yield f"    {arm.command(self.file.repeats, self.seed, self.file.limit)}"
            if arm.options.launching.wanted and not (arm.missing or arm.barred):
                # To find out what is installed runs the interpreter that the file names.
                yield f"    {program(arm.options, arm.settings, asks=self.trust.starts)}"

    def _reach(self) -> Iterator[str]:
        """What the file would run, send and read, and whether it is allowed to."""
        starting = [arm.name for arm in self.arms if arm.options.launching.wanted]
        if starting and not self.trust.starts:
            yield f"runs programs: {', '.join(starting)}; needs --allow-launch"
        hosts = dict.fromkeys(url for arm in self.arms for url in arm.options.urls)
        if hosts:
            yield f"sends to: {', '.join(map(hide_secrets, hosts))}"
        if self.trust.variables:
            yield f"may read from the environment: {', '.join(self.trust.variables)}"
        if barred := sorted({name for arm in self.arms for name in arm.barred}):
            yield f"reads from the environment: {', '.join(barred)}; needs --allow-env NAME for each"
        yield from key_lines(self.trust, self.arms)

    def _time(self) -> Iterator[str]:
        if (limit := self.file.limit) is None:
            yield f"estimated time: {self.pace.left(self.starts, self.done).words}"
        else:
            left = sum(planned.id not in self.done for planned in cells_of(self.starts))
            most = duration(left * limit.budget_s)
            yield f"estimated time: at most {most} of searches; starts of servers come on top"
        yield "nothing was started or written (--dry-run)"
