"""Limit: a search for the highest load as a value, for those who use loadgen from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadgen.report import limit_lines
from loadgen.report.limit_record import LimitRecord
from loadgen.report.run import Run


class Limit:
    """The highest load that meets objectives, and the search for it. `limit` makes it.

    Loads are requests per second or requests in flight, as `record.axis` has it. `record` has every run's
    figures, what bound the limit and why the search ended; `runs` are those of which something was measured,
    in order. `directory` is where the search lies on disk, None for one that was not written.
    """

    def __init__(self, record: LimitRecord, runs: tuple[Run, ...], directory: Path | None = None) -> None:
        self.record, self.runs, self.directory = record, runs, directory

    def __repr__(self) -> str:
        return f"<loadgen.Limit {self.record.name}: {limit_lines.headline(self.record)}>"

    @property
    def value(self) -> float | None:
        """The limit; None where only a side of it is known, or nothing."""
        return None if self.record.limit is None else self.record.limit.value

    @property
    def low(self) -> float | None:
        """The lower end of its 95 % interval; None: not known."""
        return None if self.record.limit is None else self.record.limit.low

    @property
    def high(self) -> float | None:
        """The upper end of its 95 % interval; None: not known."""
        return None if self.record.limit is None else self.record.limit.high

    @property
    def highest_passing(self) -> float | None:
        """The highest load at which a whole run is shown to meet every objective; None: no run is."""
        return self.record.highest_passing

    @property
    def lowest_failing(self) -> float | None:
        """The lowest load above that at which a run is shown to fail one; None: no run is."""
        return self.record.lowest_failing

    def text(self) -> str:
        """The answer and the runs, as `loadgen limit` prints them."""
        return limit_lines.text(self.record)

    def json(self) -> dict[str, Any]:
        """What limit.json holds."""
        return self.record.model_dump(mode="json")
