"""Files: every one of another client, page and table in tests/ is read as it is stored."""

from __future__ import annotations

from typing import Any

import pytest

from builders.loops import loop_over
from builders.read_results import list_files, read_file, read_stored


def near(value: Any) -> Any:
    """The value, in which numbers may differ as another processor computes them."""
    if isinstance(value, dict):
        return {key: near(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [near(inner) for inner in value]
    return pytest.approx(value, rel=1e-9, nan_ok=True) if isinstance(value, float) else value


def test_every_file_is_stored() -> None:
    assert [*read_stored()] == list_files()


@loop_over(("name", "stored"), read_stored().items())
def test_a_file_is_read_as_it_is_stored(name: str, stored: list[Any]) -> None:
    assert read_file(name) == near(stored)
