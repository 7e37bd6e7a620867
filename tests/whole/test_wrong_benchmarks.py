"""The page of wrong benchmarks: each command runs as it stands, and finds the doubts that its item names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.verdict.verdict import DOUBTS
from loadgen_servers.process.running import free_port

pytestmark = pytest.mark.whole
ROOT = Path(__file__).parents[2]
HEAD, *ITEMS = (ROOT / "docs" / "wrong-benchmarks.md").read_text("utf-8").split("\n## ")
_FENCED = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)
_OTHERWISE = {"stopped-unstamped", "early-ends", "random-acceptance"}  # of other commands, or a busy machine


def test_eight_items_have_the_same_shape() -> None:
    parts = [re.findall(r"^\*\*(.+?)\.\*\*", item, re.MULTILINE) for item in ITEMS]
    assert parts == [["What users see", "The wrong figure", "What loadgen says"]] * 8
    assert all(re.search(r"\]\(https://github\.com/\S+/\d+\)", item) for item in ITEMS)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: str(item)[3:].partition("\n")[0])
def test_each_item_provokes_its_doubts(item: str, tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    port = str(free_port())
    engine, commands = (
        "\n".join(_FENCED.findall(text)).replace("8001", port).split("\n") for text in (HEAD, item)
    )
    with subprocess.Popen(engine[0].split(), cwd=tmp_path, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()  # it listens
        try:
            for command in filter(None, commands):
                subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, capture_output=True)
        finally:
            server.terminate()
    runs = [json.loads(path.read_text("utf-8")) for path in sorted(tmp_path.rglob("result.json"))]
    found = {doubt["name"] for run in runs for doubt in run["loadgen"]["verdict"]["doubts"]}
    named = {rule.code for rule in DOUBTS if f"`{rule.code}`" in item} - _OTHERWISE
    assert named <= found
