"""Arm qualities: what a campaign has stored of each arm's quality, by the arm's name, and scores of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from loadgen.base.text import count_decimals
from loadgen.base.untrusted import read_file_bytes, read_line, read_mapping
from loadgen.facts.run_facts import Cell
from loadgen.study.quality.divergence import judge_contents
from loadgen.study.quality.quality_record import FIGURES, MeanInterval, Quality, judge_quality
from loadgen.study.quality.reference_file import read_reference

QUALITY = "quality"  # the folder in a campaign's directory
FAILED = "failed"  # in that folder: why an arm's quality is not known
REFERENCE_FILE = "reference.jsonl.gz"  # in a campaign's folder
SCORES, BACK = ".jsonl.gz", "-back.jsonl.gz"  # after an arm's id
_MOST_BYTES = 64 << 20
_CELLS, _DEPTH = "cells", 4  # of a campaign's runs, at most so deep: a ladder or a search has several
_DAMAGE = OSError, ValueError, RecursionError


def make_arm_id(checkpoint: str, server: str) -> str:
    """Make an arm's id from its checkpoint and server, valid as a file name: Qwen3-8B-FP8-vllm."""
    return re.sub(r"[^\w.]+", "-", f"{checkpoint}-{server}")


def judge_arm(directory: Path, arm: str, most_bytes: int | None = None) -> Quality:
    """Compute the quality of the arm of an id from the files of a campaign's quality folder.

    An arm without a file of its own is the reference. Raises UsageError of a file that cannot be read, or has
    more than `most_bytes` uncompressed.
    """
    read = [read_reference(directory / REFERENCE_FILE, most_bytes)]
    for end in (SCORES, BACK):
        if not (path := directory / f"{arm}{end}").is_file():
            break
        read.append(read_reference(path, most_bytes))
    return judge_contents(*read)


def read_quality(path: Path) -> Quality | None:
    """Read the quality in a file; None without one, or where a figure of it is no finite number."""
    try:
        found = Quality.model_validate_json(read_file_bytes(path, _MOST_BYTES))
        json.dumps(found.model_dump(), allow_nan=False)  # raises ValueError of the others
        return found
    except (*_DAMAGE, TypeError):
        return None


def read_arm_quality(campaign: Path, checkpoint: str, server: str) -> Quality | None:
    """Read an arm's quality in a campaign's directory; None where it has none.

    One that has failed, or whose file is damaged, has the reason and no figures.
    """
    name = f"{make_arm_id(checkpoint, server)}.json"
    path = campaign / QUALITY / name
    if (found := read_quality(path)) is not None:
        return found
    try:
        failure = read_mapping(json.loads(read_file_bytes(campaign / QUALITY / FAILED / name, _MOST_BYTES)))
        reason = read_line(str(failure.get("reason", "")))
    except _DAMAGE:
        if not path.is_file():
            return None
        reason = f"{QUALITY}/{name} is damaged: `loadgen campaign --resume` measures it again"
    return _make_unknown(reason)


def _make_unknown(reason: str) -> Quality:
    return Quality(reference="", candidate="", why=dict.fromkeys(FIGURES, reason))


def find_run_quality(run: Path, cell: Cell | None) -> Quality | None:
    """Find the quality of a run's server: in the run's directory, else in the campaign's of its cell.

    None if there is none; a damaged one has the reason and no figures. A run alone has it as `quality.json`,
    which `loadgen quality --json` prints.
    """
    if (own := run / f"{QUALITY}.json").is_file():
        return read_quality(own) or _make_unknown(
            f"{own.name} is damaged: measure it again with `loadgen quality --json`"
        )
    campaign = next((each.parent for each in run.parents[:_DEPTH] if each.name == _CELLS), None)
    if cell is None or campaign is None:
        return None
    return read_arm_quality(campaign, cell.checkpoint, cell.server)


def format_spread(interval: MeanInterval, scale: float = 1.0) -> str:
    """Format a mean and half its interval, × `scale`, as 0.0310 ±0.0010: that in two digits."""
    half = scale * interval.half
    decimals = count_decimals(half, 2) if half > 0 else 4
    return f"{scale * interval.mean:.{decimals}f} ±{half:.{decimals}f}"


def describe_quality(quality: Quality, margin: float) -> str:
    """Describe in a line how far a candidate is: KL and agreement, as far as known, and the verdict."""
    verdict = judge_quality(quality, margin)
    parts = [f"no KL: {quality.why.get('kl', 'the reason is not known')}"]
    if quality.kl is not None:
        parts = [f"KL {format_spread(quality.kl)} nats a token"]
    elif quality.same_answers is not None:
        parts = [f"{format_spread(quality.same_answers, 100)} % of greedy answers the same"]
    if quality.agreement is not None:
        parts.append(f"{format_spread(quality.agreement, 100)} % of first choices the same")
    return "; ".join([*parts, *([] if verdict is None else [verdict.text])])
