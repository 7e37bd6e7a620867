"""vLLM's own loaders: what is recorded of them is what the installed vLLM makes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from builders.drop_in import DIRECTORY
from engines.running import OFFLINE

pytestmark = pytest.mark.engine

_PROGRAM = Path(__file__).with_name("vllm_loaders.py")


def test_the_installed_vllm_makes_the_recorded_requests(engines_python: Path) -> None:
    """They are compared with ours in tests/workload/test_drop_in.py."""
    argv = [str(engines_python), str(_PROGRAM)]
    environment = {**os.environ, **OFFLINE, "PYTHONHASHSEED": "0"}
    ran = subprocess.run(
        argv, cwd=DIRECTORY, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    recorded = json.loads((DIRECTORY / "requests.json").read_text("utf-8"))["cases"]
    made = json.loads(ran.stdout)["cases"]
    assert len(made) == len(recorded)
    pairs = [pair for pair in zip(made, recorded, strict=True) if pair[0]["requests"] is not None]
    assert len(pairs) > len(recorded) / 2
    assert [of_vllm for of_vllm, _ in pairs] == [of_ours for _, of_ours in pairs]
