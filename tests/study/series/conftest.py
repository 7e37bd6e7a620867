"""Where a series is measured: in virtual time as a unit test, by processes in the whole tier."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _surroundings(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of its own, and an embedded engine that a unit test has without a process."""
    if request.node.get_closest_marker("unit") is None:
        request.getfixturevalue("ports")
        return
    request.getfixturevalue("engines")
    monkeypatch.chdir(tmp_path)
