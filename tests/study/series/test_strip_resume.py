"""The command of a run: that of a sweep or a search begins another, and never goes on with the old one."""

from __future__ import annotations

from builders.loops import loop_over
from loadgen.study.series.series_store import strip_resume


@loop_over(
    ("words", "expected"),
    [
        ("loadgen sweep --rate 1,2 --resume runs/s --seed 3", "loadgen sweep --rate 1,2 --seed 3"),
        ("loadgen sweep --resume --rate 1,2", "loadgen sweep --rate 1,2"),
        ("loadgen sweep --rate 1,2 --resume=runs/s", "loadgen sweep --rate 1,2"),
        ("loadgen limit --slo x --resume", "loadgen limit --slo x"),
        ("loadgen campaign --resume runs/c", "loadgen campaign --resume runs/c"),  # which has no other flags
        ("loadgen bench --rate 1", "loadgen bench --rate 1"),
        ("loadgen", "loadgen"),
    ],
)
def test_a_series_is_begun_again_and_not_resumed(words: str, expected: str) -> None:
    assert strip_resume(words.split()) == expected.split()
