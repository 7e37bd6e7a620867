"""Climbs at depth: a row for each prompt, answer and concurrency, of requests whose contexts were cached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from builders.loops import loop_over
from fakes.virtual_servers import engine_server
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.report import run_directory

ENGINE = ["--preset", "bench/1024x50"]  # 20 ms a token
SHORT = ["-p", "64", "-n", "4", "--num-prompts", "2"]
_SCHEMA = Path(__file__).parents[2] / "data/schemas/llama_benchy_report_0.4.0.json"


def measured(*words: str, code: int = 0) -> tuple[Path, list[dict[str, Any]]]:
    """The directory of a command, and its rows."""
    assert cli.main(["ladder", "--quiet", *words]) == code
    (directory,) = Path("runs").glob("*-depth")
    assert not list(Path("runs").glob("*-ladder"))
    rows: list[dict[str, Any]] = json.loads((directory / "depth.json").read_text("utf-8"))["rows"]
    assert all((directory / row["run"]).is_dir() for row in rows if row.get("run"))
    return directory, rows


def test_each_depth_and_concurrency_has_its_batches(capsys: pytest.CaptureFixture[str]) -> None:
    directory, rows = measured(*ENGINE, "--depth", "0,256", "--concurrency", "1,3", *SHORT)
    assert [(row["depth"], row["concurrency"], row["is_context"], row["cached_tokens"]) for row in rows] == [
        (0, 1, False, 0), (0, 3, False, 0),
        (256, 1, True, 0), (256, 1, False, 256), (256, 3, True, 0), (256, 3, False, 256),
    ]  # fmt: skip
    assert all(len(row["batches"]) == len(row["runs"]) == 2 for row in rows)
    for row in rows:
        for batch in row["batches"]:
            assert len(batch["tg_each"]) == len(batch["ttft_ms"]) == row["concurrency"]
            assert all(45 < speed < 52 for speed in batch["tg_each"])  # the engine's 20 ms a token
    contexts = [run_directory.load(directory / name).facts.profile for name in rows[4]["runs"]]
    assert {(each.prefix_groups, each.max_concurrency, each.input_len) for each in contexts} == {(3, 3, 1)}
    text = (directory / "depth.md").read_text("utf-8")
    assert "| ctx_pp @ d256 (c3) |" in text
    assert "| tg4 @ d256 (c1) |" in text
    out = capsys.readouterr().out
    assert out.count("pp64 @ d256 (c3): ") == 1  # as its last batch ends


def test_llama_benchys_report_is_one_by_its_published_schema() -> None:
    directory, rows = measured(*ENGINE, "--depth", "0,256", "--concurrency", "2", *SHORT)
    report = json.loads((directory / "llama-benchy.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(json.loads(_SCHEMA.read_text())).validate(report)
    keys = ("context_size", "concurrency", "is_context_prefill_phase")
    shown = [tuple(each[key] for key in keys) for each in report["benchmarks"]]
    assert shown == [(row["depth"], row["concurrency"], row["is_context"]) for row in rows]
    speeds = [row["pp_tok_s"] for row in rows[0]["batches"]]
    assert report["benchmarks"][0]["pp_throughput"]["values"] == speeds
    assert report["prefix_caching_enabled"] is True
    assert report["model"].endswith(" (simulated)")


def test_contexts_that_are_not_cached_give_no_batch() -> None:
    with VirtualServing(engine_server(*ENGINE, "--no-enable-prefix-caching")) as server:
        words = ("--base-url", server.base_url, "--depth", "256", "--concurrency", "2", *SHORT)
        directory, rows = measured(*words)
    assert [len(row["batches"]) for row in rows] == [2, 0]
    assert rows[1]["note"].startswith("not at that depth: 0 of 256 tokens were cached")
    report = json.loads((directory / "llama-benchy.json").read_text("utf-8"))
    assert [each["is_context_prefill_phase"] for each in report["benchmarks"]] == [True]


def test_nothing_that_fits_is_no_report() -> None:
    directory, rows = measured(*ENGINE, "--depth", "9999999", "--concurrency", "2", *SHORT, code=1)
    assert [(row["note"][:6], row["batches"]) for row in rows] == [("needs ", [])] * 2
    assert not (directory / "llama-benchy.json").exists()


def test_each_depth_has_a_prompt_and_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    directory, rows = measured(*ENGINE, "--depth", "0,256", *SHORT)
    cached = {"pp64": 0, "tg4": 0, "pp64 @ d256": 256, "tg4 @ d256": 256}
    assert {row["test"]: row["cached_tokens"] for row in rows} == cached
    assert all(row["requests"] == 2 for row in rows)  # the one that filled the cache is in none
    assert all(row["tok_s"] > 0 and row["std_tok_s"] >= 0 for row in rows)
    assert all(row["tok_s"] < 52 for row in rows[1::2])  # the engine's 20 ms a token
    assert "| pp64 @ d256 |" in (directory / "depth.md").read_text("utf-8")
    out = capsys.readouterr().out
    assert "tg4 @ d256: " in out
    assert "@ dN: after N tokens that the server had in its cache" in out


def test_a_prefix_that_is_not_cached_gives_no_speed() -> None:
    with VirtualServing(engine_server(*ENGINE, "--no-enable-prefix-caching")) as server:
        _, rows = measured("--base-url", server.base_url, "--depth", "256", *SHORT, code=1)
    assert [row["tok_s"] for row in rows] == [None, None]
    assert all(row["note"].startswith("not at that depth: 0 of 256 tokens were cached") for row in rows)


def test_a_depth_beyond_the_context_is_a_row_with_the_reason() -> None:
    _, rows = measured(*ENGINE, "--depth", "0,9999999", *SHORT)
    assert [row["tok_s"] is None for row in rows] == [False, False, True, True]
    assert rows[-1]["note"].startswith("needs 10000004 tokens, the context limit is ")


@loop_over(
    ("words", "says"),
    [
        (["--depth", "0,x"], "'0,x' is not a list of tokens"),
        (["--depth", "4,4"], "'4,4' is not a list of tokens, none of them twice"),
        (["--depth", ""], "is not a list of tokens"),
        (["--depth", "-1"], "'-1' is not a list of tokens"),
        (["--depth", "0", "--formula", "output/time"], "--formula does not apply to a ladder: with --depth"),
        (["--depth", "0", "--random-prefix-len", "9"], "--depth has the lengths of what comes before"),
        (["-p", "9"], "the profile's `ladder` has the lengths; with --depth it is that of the new tokens"),
        (["--depth", "0", "--concurrency", "0"], "'0' is not a list of concurrencies"),
        (["--depth", "0", "--concurrency", "2,2"], "'2,2' is not a list of concurrencies, none of them"),
        (["--depth", "0", "--concurrency", "a"], "'a' is not a list of concurrencies"),
        (["--concurrency", "2"], "--concurrency does not apply to a ladder: it is of --depth"),
        (["--depth", "0", "--concurrency", "2", "--max-concurrency", "3"], "--concurrency has the requests"),
    ],
)
def test_what_is_no_depth_or_concurrency_is_refused_in_a_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["ladder", *ENGINE, *words]) == 2
    assert says in capsys.readouterr().err
