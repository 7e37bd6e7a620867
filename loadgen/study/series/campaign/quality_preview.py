"""Quality preview: in which order the quality of a campaign's arms is measured, and how long that takes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median

import msgspec

from loadgen.base.text import wrap_chain
from loadgen.study.series.campaign.arms import Arm, Start
from loadgen.study.series.campaign.campaign_file import CampaignFile, QualityTable
from loadgen.study.series.campaign.campaign_store import CampaignStore
from loadgen.study.series.campaign.quality_order import (
    WORDS,
    QualityKind,
    QualityState,
    QualityTask,
    plan_tasks,
)
from loadgen.study.series.campaign.quality_store import FinishedTask, QualityStore
from loadgen.study.series.time_estimate import TimeLeft, estimate_tokens_s


def preview_quality(
    file: CampaignFile, arms: Sequence[Arm], reference: Arm | None, kept: CampaignStore | None, retry: bool
) -> QualityPreview | None:
    """Make the preview of what is left of a campaign's quality, of a new campaign without `kept`.

    None without `[quality]`. With `retry` failed tasks are left too.
    """
    table = file.quality
    if table is None or reference is None:
        return None
    state, finished = QualityState(reference.name, tuple(arm.name for arm in arms)), list[FinishedTask]()
    if kept is not None:
        store = QualityStore(kept)
        state, finished = store.read_state(table, arms, reference, retry), store.read_tasks()
    return QualityPreview(table, {arm.name: arm for arm in (*arms, reference)}, state, finished)


class QualityPreview(msgspec.Struct, frozen=True):
    """The quality of a campaign that is left: its table, arms by name, state, and the tasks that are done."""

    table: QualityTable
    arms: Mapping[str, Arm]
    state: QualityState
    finished: Sequence[FinishedTask] = ()

    def list_order(self, starts: Sequence[Start], done: Collection[str]) -> Iterator[str]:
        """Yield lines on the tasks that are left, by whether a server is up for its load then.

        `done` are the ids of cells that are not measured again.
        """
        left = [start for start in starts if any(planned.id not in done for planned in start.planned)]
        tasks = self._plan(left)
        reference, margin = self.state.reference, f"the same within {self.table.margin:g} nats a token"
        yield f"quality: {self.table.tokens:,} tokens of {reference}, {margin}"
        own = [(name, task) for name, task in tasks if name]
        more = [(name, task) for name, task in tasks if not name]
        for label, several in (("after the load of", own), ("on one more start of", more)):
            words = [
                f"{name} {task.on}: {WORDS[task.kind].does} {'' if task.on == task.arm else task.arm}".strip()
                for name, task in several
            ]
            if words:
                yield from wrap_chain(f"  {label}", words, "    ")
        if not tasks and self.state.left:
            yield f"  nothing can be measured: {reference} has failed, or is not among --only"

    def estimate_left(self) -> TimeLeft:
        """Estimate the seconds of the tasks that are left, by those that are done, else at the roofline."""
        seconds, unknown, at_best = 0.0, 0, False
        for _, task in self._plan(()):
            known = self._estimate_by_done(task)
            if known is None:
                known = self._estimate_at_best(task)
                at_best = True
            seconds += known or 0.0
            unknown += known is None
        return TimeLeft(seconds, unknown, at_best)

    def _plan(self, starts: Sequence[Start]) -> list[tuple[str, QualityTask]]:
        """List the tasks that are left, each with the name of its start; "" for one more start."""
        planned = plan_tasks(self.state, [start.arm.name for start in starts])
        return [(starts[number].name if number is not None else "", task) for number, task in planned]

    def _estimate_by_done(self, task: QualityTask) -> float | None:
        """Estimate a task by the median of the same kind, the arm's own first; None without any."""
        done = [one for one in self.finished if one.kind is task.kind]
        alike = [one for one in done if one.arm == task.arm] or done
        rates = [one.seconds / one.tokens for one in alike]
        return median(rates) * self.table.tokens if rates else None

    def _estimate_at_best(self, task: QualityTask) -> float | None:
        """Estimate a task by the preset's steps, else at the machine's roofline; None if there is neither."""
        sampled = self.table.tokens if task.kind is QualityKind.SAMPLE else 0
        return estimate_tokens_s(self.arms[task.on].options, sampled, self.table.tokens)
