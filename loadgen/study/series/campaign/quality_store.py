"""Quality store: the folder of a campaign with the quality of its arms; files are whole, or appended to."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from loadgen.base.untrusted import read_count, read_file_bytes
from loadgen.features.quality.quality_record import Quality
from loadgen.study.arm_qualities import FAILED, QUALITY, make_arm_id, read_quality
from loadgen.study.series.campaign.arm_scores import BACK, REFERENCE_FILE, SCORES
from loadgen.study.series.campaign.arms import Arm
from loadgen.study.series.campaign.campaign_file import QualityTable
from loadgen.study.series.campaign.campaign_store import CampaignStore
from loadgen.study.series.campaign.quality_order import QualityKind, QualityState
from loadgen.study.series.series_store import create_directory, list_names

TASKS = "tasks.json"
_MOST_BYTES = 16 << 20


class FinishedTask(msgspec.Struct, frozen=True):
    """A task that is done: for how many tokens, and its seconds; `answered`: the candidate has sampled."""

    kind: QualityKind
    arm: str
    tokens: int
    seconds: float
    answered: bool = False


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

    def create(self) -> None:
        """Create the folder if it is missing."""
        with self.store.writing():
            create_directory(self.directory)

    def find_scores(self, arm: Arm) -> Path:
        """Return the path of the file with an arm's scores, or its own answers."""
        return self.directory / f"{name_arm(arm)}{SCORES}"

    def find_back(self, arm: Arm) -> Path:
        """Return the path of the file with the reference's scores of an arm's answers."""
        return self.directory / f"{name_arm(arm)}{BACK}"

    def read_state(
        self, table: QualityTable, arms: Sequence[Arm], reference: Arm, retry_failed: bool
    ) -> QualityState:
        """Read how far the quality of these arms is; with `retry_failed` none has failed.

        What was measured with fewer tokens than the table has is not done.
        """
        names = {arm.name: name_arm(arm) for arm in (*arms, reference)}
        done = {name for name, own in names.items() if self._read_tokens(own) >= table.tokens}
        reasons = self.list_failed()
        failed = {name for name, own in names.items() if own in reasons}
        tasks = self.read_tasks()
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
        return {name.removesuffix(".json") for name in list_names(self.directory / FAILED, ".json")}

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

    def _read_tokens(self, name: str) -> int:
        """Read for how many tokens the quality of the arm of an id was measured; -1 without one."""
        found = read_quality(self.directory / f"{name}.json")
        return -1 if found is None else read_count(found.settings.get("tokens")) or 0

    def note(self, task: FinishedTask) -> None:
        """Append a task that is done to `tasks.json`."""
        rows = [*self.read_tasks(), task]
        self.store.replace(self.directory / TASKS, msgspec.to_builtins(rows))

    def read_tasks(self) -> list[FinishedTask]:
        """Read the tasks of `tasks.json`; [] where it is missing or damaged."""
        return read_tasks(self.directory)


def read_tasks(directory: Path) -> list[FinishedTask]:
    """Read the tasks that a quality folder's `tasks.json` has; [] where it is missing or damaged."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        raw = read_file_bytes(directory / TASKS, _MOST_BYTES)
        return msgspec.json.decode(raw, type=list[FinishedTask])
    return []


def name_arm(arm: Arm) -> str:
    """Return an arm's id, by which its files are named."""
    return make_arm_id(arm.checkpoint, arm.server)
