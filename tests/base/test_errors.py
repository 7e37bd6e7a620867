"""Exit codes: of what happened, the gravest decides; every code is one of the table."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from loadgen.base.errors import FAIL_CODES, SIGNALLED, ExitCode, decide_exit_code
from loadgen.base.signals import NAMES

WORST = {"measured": False, "whole": False, "failed_on": set(FAIL_CODES), "written": False}


@pytest.mark.parametrize(
    ("happened", "code"),
    [
        ({}, ExitCode.FIGURES),
        ({"written": False}, ExitCode.UNWRITTEN),
        ({"failed_on": set(FAIL_CODES), "written": False}, ExitCode.INVALID),
        ({"failed_on": {"slo", "suspect", "failures"}}, ExitCode.FAILED_REQUESTS),
        ({"failed_on": {"slo", "suspect"}}, ExitCode.DOUBTED),
        ({"failed_on": {"slo"}, "written": False}, ExitCode.OBJECTIVE_MISSED),
        ({"whole": False, "failed_on": {"slo"}, "written": False}, ExitCode.NOTHING),
        ({"measured": False}, ExitCode.NOTHING),
        ({**WORST, "signal": signal.SIGINT}, ExitCode.INTERRUPTED),
        ({**WORST, "signal": signal.SIGTERM}, ExitCode.TERMINATED),
        ({**WORST, "signal": signal.SIGHUP}, ExitCode.HUNG_UP),
    ],
)
def test_the_first_condition_that_applies_decides_the_code(happened: dict[str, Any], code: ExitCode) -> None:
    assert decide_exit_code(**happened) is code


def test_every_signal_that_ends_a_run_has_its_own_code() -> None:
    assert {decide_exit_code(signal=number) for number in NAMES} == SIGNALLED
