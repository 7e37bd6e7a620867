"""A gate on a real vLLM: twice the layers are slower, a copy is not; two repeats decide nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engines import place
from engines.clients import loadgen, measured, write_campaign
from engines.leftovers import until_nothing_is_left
from engines.running import VLLM_ON_CPU
from loadgen.base.errors import ExitCode

pytestmark = [pytest.mark.engine, pytest.mark.alone]

_LAYERS = 16, 32
_MARGIN = "20%"  # shows a copy not slower in few pairs, also where neighbours take the CPUs now and then
_LIMIT_S = 1500.0


def _write(directory: Path, python: Path, models: dict[str, Path], input_len: int = 64) -> None:
    """A campaign's file whose servers are started once and are measured in turn."""
    launch = ("vllm", python, "--dtype bfloat16 --max-model-len 1024 --enforce-eager")
    profile = f"input_len = {input_len}\noutput_len = 64\nnum_prompts = 16\nnum_warmups = 2"
    write_campaign(directory / "speed.toml", 'starts = "once"\nrepeats = 2', launch, models, profile)


def _gate(directory: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """The code and the JSON of a gate."""
    ended = loadgen([*words, "--json"], directory, "gate", VLLM_ON_CPU, _LIMIT_S)
    return ended.code, json.loads(ended.out.splitlines()[-1])


@pytest.mark.parametrize(
    ("deeper", "code", "outcome"),
    [(True, ExitCode.SLOWER, "slower"), (False, ExitCode.FIGURES, "not slower")],
    ids=["32 layers", "a copy"],
)
def test_twice_the_layers_is_slower_and_a_copy_is_not(
    deeper: bool, code: int, outcome: str, engines_python: Path, tmp_path: Path
) -> None:
    base, deep = (place.tiny_model(engines_python, layers) for layers in _LAYERS)
    new = deep if deeper else Path(shutil.copytree(base, tmp_path / "copy"))
    _write(tmp_path, engines_python, {"base": base, "new": new})
    found = _gate(tmp_path, "speed.toml", "--allow-launch", "--margin", _MARGIN)
    assert (found[0], found[1]["outcome"]) == (code, outcome), found
    until_nothing_is_left(str(base), str(new))


def test_two_repeats_are_undecided_and_another_load_is_no_verdict(
    engines_python: Path, tmp_path: Path
) -> None:
    base, deep = (place.tiny_model(engines_python, layers) for layers in _LAYERS)
    places: list[str] = []
    for input_len in (64, 128):
        directory = tmp_path / f"of-{input_len}"
        directory.mkdir()
        _write(directory, engines_python, {"base": base, "new": deep}, input_len)
        words = ["speed.toml", "--allow-launch", "--quiet"]
        measured(words, directory, "campaign", more=VLLM_ON_CPU, limit_s=_LIMIT_S)
        places += map(str, directory.glob("runs/*"))
    code, found = _gate(tmp_path, places[0])
    assert (code, found["outcome"]) == (ExitCode.UNDECIDED, "undecided")
    assert found["more_pairs"] is None  # a campaign that starts servers ends with one before the next
    assert any("new: all runs were measured after those of base" in remark for remark in found["remarks"])
    code, found = _gate(tmp_path, places[1], places[0])
    assert (code, found["outcome"]) == (ExitCode.INCOMPARABLE, "incomparable")
    assert any("prompt length" in reason for reason in found["reasons"])
    until_nothing_is_left(str(base), str(deep))
