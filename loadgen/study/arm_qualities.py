"""Arm qualities: what a campaign has stored of each arm's quality, by the arm's name."""

from __future__ import annotations

import json
import re
from pathlib import Path

from loadgen.base.untrusted import read_file_bytes, read_list, read_mapping
from loadgen.features.quality.quality_record import Quality

QUALITY = "quality"  # the folder in a campaign's directory
_RECORD = "campaign.json"
_MOST_BYTES = 64 << 20
_DAMAGE = OSError, ValueError, RecursionError


def make_arm_id(checkpoint: str, server: str) -> str:
    """Make an arm's id from its checkpoint and server, valid as a file name: Qwen3-8B-FP8-vllm."""
    return re.sub(r"[^\w.]+", "-", f"{checkpoint}-{server}")


def read_qualities(directory: Path) -> dict[str, Quality]:
    """Read the quality of each arm of the campaign in a directory, by its name, as `fp8 on vllm`.

    An arm whose quality is not there, or cannot be read, is left out; {} where the directory has no campaign.
    """
    try:
        record = read_mapping(json.loads(read_file_bytes(directory / _RECORD, _MOST_BYTES)))
    except _DAMAGE:
        return {}
    found = {}
    for arm in map(read_mapping, read_list(record.get("arms"))):
        checkpoint, server = (str(arm.get(key)) for key in ("checkpoint", "server"))
        path = directory / QUALITY / f"{make_arm_id(checkpoint, server)}.json"
        if (quality := read_quality(path)) is not None:
            found[f"{checkpoint} on {server}"] = quality
    return found


def read_quality(path: Path) -> Quality | None:
    """Read the quality that a file has; None if there is no such file, or no quality in it."""
    try:
        return Quality.model_validate_json(read_file_bytes(path, _MOST_BYTES))
    except _DAMAGE:
        return None
