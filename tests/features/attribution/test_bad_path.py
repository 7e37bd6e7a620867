"""A bad path: the doubts that a run over it has, and whose its waits are said to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.impaired_path import SERVER, ImpairedPath, Impairment
from benchmarks.harness.process import CouldNotRun
from benchmarks.harness.stalled_run import Ends, Load, run_stalled
from builders.loops import loop_over
from fakes.rings import needs_ring
from loadgen.features.attribution.attribution import IMPAIRED, attribute_run
from loadgen.features.attribution.explain_command import explain_run
from loadgen.report.run_directory import Result

pytestmark = [pytest.mark.whole, needs_ring]
BAD = Impairment(50, jitter_ms=20, overtaking=0.25, doubled=0.05, loss=0.01, resent=0.01, bare=True)
FAR = Impairment(50)


_TRIES = 5


def run_over(impairment: Impairment, transport: str, place: Path) -> tuple[Result, ImpairedPath]:
    """A run over a path, and that path; skips where there can be none."""
    load = Load(requests=60, rate=15, tokens=60, step_ms=20, flags=("--transport", transport))
    place.mkdir()
    try:
        with ImpairedPath(impairment) as path:
            ends = Ends(path.start_server, path.start_client, SERVER)
            result = run_stalled(place, [], load, ends=ends).result
    except CouldNotRun as error:
        pytest.skip(str(error))
    return result, path


def was_held_up(path: ImpairedPath) -> bool:
    """Whether a busy machine held so many segments up on the path that they may be the tail."""
    delay_ns = round(path.impairment.delay_ms * 1e6)
    late = [each.given_ns[0] - each.came_ns - delay_ns >= 1_000_000 for each in path.segments]
    return sum(late) >= 0.002 * len(late)


def name_network_doubts(result: Result) -> set[str]:
    """The codes of the doubts about the network."""
    codes = (finding.rule.code for finding in result.verdict.findings)
    return {code for code in codes if code.startswith("network-")}


def explain(result: Result) -> str:
    """The explanation, on one line."""
    return " ".join(" ".join(explain_run(result)).split())


def test_the_ring_blames_a_bad_path(tmp_path: Path) -> None:
    result, _ = run_over(BAD, "ring", tmp_path / "run")
    assert name_network_doubts(result) == {"network-lossy", "network-in-tail"}
    found = result.derive(attribute_run)
    assert sum(map(found.gaps.share, IMPAIRED)) > 0.3
    assert {tail.share("http") for tail in (found.gaps, found.ttft)} == {0}
    assert "find what loses segments on the way from the server" in explain(result)


def test_the_wire_blames_no_one_for_a_bad_path(tmp_path: Path) -> None:
    """It counts what was lost or overtaken, but not the time that this took: that is unknown."""
    result, _ = run_over(BAD, "wire", tmp_path / "run")
    assert name_network_doubts(result) == {"network-lossy"}
    found = result.derive(attribute_run)
    for waits in (found.gaps, found.ttft):
        assert sum(map(waits.share, ("http", *IMPAIRED))) == 0
        assert waits.share("unknown") > 0.2
    assert "--transport ring: it shows the network's part of each wait" in explain(result)


@loop_over("transport", ["ring", "wire"])
def test_a_path_that_is_only_long_is_in_no_doubt(transport: str, tmp_path: Path) -> None:
    """The doubt is true where a busy machine held the path's segments up: then another run is made."""
    for attempt in range(_TRIES):
        result, path = run_over(FAR, transport, tmp_path / str(attempt))
        if not (doubts := name_network_doubts(result)):
            return
        assert doubts == {"network-in-tail"}
        assert was_held_up(path)
    pytest.skip(f"this machine held the path's segments up in each of {_TRIES} runs")
