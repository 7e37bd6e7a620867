"""The text that is scored: the one that is shipped, or the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.base.errors import UsageError
from loadgen.features.quality.quality_text import read_text


def test_the_shipped_text_has_languages_and_code() -> None:
    text = read_text()
    assert 6_000 <= len(text.encode()) <= 10_240
    for word in (
        "harbour",
        "Bahnhof",
        "marché",
        "río",
        "银杏",
        "図書館",
        "озеро",
        "def find",
        "#include",
        "SELECT",
    ):
        assert word in text


def test_another_text_is_read_and_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("ä" * 1000, "utf-8")
    assert read_text(path) == "ä" * 1000
    cases = {b"short": "has 5 bytes: give 2,000 to 16,777,216", b"\xff" * 3000: "is not UTF-8"}
    for data, message in cases.items():
        path.write_bytes(data)
        with pytest.raises(UsageError, match=message):
            read_text(path)
    with pytest.raises(UsageError, match="No such file"):
        read_text(tmp_path / "none")
