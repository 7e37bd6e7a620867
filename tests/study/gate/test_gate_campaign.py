"""`loadgen gate CAMPAIGN.toml`: pairs in turn until it knows, on servers of each pair or kept; it goes on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from builders.campaign_files import cells, facts, the_directory, written
from builders.loops import loop_over, read_tables
from fakes.virtual_serving import virtual_engines
from loadgen import cli
from loadgen.base.errors import ExitCode
from loadgen.study.gate.gate_command import interleave
from loadgen.study.series.campaign import arms, campaign_file
from loadgen.study.series.campaign.campaign_command import CampaignRequest

TABLES = read_tables("gate_campaign")

# Python 3.12 warns of any thread at a fork; the child takes none of their locks.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
FAST, SLOW = "h20/qwen3-8b-fp8", "h20/qwen3-8b-bf16"
BASE = {"name": "base", "preset": FAST}
SAME, OTHER = [BASE, {"name": "new", "preset": FAST}], [BASE, {"name": "new", "preset": SLOW}]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def gate(path: Path | str, *words: str) -> int:
    with virtual_engines():
        return gate_on_engines(path, *words)


def gate_on_engines(path: Path | str, *words: str) -> int:
    return cli.main(["gate", str(path), *words])


def repeats(place: Path) -> list[tuple[str, int]]:
    """The arm and repeat of each cell, in the order of measuring."""
    told = [facts(place, known) for known in cells(place)]
    told.sort(key=lambda each: each["started"])
    return [(each["cell"]["checkpoint"], each["cell"]["repeat"]) for each in told]


@pytest.mark.parametrize(
    ("arms_of", "code", "outcome"),
    [(OTHER, ExitCode.SLOWER, "slower"), (SAME, ExitCode.FIGURES, "not slower")],
    ids=["slower", "same"],
)
def test_it_measures_in_turn_until_it_knows(
    arms_of: list[Any], code: int, outcome: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, *arms_of)
    assert gate(path, "--max-pairs", "12") == code
    lines = capsys.readouterr().out.splitlines()
    place = the_directory()
    order = repeats(place)
    pairs = len(order) // 2
    assert 3 <= pairs < 12
    assert [sorted(order[2 * pair : 2 * pair + 2]) for pair in range(pairs)] == [
        [("base", pair), ("new", pair)] for pair in range(pairs)
    ]
    assert f"after {pairs} pairs: {outcome}" in lines
    outcome = f"gate: {outcome} by more than 3 %: tok/s ({pairs} pairs)"
    assert outcome in lines
    arms_told = json.loads((place / "gate.json").read_text("utf-8"))["arms"]
    assert arms_told == ["base on embedded", "new on embedded"]
    assert cli.main(["bundle", str(place), "-o", "gate.bundle"]) == 0
    assert gate(str(place)) == code  # who judges it again decides alike
    assert outcome in capsys.readouterr().out.splitlines()
    assert gate("gate.bundle") == code
    assert outcome in capsys.readouterr().out.splitlines()


def test_a_bundled_gate_is_judged_by_its_own_figures_and_margins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, *SAME)
    gate(path, "--metric", "ttft", "--margin", "30%", "--max-pairs", "4")
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("gate: "))
    assert "by more than 30 %: ttft (" in line
    assert cli.main(["bundle", str(the_directory()), "-o", "gate.bundle"]) == 0
    gate("gate.bundle", "--json")
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (f"gate: {told['sentence']}", told["sequential"], told["directory"]) == (line, True, "gate.bundle")


@pytest.mark.whole
def test_servers_that_are_started_once_are_kept_next_to_each_other(tmp_path: Path) -> None:
    path = written(tmp_path, *OTHER, starts="once")
    assert gate_on_engines(path, "--quiet") == ExitCode.SLOWER
    place = the_directory()
    order = repeats(place)
    assert order[:2] == [("base", 0), ("new", 0)]
    assert sorted(order[2:4]) == [("base", 1), ("new", 1)]
    assert {facts(place, known)["cell"]["start"] for known in cells(place)} == {"once"}


def test_pairs_that_run_out_are_undecided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, *SAME)
    assert gate(path, "--max-pairs", "3", "--margin", "0.02%", "--json") == ExitCode.UNDECIDED
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert (told["outcome"], told["pairs"], told["sequential"]) == ("undecided", 3, True)
    assert told["sentence"].startswith("undecided: ")


def test_arms_of_other_loads_are_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, BASE, {"name": "new", "preset": FAST, "profiles": ["smoke"]})
    assert gate(path, "--junit", "gate.xml") == ExitCode.INCOMPARABLE
    shown = " ".join(capsys.readouterr().out.split())
    assert shown == ("gate: incomparable: another load: new on embedded has smoke, base on embedded tiny")
    assert not Path("runs").exists()
    assert "<error" in Path("gate.xml").read_text("utf-8")


def test_a_gate_is_resumed_as_it_was_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, *OTHER)
    assert gate(path, "--alpha", "0.04", "--max-pairs", "4", "--json") == ExitCode.SLOWER
    again = ["--alpha", "0.04", "--json", "--resume", str(the_directory())]
    for words, begun in (
        (["--margin", "9%"], r"metrics: .+ \(margin 3 %\)"),
        (["--max-pairs", "9"], r"max_pairs: \d+"),
        (["--metric", "ttft"], r"metrics: .+ \(margin 3 %\)"),
        (["--alpha", "0.1"], "alpha: 0.04"),
    ):
        assert gate(path, *again, *words) == ExitCode.USAGE
        said = capsys.readouterr().err
        assert re.search(rf"was begun as another gate \({begun}\): resume it as it was begun", said), said
    assert gate(path, *again, "--junit", "gate.xml") == ExitCode.SLOWER
    assert json.loads(capsys.readouterr().out)["alpha"] == 0.04
    assert Path("gate.xml").exists()


@pytest.mark.whole
def test_a_cell_that_failed_is_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, BASE, {"name": "new", "base_url": "http://127.0.0.1:9"})
    assert gate_on_engines(path) == ExitCode.INCOMPARABLE
    shown = " ".join(capsys.readouterr().out.split())
    assert "gate: incomparable: r0 new on attached, tiny: FAILED: " in shown
    assert len(cells(the_directory())) == 1  # it ended there


@loop_over(("tables", "words", "message"), TABLES["refused"])
def test_what_cannot_be_measured_is_refused_before_it_is(
    tables: list[dict[str, Any]], words: list[str], message: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert gate(written(tmp_path, *tables), *words) == ExitCode.USAGE
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_limit_is_no_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(written(tmp_path, *SAME, limit={"slo": "ttft p90 < 1s"})) == ExitCode.USAGE
    assert "a gate measures runs: leave [limit] out" in capsys.readouterr().err


def test_the_order_of_each_pair_is_drawn_by_the_gates_name(tmp_path: Path) -> None:
    path = written(tmp_path, *SAME, repeats=40)
    file = campaign_file.load_campaign(path)
    made = arms.make_arms(file, path)
    wanted = CampaignRequest(path, arms.Trust(), file, made, made, ())
    told = [[start.arm.checkpoint for start in interleave(wanted, name).starts] for name in ("a", "a", "b")]
    first = [names[::2] for names in told]
    assert first[0] == first[1] != first[2]
    assert {names[0] for names in first} == {"base"}
    assert 10 < first[0].count("base") < 30
    assert all({*told[0][at : at + 2]} == {"base", "new"} for at in range(0, 80, 2))
