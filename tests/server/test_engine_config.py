"""As run: every engine's own words become the same fields, and what differs from the checkpoint is said."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over, read_tables
from loadgen.base.text import wrap_text
from loadgen.server.checkpoint import Checkpoint
from loadgen.server.engine_config import (
    EngineConfig,
    explain_unknown_kernels,
    merge_configs,
    parse_info,
    parse_log,
    read_attached_log,
    render_config,
)

TABLES = read_tables("engine_config")

LOGS = Path(__file__).parents[1] / "data" / "server_logs_as_run"
EXPECTED = Path(__file__).parent / "expected"


def log(name: str) -> str:
    return (LOGS / f"{name}.log").read_text("utf-8")


def said(as_run: EngineConfig) -> dict[str, Any]:
    """What is said, without the flags and remarks."""
    return {name: value for name, value in as_run if value not in ("", None, ()) and name not in UNREAD}


def gib(size: float) -> int:
    return round(size * 2**30)


UNREAD = ("flags", "remarks")


def expected(name: str) -> dict[str, Any]:
    """What a log says, from its file of expected values."""
    return dict(json.loads((EXPECTED / LOGS.name / f"{name}.json").read_text("utf-8")))


@loop_over("name", sorted(path.stem for path in LOGS.glob("*.log")))
def test_a_log_is_read_in_its_own_words(name: str) -> None:
    assert said(parse_log(log(name))) == expected(name)


@loop_over(("line", "field", "value"), TABLES["wordings"])
def test_a_wording_is_read(line: str, field: str, value: object) -> None:
    assert getattr(parse_log(line), field) == value


@loop_over("text", ["", "\x00\xff\ufffd" * 100, "] " * 1000, "x" * 5_000_000])
def test_a_log_of_anything_says_nothing(text: str) -> None:
    assert parse_log(text) == EngineConfig()


def test_no_secret_of_the_flags_is_kept() -> None:
    flags = parse_log(log("vllm-0.10-gptq-tp2")).flags
    assert "'api_key': ***" in flags
    assert "key-one" not in flags
    assert "key-two" not in flags
    assert "'tensor_parallel_size': 2" in flags


def test_an_engines_own_sentences_are_kept_once() -> None:
    fell_back = parse_log(log("vllm-0.15-nvfp4-fallback"))
    assert fell_back.fallbacks == fell_back.remarks
    forced, unoptimized = parse_log(log("vllm-0.6-awq")).remarks
    assert "so forcing awq" in forced
    assert unoptimized.startswith("awq quantization is not fully optimized yet")


@loop_over(
    ("info", "fields"),
    TABLES["answers"],
)
def test_an_answer_is_read_too(info: str | dict[str, Any], fields: dict[str, Any]) -> None:
    """A recorded one by its name."""
    if isinstance(info, str):
        info = dict(json.loads((LOGS.parent / f"{info}.json").read_text("utf-8")))
    assert said(parse_info(info)) == fields


def test_the_launch_command_is_told_without_its_key() -> None:
    told = parse_info({"launch_command": "--model-path /m --api-key sekret --tp 2"})
    assert told.flags == "--model-path /m --api-key *** --tp 2"


def test_of_two_sources_the_later_wins_where_both_speak() -> None:
    first = EngineConfig(kernel="A", dtype="float16", tensor_parallel=2)
    assert merge_configs(first, EngineConfig(dtype="bfloat16")) == EngineConfig(
        kernel="A", dtype="bfloat16", tensor_parallel=2
    )
    assert merge_configs() == EngineConfig()


def declared(quantization: str, dtype: str = "", positions: int | None = None) -> Checkpoint:
    return Checkpoint(
        path="/m",
        config_digest="0",
        quantization=quantization,
        dtype=dtype,
        max_positions=positions,
        weight_bytes=gib(5.7),
    )


@loop_over(
    ("name", "checkpoint"),
    [
        ("vllm-0.10-gptq-tp2", declared("GPTQ-Int4", "float16", 40960)),
        ("vllm-0.15-nvfp4-fallback", declared("NVFP4", "bfloat16", 40960)),
        ("vllm-0.32-cpu", declared("FP8", "float16")),
        ("sglang-0.4-fp8-tp2", declared("BF16", "bfloat16")),
    ],
)
def test_the_report_says_what_runs_and_what_differs(name: str, checkpoint: Checkpoint) -> None:
    lines = [part for line in render_config(parse_log(log(name)), checkpoint) for part in wrap_text(line)]
    assert lines == (EXPECTED / "as_run" / f"{name}.txt").read_text("utf-8").splitlines()


def test_what_no_log_says_is_of_the_checkpoint_or_not_there() -> None:
    nothing = parse_log(log("transformers-5.19-cpu"))
    assert render_config(nothing, None) == []
    assert render_config(nothing, declared("BF16")) == ["model: 5.7 GiB of weights on disk"]


@loop_over(
    ("method", "word", "shown"),
    TABLES["shown"],
)
def test_the_fields_word_is_shown_where_the_engine_runs_just_that(method: str, word: str, shown: str) -> None:
    lines = render_config(EngineConfig(quantization=method, attention_backend="X"), declared(word))
    assert lines[0] == "runs: " + ", ".join(filter(None, (shown, "attention X")))
    assert any(line.startswith("differs:") for line in lines) == (shown == method != "")


@loop_over(
    ("config", "fallbacks"),
    TABLES["fallbacks"],
)
def test_a_kernel_that_fell_back_is_named(config: dict[str, Any], fallbacks: list[str]) -> None:
    assert [*EngineConfig(**config).fallbacks] == fallbacks


@loop_over(
    ("config", "word", "named"),
    TABLES["unknown kernels"],
)
def test_a_kernel_that_nothing_names_is_unknown(config: dict[str, Any], word: str | None, named: str) -> None:
    line = f"kernels of {named}: unknown, neither the server nor a log here names them" if named else ""
    assert explain_unknown_kernels(EngineConfig(**config), declared(word) if word else None) == line


def test_sglang_s_answer_names_its_kernels() -> None:
    info = {
        "quantization": "modelopt_fp4",
        "fp4_gemm_runner_backend": "marlin",
        "fp8_gemm_runner_backend": "auto",
    }
    config = parse_info({**info, "moe_runner_backend": "flashinfer_cutlass"})
    assert (config.kernel, config.moe_kernel) == ("marlin", "flashinfer_cutlass")
    assert config.fallbacks == ("modelopt_fp4 linear layers by marlin",)


@pytest.mark.whole
def test_the_log_of_a_running_server_is_read_from_its_last_start(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(log("vllm-0.10-gptq-tp2") + log("vllm-0.15-nvfp4-fallback"), "utf-8")
    with path.open("a") as output, subprocess.Popen(["sleep", "60"], stdout=output, stderr=output) as server:
        try:
            config = parse_log(read_attached_log([server.pid, 2**22 + 1]))
        finally:
            server.kill()
    assert config.kernel == "MarlinNvFp4LinearKernel"
    assert len(config.fallbacks) == 2


@pytest.mark.whole
def test_output_that_is_no_file_or_no_engine_s_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Using FooKernel for NVFP4 GEMM", "utf-8")
    with path.open("a") as output:
        for out in (subprocess.PIPE, subprocess.DEVNULL, output):
            with subprocess.Popen(["sleep", "60"], stdout=out, stderr=subprocess.DEVNULL) as server:
                try:
                    assert read_attached_log([server.pid]) == ""
                finally:
                    server.kill()
    assert read_attached_log([]) == ""
