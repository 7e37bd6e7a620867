"""A gate on a real vLLM: twice the layers are slower, a copy is not; two repeats decide nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engines import place
from engines.clients import start_loadgen
from engines.leftovers import until_nothing_is_left
from engines.running import OFFLINE, ONE_THREAD, VLLM_ON_CPU
from loadgen.base.errors import ExitCode

pytestmark = [pytest.mark.engine, pytest.mark.alone]

_LAYERS = 16, 32
_MARGIN = "20%"  # shows a copy not slower in few pairs, also where neighbours take the CPUs now and then
_PROFILE = """\
input_len = {input_len}
output_len = 64
num_prompts = 16
max_concurrency = 1
num_warmups = 2
temperature = 0.0
"""
_LIMIT_S = 1500.0


def _write_campaign(directory: Path, python: Path, models: dict[str, Path], input_len: int = 64) -> Path:
    """A campaign's file whose servers are started once and are measured in turn."""
    (directory / "short.toml").write_text(_PROFILE.format(input_len=input_len), "utf-8")
    tables = "".join(f'[[checkpoints]]\nname = "{name}"\nmodel = "{path}"\n' for name, path in models.items())
    path = directory / "speed.toml"
    path.write_text(
        f'profiles = ["./short.toml"]\nstarts = "once"\nrepeats = 2\n'
        f'[servers.vllm]\nlaunch = "vllm"\nserver_python = "{python}"\n'
        f'server_args = "--dtype bfloat16 --max-model-len 1024 --enforce-eager"\n{tables}',
        "utf-8",
    )
    return path


def _run(directory: Path, verb: str, *words: str) -> tuple[int, str]:
    """Run a verb to its end on vLLM; its code and what it printed."""
    environment = {**OFFLINE, **VLLM_ON_CPU, **ONE_THREAD}
    with start_loadgen(list(words), directory, verb, environment) as process:
        out, err = process.communicate(timeout=_LIMIT_S)
    return process.returncode, out + err


def _gate(directory: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """The code and the JSON of a gate."""
    code, out = _run(directory, "gate", *words, "--json")
    return code, json.loads(out.splitlines()[-1])


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
    _write_campaign(tmp_path, engines_python, {"base": base, "new": new})
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
        _write_campaign(directory, engines_python, {"base": base, "new": deep}, input_len)
        assert _run(directory, "campaign", "speed.toml", "--allow-launch", "--quiet")[0] == 0
        places += map(str, directory.glob("runs/*"))
    code, found = _gate(tmp_path, places[0])
    assert (code, found["outcome"]) == (ExitCode.UNDECIDED, "undecided")
    assert found["more_pairs"] is None  # a campaign that starts servers ends with one before the next
    assert any("new: all runs were measured after those of base" in remark for remark in found["remarks"])
    code, found = _gate(tmp_path, places[1], places[0])
    assert (code, found["outcome"]) == (ExitCode.INCOMPARABLE, "incomparable")
    assert any("prompt length" in reason for reason in found["reasons"])
    until_nothing_is_left(str(base), str(deep))
