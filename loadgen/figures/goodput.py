"""Goodput: the service level objectives of a run, and which requests met all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from loadgen.base.arrays import Bool, Float64
from loadgen.base.errors import UsageError

OBJECTIVES = ("ttft", "tpot", "e2el")


def parse_goodput(pairs: Iterable[str]) -> dict[str, float]:
    """The objectives of `--goodput ttft:500 tpot:50`, name → milliseconds; raises UsageError."""
    slo_ms: dict[str, float] = {}
    for pair in pairs:
        name, colon, text = pair.partition(":")
        if not colon:
            raise UsageError(f"--goodput {pair}: write NAME:MILLISECONDS, for example ttft:500")
        if name not in OBJECTIVES:
            raise UsageError(
                f"--goodput {pair}: unknown objective {name!r}: choose from {', '.join(OBJECTIVES)}"
            )
        if name in slo_ms:
            raise UsageError(f"--goodput: {name} is given twice; give it once")
        try:
            value = float(text)
        except ValueError:
            raise UsageError(f"--goodput {pair}: {text!r} is not a number of milliseconds") from None
        if not math.isfinite(value) or value < 0:
            raise UsageError(f"--goodput {pair}: give a finite number of milliseconds, 0 or more")
        slo_ms[name] = value
    return slo_ms


def meets(slo_ms: Mapping[str, float], values_ms: Mapping[str, Float64]) -> Bool:
    """Which requests are at or under every objective, bool[requests]; NaN meets none.

    `values_ms[name]` is float64[requests] for each of `OBJECTIVES`.
    """
    within: Bool = np.all([values_ms[name] <= limit_ms for name, limit_ms in slo_ms.items()], axis=0)
    return within
