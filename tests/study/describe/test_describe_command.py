"""`loadgen data describe`: its text, JSON and page, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builders.browsing import Watched
from loadgen import cli

if TYPE_CHECKING:
    from playwright.sync_api import Browser

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
AZURE, MOONCAKE = str(EXAMPLES / "azure_2023.csv"), str(EXAMPLES / "mooncake.jsonl")


def describe(*words: str) -> int:
    return cli.main(["data", "describe", *words])


def test_a_trace_is_described_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert describe(MOONCAKE) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("workload      mooncake.jsonl, mooncake; 141 requests\n")
    labels = [line.split("  ")[0] for line in printed.splitlines() if not line.startswith(" ")]
    assert labels == [
        "workload",
        "arrivals",
        "prompts",
        "answers",
        "together",
        "prefix reuse",
        "reused after",
    ]
    assert [line for line in printed.splitlines() if len(line) > 80] == []
    unlimited, reached = (
        " ".join(printed.split()).partition(words)[2] for words in ("limit (", "90 % of it in ")
    )
    assert unlimited.split()[0] == reached.split()[0]  # no part of it needs more than all of it


def test_its_help_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        describe("--help")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("usage: loadgen data describe [FILE] [AGAINST]")
    assert [line for line in lines if len(line) > 80] == []


def test_one_workload_is_compared_with_another(capsys: pytest.CaptureFixture[str]) -> None:
    assert describe(AZURE, MOONCAKE, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["requests"] for each in found["workloads"]] == [24, 141]
    assert (found["fidelity"]["first"], found["fidelity"]["second"]) == (
        "mooncake.jsonl, mooncake",
        "azure_2023.csv, azure-2023",
    )
    assert found["fidelity"]["figures"][0] == {
        "label": "requests", "first": 141.0, "second": 24.0, "measure": "ratio", "apart": 24 / 141
    }  # fmt: skip


def test_a_file_compared_with_itself_is_named_by_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert describe(AZURE, AZURE) == 0
    head = capsys.readouterr().out.split("\n\n")[2].splitlines()
    assert head[0].split() == ["AGAINST", "FILE", "apart"]
    assert "KS 0.0000" in head[4]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl"),
        ([AZURE, "nowhere.jsonl"], "nowhere.jsonl"),
        ([str(EXAMPLES / "timed.jsonl")], "give --trace-format mooncake"),
        ([AZURE, "--json", "--html", "-"], "--json and --html - both write to standard output"),
        ([AZURE, "--against-format", "timed"], "name the file that FILE is compared with"),
        ([AZURE, AZURE, "--against-format", "times"], "--trace-format times: choose from"),
        ([AZURE, "--html", "nowhere/page.html"], "nowhere/page.html"),
        ([AZURE, AZURE, AZURE], "azure_2023.csv"),
    ],
)
def test_what_cannot_be_described_is_refused_in_a_line(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert describe(*words) == 2
    refused = [line for line in capsys.readouterr().err.splitlines() if line.startswith("loadgen: ")]
    assert len(refused) == 1
    assert reason in refused[0]


def write_page(tmp_path: Path, *words: str) -> str:
    page = tmp_path / "page.html"
    assert describe(*words, "--html", str(page)) == 0
    return page.read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "panels"),
    [
        ([AZURE], ["arrivals", "dispersion", "prompts", "answers", "lengths"]),
        ([MOONCAKE], ["arrivals", "prompts", "answers", "lengths", "reuse"]),
        ([str(EXAMPLES / "conversations.jsonl")], ["prompts", "reuse", "sessions", "pauses"]),
        ([AZURE, MOONCAKE], ["arrivals", "dispersion", "prompts", "answers", "lengths", "reuse"]),
    ],
)
def test_a_page_has_a_picture_of_all_that_is_known(
    words: list[str], panels: list[str], tmp_path: Path
) -> None:
    page = write_page(tmp_path, *words)
    drawn = [part.split('"')[0] for part in page.split('<figure id="pictures-')[1:]]
    assert drawn == panels
    assert ('id="fidelity"' in page) == (len(words) == 2)


@pytest.mark.whole
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 320])
def test_a_page_fits_its_window_and_asks_for_nothing(
    browser: Browser, tmp_path: Path, scheme: str, width: int
) -> None:
    write_page(tmp_path, AZURE, MOONCAKE)
    way: dict[str, Any] = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}}
    watched = Watched(browser, tmp_path / "page.html", **way)
    with watched as page:
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        ticks = page.evaluate(
            "Array.from(document.querySelectorAll('#pictures-lengths [data-part=y]'), (tick) => "
            "tick.textContent)"
        )
    assert wide == 0
    assert [float(tick) for tick in ticks] == sorted(float(tick) for tick in ticks)
    assert {"10", "100"} <= set(ticks)
    assert watched.said == []
    assert watched.asked == [(tmp_path / "page.html").as_uri()]
