"""A row of a feature stands by a row of the core; those of one place in the order of the features."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from loadgen import features
from loadgen.base.errors import LoadgenError
from loadgen.features import combine_rows


def test_rows_stand_before_and_after_those_that_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    own: list[Any] = [
        SimpleNamespace(DOUBTS={"after b": ("b1", "b2"), "before a": ("a0",)}),
        SimpleNamespace(DOUBTS={"after b": ("b3",), "before a": ("a1",)}),
    ]
    monkeypatch.setattr(features, "import_rows", lambda table: own)
    assert combine_rows("abc", "doubts", str) == ("a0", "a1", "a", "b", "b1", "b2", "b3", "c")


@pytest.mark.parametrize("place", ["after d", "a", "beside a", "before "])
def test_a_row_without_its_place_in_the_core_is_an_error(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = SimpleNamespace(DOUBTS={"after a": ("a1",), place: ("x",)})
    monkeypatch.setattr(features, "import_rows", lambda table: [own])
    with pytest.raises(LoadgenError, match=f"^doubts: a feature's row is to stand {place}: name a row"):
        combine_rows("abc", "doubts", str)
