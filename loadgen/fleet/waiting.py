"""Waiting: answers of Ray, waited for in slices, since a signal inside one of its calls loses its number."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from loadgen.base import clock

_SOON_NS, _SOON_S, _LATER_S = 20_000_000, 0.0002, 0.02


def wait_for_answers(
    ray: Any, refs: Sequence[Any], within_s: float, turn: Callable[[], None], every: bool
) -> list[Any]:
    """Wait for Ray's answers: the references that have one, all of them if `every`, else the first.

    Returns what there is when the time is over. `turn` is called meanwhile, and may raise.
    """
    began_ns = clock.now_ns()
    while True:
        answered, _ = ray.wait(list(refs), num_returns=len(refs), timeout=0)
        waited_ns = clock.now_ns() - began_ns
        if len(answered) >= (len(refs) if every else 1) or waited_ns >= within_s * 1e9:
            return list(answered)
        turn()
        time.sleep(_SOON_S if waited_ns < _SOON_NS else _LATER_S)


def read_last_line(error: Exception) -> str:
    """Read the message of Ray's error, without its trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
