"""Quality cells: each arm's distribution compared with the reference's, on servers that are up anyway."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from loadgen.base import clock
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import LoadgenError, UsageError
from loadgen.features.quality.quality_record import Quality
from loadgen.run.session import Session
from loadgen.study.arm_qualities import describe_quality, format_spread
from loadgen.study.series.campaign.arms import Arm, Start
from loadgen.study.series.campaign.campaign_file import CampaignFile, QualityTable
from loadgen.study.series.campaign.quality_order import WORDS, QualityKind, QualityState, QualityTask
from loadgen.study.series.campaign.quality_store import FinishedTask, QualityStore, name_arm
from loadgen.study.series.point_runs import PointServers, do_on_server
from loadgen.study.series.series_store import StoreError

EXTRA = "quality"  # a start of a server for its quality alone
_ANSWERED = "it cannot score a prompt, and has sampled: the reference will score"


class QualityMeasuring(Protocol):
    """Measures on a server that is up, and goes on where its files stand; raises LoadgenError."""

    def sample_reference(self, session: Session, reference: Path) -> Quality:
        """Have the reference sample and score, into its file, and return its own quality: its noise floor."""

    def score_reference(self, session: Session, reference: Path, scores: Path) -> Quality | None:
        """Have a candidate score the reference's file, and return its quality.

        None if it cannot score; then it has sampled, into `scores`.
        """

    def score_back(self, session: Session, reference: Path, answers: Path, scores: Path) -> Quality:
        """Have the reference score a candidate's answers, and return the candidate's quality."""


def find_reference(file: CampaignFile, arms: Sequence[Arm]) -> Arm | None:
    """Find the arm that `[quality]` compares others with: the first of its name or checkpoint.

    None without `[quality]`, or where none of the arms is it. Raises UsageError where the qualities of two
    arms would be one file.
    """
    if file.quality is None:
        return None
    wanted, names = file.quality.reference, dict[str, str]()
    for arm in arms:
        other = names.setdefault(name_arm(arm), arm.name)
        if other != arm.name:
            raise UsageError(f"[quality]: {other!r} and {arm.name!r} would be one file: rename one")
    return next((arm for arm in arms if wanted in (arm.name, arm.checkpoint)), None)


@dataclass
class QualityCells:
    """The quality of a campaign's arms that is left, as `Execution` has the cells of their load."""

    store: QualityStore
    table: QualityTable
    arms: Mapping[str, Arm]  # by their names
    state: QualityState
    measuring: QualityMeasuring
    say: Callable[[str], None] = print

    @classmethod
    def open(
        cls,
        store: QualityStore,
        table: QualityTable,
        arms: Sequence[Arm],
        reference: Arm,
        measuring: QualityMeasuring,
        say: Callable[[str], None],
        retry_failed: bool,
    ) -> QualityCells:
        """Open the quality of these arms as the store has it; with `retry_failed` none has failed."""
        state = store.read_state(table, arms, reference, retry_failed)
        return cls(store, table, {arm.name: arm for arm in (*arms, reference)}, state, measuring, say)

    def choose_start(self) -> Start | None:
        """Choose the arm whose server is started once more, for its quality alone; None if none is left."""
        chosen = self.state.choose_arm()
        return None if chosen is None else Start(self.arms[chosen], EXTRA, ())

    def measure_all(self, arm: Arm, servers: PointServers) -> None:
        """Do what can be done on the arm's server, which is reached or started for it if it is not up.

        A task that fails is stored with its reason. Raises StoreError, and KeyboardInterrupt on a signal.
        """
        while tasks := self.state.list_tasks(arm.name):
            self._measure(tasks[0], servers)

    def _measure(self, task: QualityTask, servers: PointServers) -> None:
        """Do one task, store what came of it or why it failed, and print its line."""
        began_ns, arm = clock.now_ns(), self.arms[task.arm]
        self.store.create()
        self.say(f"quality, {task.arm}: {WORDS[task.kind].begun}")
        try:
            found = do_on_server(servers, self.arms[task.on].profiles[0], partial(self._do, task))
        except StoreError:
            raise
        except LoadgenError as error:
            self.state = self.state.fail(task.arm)
            self.store.fail(arm, str(error), read_wall_clock())
            self.say(f"quality, {task.arm}: FAILED: {error.summary}")
            return
        seconds = (clock.now_ns() - began_ns) / 1e9
        if found is not None:
            settings = {**found.settings, "tokens": self.table.tokens}
            self.store.keep(arm, found.model_copy(update={"settings": settings}))
            self.state = self.state.finish(task.arm)
        else:
            self.state = self.state.answer(task.arm)
        self.store.note(FinishedTask(task.kind, task.arm, self.table.tokens, seconds, found is None))
        self.say(f"quality, {task.arm}: {_ANSWERED if found is None else self._describe(task, found)}")

    def _do(self, task: QualityTask, session: Session) -> Quality | None:
        """Do a task on a session's server, and return the quality that is known then, if it is."""
        arm, store = self.arms[task.arm], self.store
        scores = store.find_scores(arm)
        if task.kind is QualityKind.SAMPLE:
            return self.measuring.sample_reference(session, store.reference)
        if task.kind is QualityKind.SCORE:
            return self.measuring.score_reference(session, store.reference, scores)
        return self.measuring.score_back(session, store.reference, scores, store.find_back(arm))

    def _describe(self, task: QualityTask, found: Quality) -> str:
        """Describe what is known of an arm: of the reference its noise floor, else its verdict."""
        if task.kind is QualityKind.SAMPLE:
            floor = found.noise_floor
            shown = "unknown" if floor is None else format_spread(floor)
            return f"{self.table.tokens:,} tokens sampled; noise floor {shown} nats a token"
        return describe_quality(found, self.table.margin)
