"""Quality cells: each arm's distribution compared with the reference's, on servers that are up anyway.

The folder `quality` of a campaign's directory has:

reference.jsonl.gz     what the reference has sampled and scored, as `loadgen quality --save` writes it
<arm>.jsonl.gz         the scores of an arm, or its own answers
<arm>-back.jsonl.gz    the reference's scores of these
<arm>.json             the arm's quality, once it is known
failed/<arm>.json      why it is not: {"arm", "reason", "at"}
tasks.json             the tasks that are done, in order
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Self

import msgspec
from pydantic import Field

from loadgen.base import signals
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import LoadgenError, MeasureError, UsageError
from loadgen.base.files import expand_path
from loadgen.base.parsing import MOST_TOKENS, suggest_name
from loadgen.base.signals import StopRequest
from loadgen.base.structs import replace
from loadgen.base.text import format_count
from loadgen.base.untrusted import read_count, read_file_bytes
from loadgen.run.command.progress import Display
from loadgen.run.session import Session
from loadgen.server.exchange import ControlLoop
from loadgen.study.quality.arm_qualities import (
    BACK,
    FAILED,
    QUALITY,
    REFERENCE_FILE,
    SCORES,
    describe_quality,
    format_spread,
    judge_arm,
    make_arm_id,
    read_quality,
)
from loadgen.study.quality.probability_server import open_servers
from loadgen.study.quality.quality_record import MARGIN, Quality
from loadgen.study.quality.quality_run import QualityRun, record_reference
from loadgen.study.quality.quality_text import TOKENS, QualityPlan, read_text
from loadgen.study.quality.reference_file import GREEDY, read_reference
from loadgen.study.series.campaign.steps import Arm, CampaignStep, Name, StepTable
from loadgen.study.series.point_runs import PointServers, do_on_server
from loadgen.study.series.series_store import SeriesStore, StoreError, create_directory, list_names


class QualityKind(StrEnum):
    """What a task does on an arm's server."""

    SAMPLE = "sample"  # the reference samples answers, and scores them and the text
    SCORE = "score"  # a candidate scores the reference's answers and the text, or else samples its own
    SCORE_BACK = "score back"  # the reference scores a candidate's answers


_BEGUN = {
    QualityKind.SAMPLE: "sampling",
    QualityKind.SCORE: "scoring",
    QualityKind.SCORE_BACK: "scoring its responses by the reference",
}


class QualityTask(msgspec.Struct, frozen=True):
    """A task of one arm's quality; the rest is of one that is done."""

    kind: QualityKind
    arm: str
    tokens: int = 0  # for how many it was done
    answered: bool = False  # the candidate has sampled


class QualityState(msgspec.Struct, frozen=True):
    """How far the quality of a campaign's arms is: arms by their names, each in at most one of the sets."""

    reference: str
    arms: tuple[str, ...]
    done: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    answered: frozenset[str] = frozenset()  # candidates that cannot score, and have sampled

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


TASKS = "tasks.json"
_MOST_BYTES = 16 << 20


def read_tasks(directory: Path) -> list[QualityTask]:
    """Read the tasks that a quality folder's `tasks.json` has; [] where it is missing or damaged."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        raw = read_file_bytes(directory / TASKS, _MOST_BYTES)
        return [task for task in msgspec.json.decode(raw, type=list[QualityTask]) if task.tokens > 0]
    return []


def read_state(
    campaign: Path, table: QualityTable, arms: Sequence[Arm], reference: Arm, retry_failed: bool
) -> QualityState:
    """Read how far the quality of arms is in a campaign's directory; with `retry_failed` none has failed.

    What was measured with fewer tokens than the table has is not done.
    """
    directory, ids = campaign / QUALITY, {arm.name: name_arm(arm) for arm in (*arms, reference)}
    found = {name: read_quality(directory / f"{own}.json") for name, own in ids.items()}
    done = {
        name
        for name, quality in found.items()
        if quality is not None and (read_count(quality.settings.get("tokens")) or 0) >= table.tokens
    }
    reasons = set[str]() if retry_failed else list_names(directory / FAILED, ".json")
    tasks = read_tasks(directory)
    answered = {task.arm for task in tasks if task.answered and task.tokens >= table.tokens}
    return QualityState(
        reference=reference.name,
        arms=tuple(arm.name for arm in arms),
        done=frozenset(done),
        failed=frozenset({name for name, own in ids.items() if own in reasons} - done),
        answered=frozenset(answered & set(ids)),
    )


def name_arm(arm: Arm) -> str:
    """Return an arm's id, by which its files are named."""
    return make_arm_id(arm.checkpoint, arm.server)


class QualityTable(StepTable, frozen=True):
    """`[quality]`: each arm's distribution is compared with the reference's, as by `loadgen quality`."""

    decides = frozenset({"reference", "text", "greedy"})  # more tokens, or another margin, go on
    reference: Name  # a checkpoint, or "checkpoint on server"
    tokens: Annotated[int, Field(ge=100, le=10_000_000)] = TOKENS  # that the reference samples
    margin: Annotated[float, Field(gt=0, le=100)] = MARGIN  # nats a token, below which two are the same
    greedy: bool = False  # greedy answers are compared
    text: str = ""  # a file, for agreement and perplexity; "": the one that ships

    def read_beside(self, directory: Path) -> Self:
        """Find the text from the campaign's directory, and read it; raises UsageError."""
        if not self.text:
            return self
        text = directory / expand_path(self.text)
        read_text(text)
        return self.model_copy(update={"text": str(text)})

    def check(self, every: Sequence[Arm]) -> None:
        """Raise UsageError where the reference is none of the arms, or two arms would be one file."""
        known = list(dict.fromkeys(name for arm in every for name in (arm.checkpoint, arm.name)))
        if self.reference not in known:
            near = suggest_name(self.reference, known)
            raise UsageError(f"reference = {self.reference!r}: no such checkpoint{near}")
        names: dict[str, str] = {}
        for arm in every:
            if (other := names.setdefault(name_arm(arm), arm.name)) != arm.name:
                raise UsageError(f"{other!r} and {arm.name!r} would be one file: rename one")

    def begin(
        self,
        store: SeriesStore,
        arms: Sequence[Arm],
        every: Sequence[Arm],
        retry_failed: bool,
        display: Display,
    ) -> QualityCells:
        """Read how far it is; the reference is the first arm of that name or checkpoint."""
        reference = next(arm for arm in every if self.reference in (arm.name, arm.checkpoint))
        state = read_state(store.directory, self, arms, reference, retry_failed)
        return QualityCells(store, self, {arm.name: arm for arm in (*arms, reference)}, state, display)


@dataclass
class QualityCells(CampaignStep):
    """The quality of a campaign's arms that is left, as `Execution` has the cells of their load."""

    name = "quality"
    store: SeriesStore
    table: QualityTable
    arms: Mapping[str, Arm]  # by their names
    state: QualityState
    display: Display

    @property
    def directory(self) -> Path:
        """The campaign's quality folder."""
        return self.store.directory / QUALITY

    def describe_left(self) -> str:
        """Describe the quality in a line: tokens, reference, margin, and how many arms are left."""
        state, table = self.state, self.table
        left = len(set(state.arms) - state.done - state.failed)
        words = f"{left} of {format_count(len(state.arms), 'arm')} left"
        if left and state.choose_arm() is None:
            words = f"nothing can be measured: {state.reference} has failed, or is not among --only"
        margin = f"the same within {table.margin:g} nats a token"
        return f"{table.tokens:,} tokens of {state.reference}, {margin}; {words}"

    def choose_arm(self) -> Arm | None:
        chosen = self.state.choose_arm()
        return None if chosen is None else self.arms[chosen]

    def measure_all(self, arm: Arm, servers: PointServers) -> None:
        """Do what can be done on the arm's server; a task that fails is stored with its reason."""
        while tasks := self.state.list_tasks(arm.name):
            task = tasks[0]
            with self.store.writing():
                create_directory(self.directory)
            servers.say(f"quality, {task.arm}: {_BEGUN[task.kind]}")
            name = f"{name_arm(self.arms[task.arm])}.json"
            try:
                found = do_on_server(servers, arm.profiles[0], partial(self.measure_task, task))
            except StoreError:
                raise
            except LoadgenError as error:
                self.state = replace(self.state, failed=self.state.failed | {task.arm})
                reason = {"arm": task.arm, "reason": str(error), "at": read_wall_clock().isoformat()}
                with self.store.writing():
                    create_directory(self.directory / FAILED)
                self.store.replace(self.directory / FAILED / name, reason)
                servers.say(f"quality, {task.arm}: FAILED: {error.summary}")
                continue
            if found is None:
                self.state = replace(self.state, answered=self.state.answered | {task.arm})
            else:
                self.store.replace(self.directory / name, found.model_dump(mode="json"))
                with self.store.writing():
                    (self.directory / FAILED / name).unlink(missing_ok=True)
                self.state = replace(self.state, done=self.state.done | {task.arm})
            done = QualityTask(task.kind, task.arm, self.table.tokens, found is None)
            rows = [*read_tasks(self.directory), done]
            self.store.replace(self.directory / TASKS, msgspec.to_builtins(rows))
            servers.say(f"quality, {task.arm}: {self._describe(task, found)}")

    def _describe(self, task: QualityTask, found: Quality | None) -> str:
        """Write what came of a task; `found` is None where the arm has sampled, as it cannot score."""
        if found is None:
            return "it cannot score a prompt, and has sampled: the reference will score"
        if task.kind is not QualityKind.SAMPLE:
            return describe_quality(found, self.table.margin)
        floor = "unknown" if found.noise_floor is None else format_spread(found.noise_floor)
        return f"{self.table.tokens:,} tokens sampled; noise floor {floor} nats a token"

    def measure_task(self, task: QualityTask, session: Session) -> Quality | None:
        """Do a task on the server of a session, into files which go on where they stand.

        Return the arm's quality; None where it cannot score, and has sampled. A signal ends it where it next
        waits for the server, and raises Stopped; a second one at once.
        """
        stop = StopRequest()
        access = replace(session.access, loop=ControlLoop(stop))
        with signals.defer_stop(signals.SIGNALS, stop.request_stop):
            try:
                is_answered = self._fill_files(task, replace(session, access=access))
            finally:
                self.display.close()
                stop.poll()
        if is_answered:
            return None
        found = judge_arm(self.directory, name_arm(self.arms[task.arm]))
        return found.model_copy(update={"settings": {**found.settings, "tokens": self.table.tokens}})

    def _fill_files(self, task: QualityTask, session: Session) -> bool:
        """Do a task; return whether the arm cannot score and has sampled instead. Raises MeasureError."""
        reference, arm = self.directory / REFERENCE_FILE, name_arm(self.arms[task.arm])
        own, back = self.directory / f"{arm}{SCORES}", self.directory / f"{arm}{BACK}"
        kept, greedy = None, self.table.greedy
        if task.kind is not QualityKind.SAMPLE:
            kept = read_reference(own if task.kind is QualityKind.SCORE_BACK else reference)
            greedy = bool(kept.header.settings.get(GREEDY))
        text = read_text(Path(self.table.text) if self.table.text else None)
        plan, show = QualityPlan(text, self.table.tokens), self.display.draw
        with self.display.waiting(f"trying {session.access.shown_url}"):
            (server,), why = open_servers([session], plan.chat, greedy)
        if kept is None:
            record_reference(server, plan, reference, show)
            return False
        if task.kind is QualityKind.SCORE and not server.scores:
            record_reference(server, plan, own, show)
            return True
        if not server.scores:
            raise MeasureError(f"neither {server.engine} nor {kept.header.engine} can score a prompt")
        every = replace(plan, tokens=MOST_TOKENS)  # all answers of the file are to be scored
        path, reasons = back if task.kind is QualityKind.SCORE_BACK else own, {"kl": why} if why else {}
        QualityRun(server, every, kept=kept, show=show, scores_path=path, why=reasons).measure()
        return False
