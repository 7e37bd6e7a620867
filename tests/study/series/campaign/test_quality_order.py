"""The quality of arms is measured where servers are up anyway, and nothing waits for what cannot come."""

from __future__ import annotations

from builders.loops import loop_over
from loadgen.study.series.campaign.quality_cells import QualityState, plan_tasks

ABC = ("A", "B", "C")
ORDERS: list[tuple[QualityState, tuple[str, ...], list[str]]] = [
    # The reference is first: the others score while they are up.
    (QualityState("A", ABC), ABC, ["0 sample A", "1 score B", "2 score C"]),
    # It is last in the first repeat, and first in the second.
    (QualityState("C", ABC), (*ABC, *ABC[::-1]), ["2 sample C", "4 score B", "5 score A"]),
    # One start each: those before the reference are started once more.
    (QualityState("C", ABC), ABC, ["2 sample C", "None score A", "None score B"]),
    # Nothing is up for its load any more.
    (QualityState("C", ABC), (), ["None sample C", "None score A", "None score B"]),
    (QualityState("A", ABC, done=frozenset("AB")), ABC, ["2 score C"]),
    # What cannot score has sampled: the reference scores, on its next start or one more.
    (QualityState("A", ABC, frozenset("AB"), answered=frozenset("C")), ("C", "A"), ["1 score back C"]),
    (QualityState("A", ABC, frozenset("AB"), answered=frozenset("C")), (), ["None score back C"]),
    (
        QualityState("A", ABC, frozenset("A"), answered=frozenset("C")),
        (),
        ["None score B", "None score back C"],
    ),
    # Without a reference nothing can be held to it; a candidate that failed costs itself alone.
    (QualityState("A", ABC, failed=frozenset("A")), ABC, []),
    (QualityState("A", ABC, failed=frozenset("B")), ABC, ["0 sample A", "2 score C"]),
    (QualityState("A", ABC, frozenset("A"), frozenset("C"), frozenset("C")), ABC, ["1 score B"]),
    # --only without the reference: what it has sampled earlier is enough.
    (QualityState("A", ("B",)), ("B",), []),
    (QualityState("A", ("B",), done=frozenset("A")), ("B",), ["0 score B"]),
]  # fmt: skip


@loop_over(("state", "starts", "tasks"), ORDERS)
def test_tasks_are_done_on_the_first_server_that_can(
    state: QualityState, starts: tuple[str, ...], tasks: list[str]
) -> None:
    assert [f"{number} {task.kind} {task.arm}" for number, task in plan_tasks(state, starts)] == tasks


def test_what_is_left_is_neither_done_nor_failed() -> None:
    state = QualityState("A", ABC).finish("A").answer("B").fail("C")
    assert state.left == ("B",)
    assert state.finish("B").left == ()
