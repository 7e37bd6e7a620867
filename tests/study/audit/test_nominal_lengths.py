"""Nine tenths of the lengths that a run is named by: InferenceX's meaning of a range ratio of 0.8."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over
from builders.published_runs import loaded, run
from loadgen.study.audit.findings import compute_tolerance, find_nominal_lengths, nine_tenths
from loadgen.study.consistency.subject import AuditedRun
from loadgen.study.run_summary import Reported


def named(name: str, **load: Any) -> Reported:
    """A run by its name alone."""
    return run(name, loaded(name="", asked_input_len=None, asked_output_len=None, **load))


def sent(mean_in: float, mean_out: float, name: str = "dsr1-1k1k", n: int = 640) -> AuditedRun:
    """A run of so many requests with these mean lengths."""
    figures: dict[str, Any] = {
        "completed": n,
        "total_input_tokens": mean_in * n,
        "total_output_tokens": mean_out * n,
    }
    load = loaded(name="", asked_output_len=None, max_concurrency=64)
    return AuditedRun(run(name, load, **figures))


@loop_over(
    ("name", "lengths"),
    [
        ("1k1k", (1024.0, 1024.0)),
        ("dsr1_8k1k_fp8", (8192.0, 1024.0)),
        ("gpt-oss 1K/8K", (1024.0, 8192.0)),
        ("isl1024_osl8192", (1024.0, 8192.0)),
        ("ISL=1024, OSL=1024", (1024.0, 1024.0)),
        ("m 1024/1024", (1024.0, 1024.0)),
        ("m 8192x1024", (8192.0, 1024.0)),
        ("Qwen3-8B", None),
        ("Qwen3-32k", None),
        ("h100-2026-01-05", None),
        ("m-128x8", None),
    ],
)
def test_a_name_tells_the_lengths(name: str, lengths: tuple[float, float] | None) -> None:
    assert find_nominal_lengths(named(name)) == lengths


def test_lengths_that_were_asked_for_come_before_a_name() -> None:
    assert find_nominal_lengths(run("1k1k", loaded(asked_input_len=512, asked_output_len=64))) == (
        512.0,
        64.0,
    )


@loop_over(
    ("case", "evidence"),
    [
        pytest.param(
            sent(921.4, 922.0),
            "921.4 / 922.0 tokens in / out, 90 % and 90 % of the 1024 / 1024 that it is named by: as lengths "
            "drawn between 0.8 and 1 of these, 10 % less work",
            id="nine tenths of both",
        ),
        pytest.param(sent(7373.0, 921.0, "m 8k1k"), "7373.0 / 921.0 tokens", id="8k1k"),
        pytest.param(sent(1024.0, 1024.0), None, id="whole lengths"),
        pytest.param(sent(921.4, 1024.0), None, id="whole answers"),
        pytest.param(sent(1024.0, 922.0), None, id="whole prompts"),
        pytest.param(sent(906.0, 922.0), None, id="further off than chance"),
        pytest.param(sent(921.4, 922.0, n=40), None, id="too few requests"),
        pytest.param(sent(921.4, 922.0, "Qwen3-8B"), None, id="no name"),
    ],
)
def test_nine_tenths_are_known_by_both_means(case: AuditedRun, evidence: str | None) -> None:
    found = nine_tenths.find(case)
    assert (found or "").startswith(evidence or "")
    assert (found is None) is (evidence is None)


def test_lengths_drawn_so_are_within_the_tolerance() -> None:
    draw = np.random.default_rng(7)
    means = draw.integers(819, 1025, (1000, 640)).mean(axis=1) / 1024
    assert (np.abs(means - 0.9) <= compute_tolerance(640)).all()
