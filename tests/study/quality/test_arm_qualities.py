"""Qualities of a campaign's arms are those of their own files; what is damaged has the reason."""

from __future__ import annotations

from pathlib import Path

from builders.made_qualities import quality
from loadgen.facts.run_facts import Cell
from loadgen.study.quality.arm_qualities import (
    find_run_quality,
    make_arm_id,
    read_arm_quality,
)
from loadgen.study.quality.quality_record import Quality


def stored(directory: Path, name: str, text: str) -> None:
    (directory / "quality").mkdir(exist_ok=True)
    (directory / "quality" / f"{name}-vllm-0.32.json").write_text(text, "utf-8")


def test_each_arm_has_the_quality_of_its_own_file(tmp_path: Path) -> None:
    own, other = Quality(reference="a", candidate="a"), Quality(reference="a", candidate="b")
    stored(tmp_path, "bf16", own.model_dump_json())
    stored(tmp_path, "fp8", other.model_dump_json())
    stored(tmp_path, "int4", other.model_dump_json()[:-5])
    names = ("bf16", "fp8", "absent", "int4")
    *found, damaged = (read_arm_quality(tmp_path, name, "vllm 0.32") for name in names)
    assert found == [own, other, None]
    assert damaged is not None
    assert (damaged.kl, damaged.why["kl"]) == (
        None,
        "quality/int4-vllm-0.32.json is damaged: `loadgen campaign --resume` measures it again",
    )
    assert make_arm_id("bf16", "vllm 0.32") == "bf16-vllm-0.32"


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
