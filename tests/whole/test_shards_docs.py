"""The page of shards: every block of commands runs in a shell, and leaves what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.counting_api import CountingApi
from fakes.scripted_server import ScriptedServer
from loadgen.report import run_directory

pytestmark = pytest.mark.whole
ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```\n(.*?)^```", (ROOT / "docs" / "shards.md").read_text("utf-8"), re.M | re.S)
COMMANDS = [block for block in BLOCKS if ".venv/bin/loadgen" in block and "--cluster" not in block]


@pytest.fixture
def _clone(tmp_path: Path) -> None:
    """A directory with the command where the page has it."""
    command = tmp_path / ".venv" / "bin" / "loadgen"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m loadgen "$@"\n')
    command.chmod(0o755)


@pytest.mark.usefixtures("_clone")
@pytest.mark.parametrize("block", COMMANDS, ids=[f"block{number}" for number in range(len(COMMANDS))])
def test_every_block_of_the_page_runs_in_a_shell(tmp_path: Path, block: str) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'servers'}"}
    with ScriptedServer(CountingApi(owner="vllm")) as server:
        script = (
            block.replace("+ 30", "+ 15")
            .replace("http://localhost:8000", server.base_url)
            .replace("--shard ", "--quiet --shard ")
        )
        done = subprocess.run(
            ["bash", "-e"], input=script, cwd=tmp_path, env=environment, capture_output=True, text=True,
            timeout=150, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    for merged in (path for path in tmp_path.iterdir() if run_directory.is_run(path)):
        run = run_directory.load(merged)
        assert run.records.index.tolist() == list(range(40))
        assert run.records.ok.all()
        assert len(run.facts.shards) == 2


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) >= 4
