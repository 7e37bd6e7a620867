"""The server that a series keeps, and its varied flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.loops import loop_over, read_tables
from loadgen.base.errors import UsageError
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import Seed
from loadgen.run.command.options import Options
from loadgen.settings.validation import ServerSettings
from loadgen.study.series.point_runs import (
    PointServers,
    measure_point,
    overlay_settings,
)
from loadgen.study.series.series_store import strip_resume

TABLES = read_tables("point_runs")
TINY = Profile(name="tiny", input_len=8, output_len=4, num_prompts=6, max_concurrency=2)


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


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_server_is_kept_until_it_is_closed(tmp_path: Path) -> None:
    servers = PointServers(
        Options(preset="instant", quiet=True), ServerSettings(), tmp_path / "servers", print
    )
    assert servers.restartable
    with servers:
        first = servers.session(TINY)
        assert servers.session(TINY) is first
        points = [measure_point(first, TINY, Seed(3, True, repeat), tmp_path / "runs") for repeat in (0, 1)]
        servers.close()
        assert measure_point(first, TINY, Seed(3, True, 2), tmp_path / "runs").server_gone
        again = servers.session(TINY)
        assert again.access.base_url != first.access.base_url
        points.append(measure_point(again, TINY, Seed(3, True, 0), tmp_path / "runs"))
    assert [(point.reason, point.signal, point.server_gone) for point in points] == [("", 0, False)] * 3
    digests = [point.run.facts.plan_digest for point in points if point.run is not None]
    assert digests[0] == digests[2] != digests[1]
    assert len(servers.starts_s) == 2


@loop_over(("words", "expected"), TABLES["commands"])
def test_a_series_is_begun_again_and_not_resumed(words: str, expected: str) -> None:
    assert strip_resume(words.split()) == expected.split()
