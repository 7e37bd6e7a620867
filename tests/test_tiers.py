"""The tiers hold: what a unit test may not do fails it, and a test is of one tier."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tiers import EXAMPLES, Guard

ROOT = Path(__file__).parents[1]


def test_a_unit_test_may_not_sleep() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"is a unit test and sleeps for 0\.02 s"):
        time.sleep(0.02)


def test_a_unit_test_may_not_start_a_process() -> None:
    with pytest.raises(pytest.fail.Exception, match="is a unit test and starts a process"):
        subprocess.run([sys.executable, "--version"], check=True)


def test_all_else_is_left_alone() -> None:
    guard = Guard()
    guard.audit("os.fork", ())
    guard.test = "test_x"
    guard.audit("open", ("file", "r"))
    guard.sleep(0.001)
    assert guard.test == "test_x"


_MADE = """
import time
import pytest
from hypothesis import given, settings, strategies as st

def test_that_sleeps():
    time.sleep(1)

@pytest.mark.whole
def test_that_may_sleep():
    time.sleep(0.02)

@given(st.integers())
def test_a_property(number):
    print("examples:", settings.default.max_examples)
"""


def ran(tmp_path: Path, *words: str, more: str = "") -> str:
    """What pytest prints of the made tests, in the order that it ran them."""
    (tmp_path / "test_made.py").write_text(_MADE + more, "utf-8")
    argv = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
    argv += ["-n", "0", "-s", "-v", "-p", "tests.tiers", "--rootdir", str(tmp_path), *words, str(tmp_path)]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    return ended.stdout + ended.stderr


@pytest.mark.whole
@pytest.mark.parametrize(("words", "present", "missing"), [
    ([], ["test_that_sleeps is a unit test and sleeps", f"examples: {EXAMPLES['unit']}"], ["may_sleep"]),
    (["-m", "whole"], ["1 passed, 2 deselected"], ["test_that_sleeps is"]),
    (["-m", "long"], [f"examples: {EXAMPLES['long']}", "1 passed, 2 deselected"], ["may_sleep"]),
], ids=["unit", "whole", "long"])  # fmt: skip
def test_a_tier_runs_its_own(
    words: list[str], present: list[str], missing: list[str], tmp_path: Path
) -> None:
    out = ran(tmp_path, *words)
    assert [line for line in present if line not in out] == [], out
    assert [line for line in missing if line in out] == [], out


@pytest.mark.whole
def test_a_test_of_two_tiers_is_refused(tmp_path: Path) -> None:
    out = ran(tmp_path, more="@pytest.mark.whole\n@pytest.mark.long\ndef test_torn(): ...\n")
    assert "a test is of one tier: test_made.py::test_torn: long, whole" in out
