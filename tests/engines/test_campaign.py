"""A campaign on real servers: a checkpoint, a copy of it, and one many times as deep; killed and resumed."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from builders.campaign_files import cells, contents
from engines import place
from engines.clients import measured, start_loadgen, write_campaign
from engines.leftovers import PATIENCE_S, until_nothing_is_left

pytestmark = [pytest.mark.engine, pytest.mark.alone]

_REPEATS = 5  # of three, one with a neighbour on the CPUs makes an interval of 2.5 spreads; of five 1.2
_PROFILE = "input_len = 64\noutput_len = 32\nnum_prompts = 8\nnum_warmups = 2"
_LIMIT_S = 900.0
_LAYERS = 16  # of the other checkpoint, 2 of the first: no neighbour on this machine is as slow


def _kill_after(count: int, directory: Path) -> Path:
    """A campaign that was killed once it had so many cells; its directory."""
    process = start_loadgen(["tiny.toml", "--quiet", "--allow-launch"], directory, "campaign")
    deadline = time.monotonic() + _LIMIT_S
    while len(list(directory.glob("runs/*-tiny/cells/*"))) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE_S)
    process.communicate()
    (found,) = directory.glob("runs/*-tiny")
    return found


def _compared(directory: Path) -> dict[str, Any]:
    """The verdict on the throughput of each row."""
    finished = measured([str(directory), "--json"], directory.parent, "compare")
    (found,) = json.loads(finished.out)["comparisons"]
    return {line["name"]: line["effects"].get(found["headline"]) for line in found["rows"]}


def test_a_deeper_model_is_slower_a_copy_is_not_and_kills_resume(
    engines_python: Path, model: Path, tmp_path: Path
) -> None:
    deep = place.tiny_model(engines_python, layers=_LAYERS)
    copy = Path(shutil.copytree(model, tmp_path / "copy"))
    models = {"tiny": model, "copy": copy, "deep": deep}
    launch = ("transformers", engines_python, "--device cpu --dtype bfloat16")
    head = f"repeats = {_REPEATS}\nseed = 7\nmargin = 0.05"
    write_campaign(tmp_path / "tiny.toml", head, launch, models, _PROFILE)
    directory = _kill_after(2, tmp_path)
    until_nothing_is_left(*map(str, models.values()))
    before = {name: contents(directory / "cells" / name) for name in cells(directory)}

    resume = ["tiny.toml", "--resume", "--allow-launch"]
    out = measured(resume, tmp_path, "campaign", limit_s=_LIMIT_S).out
    until_nothing_is_left(*map(str, models.values()))
    assert len(cells(directory)) == 3 * _REPEATS
    assert {name: contents(directory / "cells" / name) for name in before} == before
    assert "slower" in out

    effects = _compared(directory)
    assert effects["tiny"] is None
    assert effects["deep"]["call"] == "slower", effects
    assert effects["copy"]["call"] in ("equivalent", "undecided"), effects
    assert effects["copy"]["units"] == _REPEATS
