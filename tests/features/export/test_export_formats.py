"""Export formats: other projects' reports of a run, held to their published schema and formulas."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from builders.loops import loop_over, read_tables
from builders.made_runs import run
from builders.shard_runs import shard
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Launched, Server
from loadgen.features.export.export_command import (
    FIELDS,
    FORMATS,
    encode_llmd_report,
    make_inferencex_row,
    make_llmd_report,
)
from loadgen.report.run_directory import Result
from loadgen.report.run_writer import encode_run
from loadgen.server.engine_config import EngineConfig
from loadgen.settings.validation import ServerSettings
from report.test_request_rows import mixed, stored

_SCHEMA = Path(__file__).parents[2] / "data/schemas/llm_d_benchmark_report_v0.2.1.json"
_SET_UP = {
    "hw": "h100", "infmax_model_prefix": "gptoss", "precision": "fp4", "disagg": "false", "tp": "2",
    "is_multinode": "false", "ep": "1", "dp_attention": "false",
}  # fmt: skip


@cache
def _read_schema() -> dict[str, Any]:
    return dict(json.loads(_SCHEMA.read_text()))


def on_gpus(
    gpus: int = 2, parallel: int = 2, words: str = "vllm serve", url: str = "http://localhost/v1"
) -> Result:
    """A run on an engine that was started on so many GPUs of this machine."""
    launched = Launched(
        how="vLLM", image="vllm/vllm-openai:v1", command=words.split(), environment={}, owned="tree",
        ready_s=1.0, settings=ServerSettings(tensor_parallel=parallel),
    )  # fmt: skip
    return run(
        gpus=gpus, launched=launched, as_run=EngineConfig(tensor_parallel=parallel),
        server=Server(url=url, engine="vLLM", version="1", model="org/m"), environment={"gpu": "NVIDIA H100"},
    )  # fmt: skip


RUNS = {
    "a closed loop": run(),
    "failures": mixed(),
    "all failed": run(requests=4, failed=4),
    "not streamed": run(profile=run().facts.profile.model_copy(update={"stream": False})),
    "an open loop": run(
        profile=run().facts.profile.model_copy(update={"max_concurrency": None, "request_rate": 9.0})
    ),
    "two GPUs": on_gpus(),
    "experts": on_gpus(words="vllm serve --enable-expert-parallel"),
    "not scraped": run(window=None),
}


@loop_over("name", list(RUNS))
def test_llm_d_takes_the_report_by_its_published_schema(name: str) -> None:
    report = make_llmd_report(RUNS[name])
    jsonschema.Draft202012Validator(_read_schema()).validate(report)
    assert json.loads(encode_llmd_report(RUNS[name])) == report


@loop_over("name", ["a closed loop", "failures", "two GPUs"])
def test_llm_d_reads_the_figures_of_the_result(name: str) -> None:
    of = RUNS[name]
    result, report = encode_run(of), make_llmd_report(of)["results"]["request_performance"]["aggregate"]
    for theirs, ours in (
        ("time_to_first_token", "ttft"), ("time_per_output_token", "tpot"), ("inter_token_latency", "itl"),
    ):  # fmt: skip
        figure = report["latency"][theirs]
        assert [figure[key] for key in ("mean", "p50", "stddev", "p99")] == pytest.approx(
            [result[f"{word}_{ours}_ms"] for word in ("mean", "median", "std", "p99")]
        )
        assert figure["units"] in ("ms", "ms/token")
    assert report["requests"]["total"] == result["num_prompts"]
    assert report["requests"]["failures"] + report["requests"]["incomplete"] == (
        result["num_prompts"] - result["completed"]
    )
    assert report["throughput"]["output_token_rate"]["mean"] == result["output_throughput"]
    assert report["throughput"]["total_token_rate"]["mean"] == result["total_token_throughput"]


@loop_over(
    ("name", "latencies", "rates"),
    [
        ("all failed", None, {"output_token_rate", "total_token_rate", "request_rate", "input_token_rate"}),
        ("not streamed", {"request_latency", "normalized_time_per_output_token"}, None),
    ],
)
def test_llm_d_gets_no_figure_that_a_run_lacks(name: str, latencies: Any, rates: Any) -> None:
    aggregate = make_llmd_report(RUNS[name])["results"]["request_performance"]["aggregate"]
    found = aggregate.get("latency")
    assert (found if found is None else set(found)) == latencies
    assert rates is None or set(aggregate["throughput"]) <= rates


@loop_over(
    ("of", "kind"),
    [
        (on_gpus(), "inference_engine"),
        (on_gpus(gpus=4), "generic"),  # more than the tensor parallel ones: how is not known
        (on_gpus(url="http://elsewhere/v1"), "generic"),  # its GPU is not this machine's
        (run(), "generic"),
    ],
)
def test_an_accelerator_is_named_where_all_of_it_is_known(of: Result, kind: str) -> None:
    (engine,) = make_llmd_report(of)["scenario"]["stack"]
    assert engine["standardized"]["kind"] == kind
    if kind == "inference_engine":
        assert engine["standardized"]["accelerator"] == {
            "model": "NVIDIA H100", "count": 2, "parallelism": {"tp": 2},
        }  # fmt: skip


def test_a_number_with_an_exponent_is_one_for_readers_of_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"a": 1e-05, "b": [-2e20, "1e-05"], "c": 1.5e-07, "d": 3}
    monkeypatch.setattr("loadgen.features.export.export_command.make_llmd_report", lambda of: made)
    text = encode_llmd_report(run())
    assert json.loads(text) == made
    assert '"a": 1.0e-05,' in text
    assert "-2.0e+20,\n" in text
    assert '"1e-05"' in text


def _list_theirs(result: dict[str, Any], gpus: int) -> dict[str, float]:
    """The figures that InferenceX's `build_result` makes of vLLM's result."""
    total, output = result["total_token_throughput"], result["output_throughput"]
    row = {
        "tput_per_gpu": total / gpus, "output_tput_per_gpu": output / gpus,
        "input_tput_per_gpu": (total - output) / gpus,
    }  # fmt: skip
    for key, value in result.items():
        if key.endswith("_ms"):
            row[key.removesuffix("_ms")] = value / 1000.0
        if key.endswith("tpot_ms") and value > 0:
            row[key.removesuffix("_ms").replace("tpot", "intvty")] = 1000.0 / value
    return row


@loop_over("name", ["a closed loop", "two GPUs"])
def test_inferencex_gets_the_figures_that_its_own_script_makes(name: str) -> None:
    of = RUNS[name]
    row = make_inferencex_row(of, _SET_UP)
    expected = _list_theirs({key: value for key, value in encode_run(of).items() if key != "loadgen"}, 2)
    assert {key: row[key] for key in expected} == pytest.approx(expected)
    assert {key: row[key] for key in ("hw", "conc", "isl", "osl", "tp", "framework", "is_multinode")} == {
        "hw": "h100", "conc": 4, "isl": 64, "osl": 16, "tp": 2, "framework": "vllm", "is_multinode": False,
    }  # fmt: skip
    assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))


def test_an_engine_that_was_started_alone_needs_few_words() -> None:
    given = {"hw": "h100", "infmax_model_prefix": "gptoss", "precision": "fp4"}
    row = make_inferencex_row(on_gpus(), given)
    assert (row["tp"], row["ep"], row["dp_attention"], row["disagg"]) == (2, 1, "false", False)
    assert (row["image"], row["spec_decoding"]) == ("vllm/vllm-openai:v1", "none")


_MISSING = "does not know"


@loop_over(("name", "given", "message"), read_tables("inferencex")["guesses"])
def test_inferencex_gets_no_row_with_a_guess_in_it(name: str, given: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        make_inferencex_row(RUNS[name], given)
    assert message in str(raised.value)


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_a_file_of_the_run(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path, run())
    given = (
        [word for pair in _SET_UP.items() for word in ("--set", "=".join(pair))]
        if FORMATS[name].takes
        else []
    )
    assert cli.main(["export", str(tmp_path), "--format", name, *given]) == 0
    path = tmp_path / FORMATS[name].file_name
    assert capsys.readouterr().out == f"{FORMATS[name].what}: {path}\n"
    assert path.stat().st_size > 0


@loop_over(
    ("words", "said"),
    [
        ("--format nothing", "invalid choice"),
        ("--format llm-d --set hw=h100", "--set: of --format inferencex alone"),
        ("--format inferencex --set hw", "--set hw: write KEY=VALUE"),
        ("--format inferencex", _MISSING),
    ],
)
def test_a_format_that_cannot_be_written_leaves_nothing(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path, run())
    before = sorted(tmp_path.iterdir())
    assert cli.main(["export", str(tmp_path), *words.split()]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n"), said in shown.err) == ("", 1, True)
    assert sorted(tmp_path.iterdir()) == before


FOREIGN = [name for name, row in FORMATS.items() if row.of_whole]


@pytest.mark.parametrize("name", FORMATS)
@loop_over(
    ("of", "code", "said"),
    [
        (RUNS["not scraped"], 0, ""),
        (run(shard=shard(0, 2)), 2, "the run is shard 0/2, a part of the load"),
        (mixed(), 0, "the run is INVALID (many-failures, "),
    ],
)
def test_a_part_is_not_reported_as_a_whole_nor_a_bad_run_in_silence(
    name: str, of: Result, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path, of)
    given = [
        f"--set={key}={value}" for key, value in {**_SET_UP, "conc": "4", "spec_decoding": "none"}.items()
    ]
    path = tmp_path / "written"
    words = ["--format", name, "--output", str(path), *(given if FORMATS[name].takes else [])]
    found = cli.main(["export", str(tmp_path), *words])
    shown = capsys.readouterr().err
    if name not in FOREIGN:
        code, said = 0, ""
    assert (found, path.exists(), said in shown) == (code, code == 0, True)
    assert shown.count("\n") == bool(said)


@loop_over(
    ("label", "name", "described"),
    [("a label", "high-load", "a label"), (None, "high-load", "org/m [high-load]"), (None, "", "org/m")],
)
def test_a_report_is_described_by_what_the_run_has(label: str | None, name: str, described: str) -> None:
    of = run(label=label, profile=run().facts.profile.model_copy(update={"name": name}))
    assert make_llmd_report(of)["run"]["description"] == described


def test_a_simulation_is_named_as_one_everywhere() -> None:
    server = replace(run().facts.server, simulated="a preset")
    of = run(server=server)
    assert make_llmd_report(of)["scenario"]["stack"][0]["standardized"]["model"] == "org/m (simulated)"
    assert make_inferencex_row(of, _SET_UP)["model"] == "org/m (simulated)"
    assert set(_SET_UP) < set(FIELDS)
