"""Quality order: what is measured of each arm's quality, and on which start of its server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec.structs import replace


class QualityKind(StrEnum):
    """What a task does on an arm's server."""

    SAMPLE = "sample"  # the reference samples answers, and scores them and the text
    SCORE = "score"  # a candidate scores the reference's answers and the text, or else samples its own
    SCORE_BACK = "score back"  # the reference scores a candidate's answers


class KindWords(NamedTuple):
    """What a server does in a task of one kind, in words."""

    does: str  # of a plan; before the arm where that is another
    begun: str  # of its line when it begins


WORDS = {
    QualityKind.SAMPLE: KindWords("samples", "sampling"),
    QualityKind.SCORE: KindWords("scores", "scoring"),
    QualityKind.SCORE_BACK: KindWords("scores the answers of", "scoring its answers by the reference"),
}


class QualityTask(msgspec.Struct, frozen=True):
    """A task of one arm's quality, and the arm whose server does it."""

    kind: QualityKind
    arm: str  # whose quality it is
    on: str  # whose server does it


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
            own = [] if arm in over else [QualityTask(QualityKind.SAMPLE, arm, arm)]
            waiting = (other for other in self.arms if other in self.answered - over)
            return own + [QualityTask(QualityKind.SCORE_BACK, other, arm) for other in waiting]
        if self.reference not in self.done or arm in over | self.answered:
            return []
        return [QualityTask(QualityKind.SCORE, arm, arm)]

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

    def answer(self, arm: str) -> QualityState:
        """Return the state after a candidate that cannot score has sampled."""
        return replace(self, answered=self.answered | {arm})

    def fail(self, arm: str) -> QualityState:
        """Return the state after a task of an arm's quality has failed."""
        return replace(self, failed=self.failed | {arm})

    @property
    def left(self) -> tuple[str, ...]:
        """The arms whose quality is neither there nor failed."""
        return tuple(arm for arm in self.arms if arm not in self.done | self.failed)


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
