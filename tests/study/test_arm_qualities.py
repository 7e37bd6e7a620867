"""Qualities of a campaign's arms are read by the arms' names; what is damaged is left out."""

from __future__ import annotations

import json
from pathlib import Path

from loadgen.features.quality.quality_record import Quality
from loadgen.study.arm_qualities import make_arm_id, read_qualities

ARMS = [{"checkpoint": name, "server": "vllm 0.32"} for name in ("bf16", "fp8", "int4", "absent")]


def stored(directory: Path, name: str, text: str) -> None:
    (directory / "quality").mkdir(exist_ok=True)
    (directory / "quality" / f"{name}-vllm-0.32.json").write_text(text, "utf-8")


def test_each_arm_has_the_quality_of_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "campaign.json").write_text(json.dumps({"arms": ARMS}), "utf-8")
    own, other = Quality(reference="a", candidate="a"), Quality(reference="a", candidate="b")
    stored(tmp_path, "bf16", own.model_dump_json())
    stored(tmp_path, "fp8", other.model_dump_json())
    stored(tmp_path, "int4", other.model_dump_json()[:-5])
    assert read_qualities(tmp_path) == {"bf16 on vllm 0.32": own, "fp8 on vllm 0.32": other}
    assert make_arm_id("bf16", "vllm 0.32") == "bf16-vllm-0.32"


def test_a_place_without_a_campaign_has_no_qualities(tmp_path: Path) -> None:
    assert read_qualities(tmp_path) == {}
    (tmp_path / "campaign.json").write_text("[" * 100_000, "utf-8")
    assert read_qualities(tmp_path) == {}
    (tmp_path / "campaign.json").write_text('{"arms": [5, {}]}', "utf-8")
    assert read_qualities(tmp_path) == {}
