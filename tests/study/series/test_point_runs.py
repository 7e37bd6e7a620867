"""The varied flags of a series' server, and the command that begins it again."""

from __future__ import annotations

import pytest

from builders.loops import loop_over, read_tables
from loadgen.base.errors import UsageError
from loadgen.settings.validation import ServerSettings
from loadgen.study.series.point_runs import (
    overlay_settings,
)
from loadgen.study.series.series_store import strip_resume

TABLES = read_tables("point_runs")


@loop_over(("serve", "expected"), TABLES["flags"])
def test_a_varied_flag_is_a_setting_of_ours_or_the_engines(
    serve: dict[str, str], expected: dict[str, object]
) -> None:
    asked = ServerSettings(arguments=("--a",))
    found, before = overlay_settings(asked, serve).model_dump(mode="json"), asked.model_dump(mode="json")
    assert found == before | expected


@loop_over(("serve", "message"), TABLES["refused"])
def test_a_varied_flag_that_is_not_valid_is_refused(serve: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        overlay_settings(ServerSettings(), serve)


@loop_over(("words", "expected"), TABLES["commands"])
def test_a_series_is_begun_again_and_not_resumed(words: str, expected: str) -> None:
    assert strip_resume(words.split()) == expected.split()
