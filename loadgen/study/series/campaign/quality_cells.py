"""Quality cells: each arm's distribution compared with the reference's, on servers that are up anyway."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from loadgen.base import clock
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import LoadgenError, UsageError
from loadgen.base.untrusted import read_count, read_file_bytes
from loadgen.run.session import Session
from loadgen.study.quality import arm_qualities
from loadgen.study.quality.arm_qualities import FAILED, QUALITY, format_spread, make_arm_id, read_quality
from loadgen.study.quality.quality_record import Quality
from loadgen.study.series.campaign.arm_scores import BACK, REFERENCE_FILE, SCORES, ServerMeasuring
from loadgen.study.series.campaign.arms import Arm
from loadgen.study.series.campaign.campaign_file import CampaignFile, QualityTable
from loadgen.study.series.campaign.campaign_store import CampaignStore
from loadgen.study.series.point_runs import PointServers, do_on_server
from loadgen.study.series.series_store import StoreError, create_directory, list_names


class QualityKind(StrEnum):
    """What a task does on an arm's server."""

    SAMPLE = "sample"  # the reference samples answers, and scores them and the text
    SCORE = "score"  # a candidate scores the reference's answers and the text, or else samples its own
    SCORE_BACK = "score back"  # the reference scores a candidate's answers


_BEGUN = {
    QualityKind.SAMPLE: "sampling",
    QualityKind.SCORE: "scoring",
    QualityKind.SCORE_BACK: "scoring its answers by the reference",
}


class QualityTask(msgspec.Struct, frozen=True):
    """A task of one arm's quality; the rest is of one that is done."""

    kind: QualityKind
    arm: str
    tokens: int = 0  # for how many it was done
    seconds: float = 0.0
    answered: bool = False  # the candidate has sampled


class QualityState(msgspec.Struct, frozen=True):
    """How far the quality of a campaign's arms is: arms by their names, each in at most one of the sets."""

    reference: str
    arms: tuple[str, ...]
    done: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    answered: frozenset[str] = frozenset()  # candidates that cannot score, and have sampled

    def find_server(self, task: QualityTask) -> str:
        """Find the arm whose server does a task."""
        return self.reference if task.kind is QualityKind.SCORE_BACK else task.arm

    def list_tasks(self, arm: str) -> list[QualityTask]:
        """List what can be done now on an arm's server, in order; [] where nothing is left or possible."""
        over = self.done | self.failed
        if arm == self.reference:
            own = [] if arm in over else [QualityTask(QualityKind.SAMPLE, arm)]
            waiting = (other for other in self.arms if other in self.answered - over)
            return own + [QualityTask(QualityKind.SCORE_BACK, other) for other in waiting]
        if self.reference not in self.done or arm in over | self.answered:
            return []
        return [QualityTask(QualityKind.SCORE, arm)]

    def choose_arm(self) -> str | None:
        """Choose the arm whose server is started once more for its quality; None if no task is left.

        The reference is first where nothing can go on without it, and last where answers wait for it.
        """
        waits = self.reference in self.done | self.failed
        order = sorted(self.arms, key=lambda arm: (arm == self.reference) == waits)
        return next((arm for arm in order if self.list_tasks(arm)), None)

    def finish(self, arm: str) -> QualityState:
        """Return the state after an arm's quality was found."""
        return replace(self, done=self.done | {arm})


def plan_tasks(state: QualityState, starts: Sequence[str]) -> Iterator[tuple[int | None, QualityTask]]:
    """Yield every task that is left, in order, with its start's number among `starts`, from 0.

    `starts` are the arms whose servers are started for their load; None is one more start, for the quality
    alone. Every candidate is taken to be able to score.
    """
    for number, arm in enumerate(starts):
        while tasks := state.list_tasks(arm):
            yield number, tasks[0]
            state = state.finish(tasks[0].arm)
    while (chosen := state.choose_arm()) is not None:
        for task in state.list_tasks(chosen):
            yield None, task
            state = state.finish(task.arm)


TASKS = "tasks.json"
_MOST_BYTES = 16 << 20


class QualityStore:
    """The `quality` folder in a campaign's directory; what it writes raises StoreError.

    reference.jsonl.gz     what the reference has sampled and scored, as `loadgen quality --save` writes it
    <arm>.jsonl.gz         the scores of an arm, or its own answers
    <arm>-back.jsonl.gz    the reference's scores of these
    <arm>.json             the arm's quality, once it is known
    failed/<arm>.json      why it is not: {"arm", "reason", "at"}
    tasks.json             the tasks that are done, in order, and their seconds
    """

    def __init__(self, store: CampaignStore) -> None:
        self.store, self.directory = store, store.directory / QUALITY
        self.reference = self.directory / REFERENCE_FILE

    def read_state(
        self, table: QualityTable, arms: Sequence[Arm], reference: Arm, retry_failed: bool
    ) -> QualityState:
        """Read how far the quality of these arms is; with `retry_failed` none has failed.

        What was measured with fewer tokens than the table has is not done.
        """
        names = {arm.name: name_arm(arm) for arm in (*arms, reference)}
        done = set[str]()
        for name, own in names.items():
            found = read_quality(self.directory / f"{own}.json")
            if found is not None and (read_count(found.settings.get("tokens")) or 0) >= table.tokens:
                done.add(name)
        reasons = self.list_failed()
        failed = {name for name, own in names.items() if own in reasons}
        tasks = read_tasks(self.directory)
        answered = {task.arm for task in tasks if task.answered and task.tokens >= table.tokens}
        return QualityState(
            reference=reference.name,
            arms=tuple(arm.name for arm in arms),
            done=frozenset(done),
            failed=frozenset() if retry_failed else frozenset(failed - done),
            answered=frozenset(answered & set(names)),
        )

    def list_failed(self) -> set[str]:
        """List the ids of the arms with a reason in `failed`."""
        return list_names(self.directory / FAILED, ".json")

    def keep(self, arm: Arm, quality: Quality) -> None:
        """Write an arm's quality, and remove why it failed before, if it did."""
        path = self.directory / f"{name_arm(arm)}.json"
        self.store.replace(path, quality.model_dump(mode="json"))
        with self.store.writing():
            (self.directory / FAILED / path.name).unlink(missing_ok=True)

    def fail(self, arm: Arm, reason: str, at: datetime) -> None:
        """Write why and when a task of an arm's quality failed."""
        place = self.directory / FAILED / f"{name_arm(arm)}.json"
        with self.store.writing():
            create_directory(place.parent)
        self.store.replace(place, {"arm": arm.name, "reason": reason, "at": at.isoformat()})

    def note(self, task: QualityTask) -> None:
        """Append a task that is done to `tasks.json`."""
        rows = [*read_tasks(self.directory), task]
        self.store.replace(self.directory / TASKS, msgspec.to_builtins(rows))


def read_tasks(directory: Path) -> list[QualityTask]:
    """Read the tasks that a quality folder's `tasks.json` has; [] where it is missing or damaged."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        raw = read_file_bytes(directory / TASKS, _MOST_BYTES)
        return [task for task in msgspec.json.decode(raw, type=list[QualityTask]) if task.tokens > 0]
    return []


def name_arm(arm: Arm) -> str:
    """Return an arm's id, by which its files are named."""
    return make_arm_id(arm.checkpoint, arm.server)


_ANSWERED = "it cannot score a prompt, and has sampled: the reference will score"


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
    measuring: ServerMeasuring
    say: Callable[[str], None] = print

    def measure_all(self, arm: Arm, servers: PointServers) -> None:
        """Do what can be done on the arm's server, which is reached or started for it if it is not up.

        A task that fails is stored with its reason. Raises StoreError, and KeyboardInterrupt on a signal.
        """
        while tasks := self.state.list_tasks(arm.name):
            task, began_ns = tasks[0], clock.now_ns()
            of = self.arms[task.arm]
            with self.store.store.writing():
                create_directory(self.store.directory)
            self.say(f"quality, {task.arm}: {_BEGUN[task.kind]}")
            try:
                found = do_on_server(servers, arm.profiles[0], partial(self._do, task))
            except StoreError:
                raise
            except LoadgenError as error:
                self.state = replace(self.state, failed=self.state.failed | {task.arm})
                self.store.fail(of, str(error), read_wall_clock())
                self.say(f"quality, {task.arm}: FAILED: {error.summary}")
                continue
            seconds = (clock.now_ns() - began_ns) / 1e9
            if found is not None:
                settings = {**found.settings, "tokens": self.table.tokens}
                self.store.keep(of, found.model_copy(update={"settings": settings}))
                self.state = self.state.finish(task.arm)
            else:
                self.state = replace(self.state, answered=self.state.answered | {task.arm})
            self.store.note(QualityTask(task.kind, task.arm, self.table.tokens, seconds, found is None))
            shown = _ANSWERED if found is None else arm_qualities.describe_quality(found, self.table.margin)
            if found is not None and task.kind is QualityKind.SAMPLE:
                floor = "unknown" if found.noise_floor is None else format_spread(found.noise_floor)
                shown = f"{self.table.tokens:,} tokens sampled; noise floor {floor} nats a token"
            self.say(f"quality, {task.arm}: {shown}")

    def _do(self, task: QualityTask, session: Session) -> Quality | None:
        arm, store = self.arms[task.arm], self.store
        scores = store.directory / f"{name_arm(arm)}{SCORES}"
        if task.kind is QualityKind.SAMPLE:
            return self.measuring.sample_reference(session, store.reference)
        if task.kind is QualityKind.SCORE:
            return self.measuring.score_reference(session, store.reference, scores)
        back = store.directory / f"{name_arm(arm)}{BACK}"
        return self.measuring.score_back(session, store.reference, scores, back)
