"""The pages of data sets and traces: every command they print runs, and prints what they show."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fakes.counting_api import CountingApi
from fakes.scripted_server import ScriptedServer
from loadgen import cli
from loadgen.features.traces import trace_blocks

pytestmark = pytest.mark.whole
ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in ("datasets", "traces")}
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
    """A directory in which the examples lie where the pages have them."""
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_clone")
@pytest.mark.parametrize("page", PAGES)
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
    page = runpy.run_path(str(ROOT / "docs" / "examples" / "trace_blocks.py"))
    block = page["block"]
    assert callable(block)
    allowed = np.arange(1000, 5000)
    for hash_id, seed in ((0, 0), (1, 0), (46, 7), (2**63 - 1, 2**64 - 1)):
        made = allowed[trace_blocks.make_block_places(np.array([hash_id]), seed, 16, len(allowed))]
        assert made.tolist() == block(hash_id, seed, 16, allowed.tolist())


def test_example_rows_are_those_of_the_files() -> None:
    files = [path.read_text("utf-8") for path in (ROOT / "docs" / "examples").glob("*.jsonl")]
    known = [msgspec.json.decode(row) for text in files for row in text.splitlines()]
    fenced = [block for kind, block, _ in _FENCED.findall(PAGES["datasets"]) if kind == "json"]
    rows = [row for block in fenced for row in block.splitlines()]
    assert rows
    assert [row for row in rows if msgspec.json.decode(row) not in known] == []
