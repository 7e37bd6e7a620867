"""Pages whose commands run as they stand: data sets, traces and shards, wrong benchmarks."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fakes.counting_api import CountingApi
from fakes.scripted_server import ScriptedServer
from loadgen import cli
from loadgen.features.traces import trace_blocks
from loadgen.report import run_directory
from loadgen.verdict.verdict import DOUBTS
from loadgen_servers.process.running import free_port

pytestmark = pytest.mark.whole
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {name: (DOCS / f"{name}.md").read_text("utf-8") for name in ("datasets", "traces", "shards")}
# What a reader puts in the place of the examples' own server and model.
URL, MODEL = "http://localhost:8000", "/models/Qwen3-8B"
TOKENIZER = str(ROOT / "tests" / "data" / "tokenizer")
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```(?:\n\n```\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
_COMMAND = ".venv/bin/loadgen "


def shown(page: str) -> Iterator[tuple[str, str]]:
    """The commands of a page in their order, each with the output in the block under it, or ""."""
    for language, block, output in _FENCED.findall(PAGES[page]):
        commands = [line for line in block.splitlines() if line.startswith(_COMMAND)]
        if not language and commands:
            yield from ((command, "") for command in commands[:-1])
            yield commands[-1], output


@pytest.fixture
def _clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory in which command and examples lie where the pages have them."""
    (tmp_path / "docs").symlink_to(DOCS)
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'servers'}")


@pytest.mark.usefixtures("_clone")
@pytest.mark.parametrize("page", ["datasets", "traces"])
def test_every_command_of_the_page_runs_and_prints_what_is_shown(
    page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = list(shown(page))
    assert len(found) >= 6
    for command, output in found:
        with ScriptedServer(CountingApi()) as server:
            words = shlex.split(command.replace(URL, server.base_url).replace(MODEL, TOKENIZER))[1:]
            quiet = ["--quiet"] if words[0] == "bench" else []
            code = cli.main([*words, *quiet])
        out, err = capsys.readouterr()
        assert code == 0, f"{command}\n{err}"
        if output:
            assert out == output, command


def test_the_documented_hash_makes_the_blocks_that_are_sent() -> None:
    page = runpy.run_path(str(DOCS / "examples" / "trace_blocks.py"))
    block = page["block"]
    assert callable(block)
    allowed = np.arange(1000, 5000)
    for hash_id, seed in ((0, 0), (1, 0), (46, 7), (2**63 - 1, 2**64 - 1)):
        made = allowed[trace_blocks.make_block_places(np.array([hash_id]), seed, 16, len(allowed))]
        assert made.tolist() == block(hash_id, seed, 16, allowed.tolist())


def test_example_rows_are_those_of_the_files() -> None:
    files = [path.read_text("utf-8") for path in (DOCS / "examples").glob("*.jsonl")]
    known = [msgspec.json.decode(row) for text in files for row in text.splitlines()]
    fenced = [block for kind, block, _ in _FENCED.findall(PAGES["datasets"]) if kind == "json"]
    rows = [row for block in fenced for row in block.splitlines()]
    assert rows
    assert [row for row in rows if msgspec.json.decode(row) not in known] == []


# Shards: every block of commands runs in a shell, and leaves what the page says.


BLOCKS = [block for _, block, _ in _FENCED.findall(PAGES["shards"])]
COMMANDS = [block for block in BLOCKS if _COMMAND in block and "--cluster" not in block]


@pytest.mark.usefixtures("_clone")
@pytest.mark.parametrize("block", COMMANDS, ids=[f"block{number}" for number in range(len(COMMANDS))])
def test_every_block_of_the_page_runs_in_a_shell(block: str) -> None:
    assert len(COMMANDS) >= 4
    with ScriptedServer(CountingApi(owner="vllm")) as server:
        script = block.replace("+ 30", "+ 15").replace(URL, server.base_url)
        script = script.replace("--shard ", "--quiet --shard ")
        done = subprocess.run(
            ["bash", "-e"], input=script, capture_output=True, text=True, timeout=150, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")
    for merged in filter(run_directory.is_run, Path().iterdir()):
        run = run_directory.load(merged)
        assert run.records.index.tolist() == list(range(40))
        assert run.records.ok.all()
        assert len(run.facts.shards) == 2


# Wrong benchmarks: each command finds the doubts that its item names.


HEAD, *ITEMS = (DOCS / "wrong-benchmarks.md").read_text("utf-8").split("\n## ")
_OTHERWISE = {"stopped-unstamped", "early-ends", "random-acceptance"}  # of other commands, or a busy machine


def test_eight_items_have_the_same_shape() -> None:
    parts = [re.findall(r"^\*\*(.+?)\.\*\*", item, re.MULTILINE) for item in ITEMS]
    assert parts == [["What users see", "The wrong figure", "What loadgen says"]] * 8
    assert all(re.search(r"\]\(https://github\.com/\S+/\d+\)", item) for item in ITEMS)


@pytest.mark.usefixtures("_clone")
@pytest.mark.parametrize("item", ITEMS, ids=lambda item: str(item)[3:].partition("\n")[0])
def test_each_item_provokes_its_doubts(item: str) -> None:
    port = str(free_port())
    engine, commands = (
        "\n".join(block for _, block, _ in _FENCED.findall(text)).replace("8001", port).split("\n")
        for text in (HEAD, item)
    )
    with subprocess.Popen(engine[0].split(), stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()  # it listens
        try:
            for command in filter(None, commands):
                subprocess.run(["bash", "-c", command], check=True, capture_output=True)
        finally:
            server.terminate()
    runs = [json.loads(path.read_text("utf-8")) for path in sorted(Path().rglob("result.json"))]
    found = {doubt["name"] for run in runs for doubt in run["loadgen"]["verdict"]["doubts"]}
    named = {rule.code for rule in DOUBTS if f"`{rule.code}`" in item} - _OTHERWISE
    assert named <= found
