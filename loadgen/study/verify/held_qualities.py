"""Held qualities: the quality of a campaign's arm, held to the scores that the campaign keeps of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from loadgen.base.errors import UsageError
from loadgen.base.untrusted import read_file_bytes, read_mapping
from loadgen.features.quality.quality_record import Quality
from loadgen.study.arm_qualities import ITSELF, make_arm_id
from loadgen.study.series.campaign.arm_scores import REFERENCE_FILE, SCORES, judge_arm
from loadgen.study.series.campaign.quality_store import TASKS, read_tasks
from loadgen.study.verify.held_figures import OF_SCORES, Held, hold_keys, hold_values

FORMAT = Quality.model_fields["format"].default
_MOST_BYTES = 16 << 20
_MOST_SCORES = 128 << 20  # uncompressed, of a file of them: a stranger's may be small, and much
_NOT_KEPT = "the scores it was measured from are not here: `loadgen bundle --with-text` takes them along"


def hold_arm_quality(path: Path, held: Held) -> None:
    """Hold every value of an arm's quality to what the files of scores next to it give.

    It is unchecked where a file is missing or cannot be read, and where nothing says for how many tokens it
    was measured.
    """
    raw = read_file_bytes(path, _MOST_BYTES)
    stated = read_mapping(json.loads(raw))
    folder, arm, held.source = path.parent, path.stem, OF_SCORES
    if (version := stated.get("format")) != FORMAT:
        held.unchecked.append(f"its figures have format {version}, this loadgen {FORMAT}: use one with that")
        return
    is_reference = read_mapping(stated.get("why")).get("kl") == ITSELF
    needed = [REFERENCE_FILE, *([] if is_reference else [f"{arm}{SCORES}"])]
    if not all((folder / name).is_file() for name in needed):
        held.unchecked.append(_NOT_KEPT)
        return
    try:
        with np.errstate(all="ignore"):
            made = judge_arm(folder, arm, _MOST_SCORES).model_dump(mode="json")
    except UsageError as error:
        held.unchecked.append(str(error).replace(f"{folder}/", ""))
        return
    tokens = [task.tokens for task in read_tasks(folder) if make_arm_id(*_split_arm(task.arm)) == arm]
    if tokens:
        made["settings"]["tokens"] = tokens[-1]
    elif "tokens" in read_mapping(stated.get("settings")):
        held.unchecked.append(f"settings.tokens: {TASKS} has no task of it")
        made["settings"]["tokens"] = stated["settings"]["tokens"]
    hold_values(stated, made, path.name, held)
    hold_keys(raw, path.name, held)


def _split_arm(name: str) -> tuple[str, str]:
    """Split an arm's name into its checkpoint and its server."""
    checkpoint, _, server = name.rpartition(" on ")
    return checkpoint, server
