"""JSON output: one object on standard output, everything else on standard error."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from loadgen.base.errors import UsageError
from loadgen.base.printing import print_one_object, refuse_without_result


@pytest.mark.parametrize(
    ("results", "printed"),
    [([], None), ([{"a": 1}], {"a": 1}), ([{"a": 1}, {"b": 2}], {"runs": [{"a": 1}, {"b": 2}]})],
)
def test_results_are_one_object(
    capsys: pytest.CaptureFixture[str], results: list[dict[str, Any]], printed: dict[str, Any] | None
) -> None:
    with print_one_object(True) as kept:
        print("a table")
        kept += results
    out, error = capsys.readouterr()
    assert error == "a table\n"
    assert (json.loads(out) if out else None) == printed


def test_without_the_flag_nothing_is_diverted(capsys: pytest.CaptureFixture[str]) -> None:
    with print_one_object(False) as kept:
        print("a table")
        kept.append({"a": 1})
    assert capsys.readouterr() == ("a table\n", "")


def test_an_error_prints_no_object(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(act: Callable[[], None]) -> None:
        with print_one_object(True) as kept:
            kept.append({"a": 1})
            act()

    def act() -> None:
        raise UsageError("no")

    with pytest.raises(UsageError, match="no"):
        fail(act)
    assert capsys.readouterr().out == ""


def test_a_flag_that_makes_no_result_is_refused() -> None:
    refuse_without_result(False, {"--dry-run": True})
    refuse_without_result(True, {"--dry-run": False})
    with pytest.raises(UsageError, match="--json prints a result, and --dry-run makes none: leave out one"):
        refuse_without_result(True, {"--example": False, "--dry-run": True})
