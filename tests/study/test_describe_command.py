"""`loadgen data describe`: its text, JSON and page, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.loops import read_tables
from builders.required import require
from loadgen import cli
from loadgen.base.clock import SECOND_NS
from loadgen.features.traces.trace_blocks import find_growth_reuse, number_blocks
from loadgen.features.traces.trace_rows import Growth
from loadgen.figures.workloads import NO_DELAY, LoadColumns, find_ks_distance, measure_reuse
from loadgen.study.describe_command import read_load

TABLES = read_tables("describe_command")
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(autouse=True)
def _at_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)


def describe(*words: str) -> int:
    return cli.main(["data", "describe", *words])


def test_no_part_of_a_cache_needs_more_than_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert describe("mooncake.jsonl") == 0
    printed = " ".join(capsys.readouterr().out.split())
    unlimited, reached = (printed.partition(words)[2] for words in ("limit (", "90 % of it in "))
    assert unlimited.split()[0] == reached.split()[0]


def test_a_file_compared_with_itself_is_named_by_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert describe("azure_2023.csv", "azure_2023.csv") == 0
    head = capsys.readouterr().out.splitlines()
    assert head[1].split() == ["AGAINST", "FILE", "apart"]
    assert "KS 0.0000" in head[6]


@pytest.mark.parametrize(("words", "reason"), TABLES["refused"])
def test_what_cannot_be_described_is_refused_in_a_line(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert describe(*words) == 2
    refused = [line for line in capsys.readouterr().err.splitlines() if line.startswith("loadgen: ")]
    assert len(refused) == 1
    assert reason in refused[0]


@pytest.mark.parametrize(("words", "panels"), TABLES["panels"])
def test_a_page_has_a_picture_of_all_that_is_known(
    words: list[str], panels: list[str], tmp_path: Path
) -> None:
    assert describe(*words, "--html", str(tmp_path / "page.html")) == 0
    page = (tmp_path / "page.html").read_text("utf-8")
    drawn = [part.split('"')[0] for part in page.split('<figure id="pictures-')[1:]]
    assert drawn == panels
    assert ('id="fidelity"' in page) == (len(words) == 2)


SEED = {"seed": 1}


def read(file: str, **values: Any) -> LoadColumns:
    return read_load(str(EXAMPLES / file), values, SEED)


@pytest.mark.parametrize(("file", "values", "requests", "block"), TABLES["traces"])
def test_a_trace_is_read_whole(file: str, values: dict[str, Any], requests: int, block: int) -> None:
    load = read(file, **values)
    assert (len(load), load.block_tokens, load.blocks is not None) == (requests, block, block > 0)
    assert load.times_ns is not None
    assert (load.find_gaps_ns() >= 0).all()


def test_reuse_of_token_ids_is_that_of_the_trace_they_are_made_of() -> None:
    whole, sent = read("mooncake.jsonl"), read("mooncake.jsonl", trace_format="mooncake", trace_window="0:")
    shares = [measure_reuse(each) for each in (whole, sent)]
    assert require(shares[0]).share == pytest.approx(require(shares[1]).share, abs=1e-9)
    assert find_ks_distance(whole.find_gaps_ns(), sent.find_gaps_ns()) == 0


def test_sessions_have_their_pauses_and_no_arrivals_of_requests() -> None:
    load = read("conversations.jsonl")
    assert (require(load.sessions).tolist(), require(load.delays_ns)[[0, 2]].tolist()) == (
        [0, 0, 1, 1],
        [NO_DELAY] * 2,
    )
    assert load.times_ns is None


def test_growth_is_as_much_as_its_blocks() -> None:
    """Rows of two lines with a common text of 100 tokens, one of which is cut down in between."""
    lens = np.array([400, 300, 500, 650, 200], np.int64)
    growth = Growth(np.array([-1, -1, 0, 2, 1]), np.array([100, 100, 400, 500, 130]))
    ids, starts, block = number_blocks(growth, lens, 1000)
    load = LoadColumns("grown", lens, lens, SECOND_NS * np.arange(5), ids, starts, block)
    found = require(measure_reuse(load))
    expected = find_growth_reuse(growth, np.arange(5), lens).tokens.sum()
    assert found.share * found.prompt_tokens == pytest.approx(expected)
    assert number_blocks(growth, lens, 40)[2] == 64
