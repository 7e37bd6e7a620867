"""A table that one test walks is walked to its end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builders.loops import loop_over


@loop_over(("number", "square"), [(1, 1), (2, 4), (3, 9)])
def test_each_row_has_fixtures_of_its_own(
    number: int,
    square: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert number**2 == square
    assert "ROW" not in os.environ
    monkeypatch.setenv("ROW", str(number))
    (tmp_path / "row").touch(exist_ok=False)
    assert capsys.readouterr().out == ""
    print("left over")


def test_every_row_that_fails_is_reported() -> None:
    seen = []

    @loop_over("number", [1, 2, pytest.param(3, id="three")])
    def check(number: int) -> None:
        seen.append(number)
        if number == 2:
            with pytest.raises(ValueError, match="never"):
                pass
        assert number != 3

    with pytest.raises(BaseExceptionGroup, match="2 of 3 rows failed") as found:
        check()
    assert seen == [1, 2, 3]
    assert [error.__notes__ for error in found.value.exceptions] == [["row 1: 2"], ["row 2: three"]]


def test_a_row_of_the_wrong_length_and_an_empty_table_are_errors() -> None:
    def test(a: int, b: int) -> None:
        raise NotImplementedError

    with pytest.raises(BaseExceptionGroup, match="1 of 1 rows failed"):
        loop_over(("a", "b"), [(1, 2, 3)])(test)()
    with pytest.raises(AssertionError, match="no rows"):
        loop_over("a", [])
    with pytest.raises(AssertionError, match="no parameters"):
        loop_over("c", [1])(test)
