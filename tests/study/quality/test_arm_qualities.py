"""Qualities of a campaign's arms are those of their own files; what is damaged has the reason."""

from __future__ import annotations

from pathlib import Path

from builders.made_qualities import quality
from loadgen.facts.run_facts import Cell
from loadgen.study.quality.arm_qualities import (
    find_run_quality,
)
from loadgen.study.quality.quality_record import Quality


def stored(directory: Path, name: str, text: str) -> None:
    (directory / "quality").mkdir(exist_ok=True)
    (directory / "quality" / f"{name}-vllm-0.32.json").write_text(text, "utf-8")


def test_a_run_has_the_quality_of_its_arm_or_its_own(tmp_path: Path) -> None:
    arm, own = Quality(reference="a", candidate="b"), Quality(reference="a", candidate="c")
    cell = Cell(campaign="c", checkpoint="fp8", server="vllm 0.32", profile="p", repeat=0, start="r0")
    stored(tmp_path, "fp8", arm.model_dump_json())
    places = [tmp_path / "cells" / "r0-fp8", tmp_path / "cells" / "r0-fp8" / "20260101-000000-p"]
    alone = tmp_path / "alone"
    assert [find_run_quality(place, cell) for place in places] == [arm, arm]
    assert find_run_quality(places[0], None) is None
    assert find_run_quality(alone, cell) is None
    alone.mkdir()
    (alone / "quality.json").write_text(own.model_dump_json(), "utf-8")
    assert find_run_quality(alone, None) == own
    endless = quality(1e-3, 1e-4).model_dump_json().replace('"mean":0.941', '"mean":1e999')
    for damaged in ("{}", "[" * 100_000, endless):
        (alone / "quality.json").write_text(damaged, "utf-8")
        found = find_run_quality(alone, None)
        assert found is not None
        assert (found.kl, found.why["kl"]) == (
            None,
            "quality.json is damaged: measure it again with `loadgen quality --json`",
        )
