"""Speed at depth: a row for each prompt and answer, of requests whose prefix was cached alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.virtual_servers import engine_server
from fakes.virtual_serving import VirtualServing
from loadgen import cli

pytestmark = pytest.mark.usefixtures("engines")
ENGINE = ["--preset", "bench/1024x50"]  # 20 ms a token
SHORT = ["-p", "64", "-n", "4", "--num-prompts", "2"]


def measured(*words: str, code: int = 0) -> list[dict[str, Any]]:
    """The rows of a command, as its directory has them."""
    assert cli.main(["ladder", "--quiet", *words]) == code
    (directory,) = Path("runs").glob("*-depth")
    assert not list(Path("runs").glob("*-ladder"))
    rows: list[dict[str, Any]] = json.loads((directory / "depth.json").read_text("utf-8"))["rows"]
    assert all((directory / row["run"]).is_dir() for row in rows if row["run"])
    return rows


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_each_depth_has_a_prompt_and_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    rows = measured(*ENGINE, "--depth", "0,256", *SHORT)
    assert [(row["test"], row["cached_tokens"]) for row in rows] == [
        ("pp64", 0),
        ("tg4", 0),
        ("pp64 @ d256", 256),
        ("tg4 @ d256", 256),
    ]
    assert all(row["requests"] == 2 for row in rows)  # the one that filled the cache is in none
    assert all(row["tok_s"] > 0 and row["std_tok_s"] >= 0 for row in rows)
    assert all(row["tok_s"] < 52 for row in rows[1::2])  # the engine's 20 ms a token
    (directory,) = Path("runs").glob("*-depth")
    assert "| pp64 @ d256 |" in (directory / "depth.md").read_text("utf-8")
    out = capsys.readouterr().out
    assert "tg4 @ d256: " in out
    assert "@ dN: after N tokens that the server had in its cache" in out


def test_a_prefix_that_is_not_cached_gives_no_speed() -> None:
    with VirtualServing(engine_server(*ENGINE, "--no-enable-prefix-caching")) as server:
        rows = measured("--base-url", server.base_url, "--depth", "256", *SHORT, code=1)
    assert [row["tok_s"] for row in rows] == [None, None]
    assert all(row["note"].startswith("not at that depth: 0 of 256 tokens were cached") for row in rows)


def test_a_depth_beyond_the_context_is_a_row_with_the_reason() -> None:
    rows = measured(*ENGINE, "--depth", "0,9999999", *SHORT)
    assert [row["tok_s"] is None for row in rows] == [False, False, True, True]
    assert rows[-1]["note"].startswith("needs 10000004 tokens, the context limit is ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--depth", "0,x"], "'0,x' is not a list of tokens"),
        (["--depth", "4,4"], "'4,4' is not a list of tokens, none of them twice"),
        (["--depth", ""], "is not a list of tokens"),
        (["--depth", "-1"], "'-1' is not a list of tokens"),
        (["--depth", "0", "--formula", "output/time"], "--formula does not apply to a ladder: with --depth"),
        (["--depth", "0", "--random-prefix-len", "9"], "--depth has the lengths of what comes before"),
        (["-p", "9"], "the profile's `ladder` has the lengths; with --depth it is that of the new tokens"),
    ],
)
def test_what_is_no_depth_is_refused_in_a_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["ladder", *ENGINE, *words]) == 2
    assert says in capsys.readouterr().err
