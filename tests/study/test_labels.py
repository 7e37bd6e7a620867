"""Labels: what tells runs apart although nothing is read from it, and what differs between any two runs."""

from __future__ import annotations

from builders.loops import loop_over
from loadgen.study import labels


@loop_over(("title", "cells"), [
    ("Config", ["A, plain", "B, layout on"]),
    ("tp", ["1", "4"]),
    ("build", ["v0.11", "v0.12"]),
    ("commit", ["1a2b3c4", "5d6e7f8"]),
    ("FlashAttention", ["", "✓"]),
    ("temperature", ["0.7", "0.8"]),
    ("min_p", ["0.1"]),
    ("max_model_len", ["32768", "8192"]),
    ("gpu_memory_utilization", ["0.9", "0.85"]),
    ("Power limit", ["300", "450"]),
    ("dataset_path", ["/data/a.json", "/data/b.json"]),
    ("Run", ["baseline", "tuned"]),
    ("Speed mode", ["fast", "exact"]),
    ("Latency target", ["low", "high"]),
    ("配置", ["默认", "开启"]),
])  # fmt: skip
def test_a_setting_or_a_name_is_a_label(title: str, cells: list[str]) -> None:
    assert labels.is_label(title, cells)


@loop_over(("title", "cells"), [
    ("P95 something", ["12", "13"]),
    ("P95 TTFT", ["12.5ms", "13.1ms"]),
    ("Power (W)", ["301", "302"]),
    ("Quality", ["0.712", "0.715"]),
    ("Cache", ["81.5%", "80.1%"]),
    ("Tokens", ["48332", "48411"]),
    ("Speed-up", ["1.2x", "1.3x"]),
    ("max_output_tokens_per_s", ["301"]),
    ("Errors", ["0", "1"]),
    ("Run", ["1", "2", "3"]),
    ("Run", ["run-1", "run-2"]),
    ("#", ["1", "2"]),
    ("seed", ["7", "8"]),
    ("date", ["20261101-101010"]),
    ("date", ["2026-11-01"]),
    ("started_at", ["1762000000.1"]),
    ("id", ["9f1c2b7e-3c7b-4b0e-9f7e-1f2a3b4c5d6e"]),
    ("result_filename", ["/tmp/a/1.json"]),
    ("output_dir", ["out/1", "out/2"]),
    ("port", ["8000", "8001"]),
    ("api_key", ["abc", "def"]),
    ("Empty", ["", " "]),
])  # fmt: skip
def test_what_is_measured_or_of_its_run_alone_is_none(title: str, cells: list[str]) -> None:
    assert not labels.is_label(title, cells)


def test_the_labels_of_a_document_are_its_settings_at_any_depth() -> None:
    document = {
        "date": "20261101-101010",
        "max_concurrency": 8,
        "mean_ttft_ms": 12.5,
        "build": "v1",
        "server": {"tp": 4, "port": 8001, "token": "secret"},
        "records": {"note": "x"},
        "latency": {"avg": 1, "unit": "ms"},
        "command": "vllm serve m --dtype fp8 --port 8001 --eager",
        "sizes": [1, 2],
        "errors": ["", ""],
        "each": [{"a": 1}],
        "none": None,
        "reasoning": True,
    }
    assert labels.read_labels(document, {"max_concurrency"}) == {
        "build": "v1", "server.tp": "4", "command.dtype": "fp8", "command.eager": "on", "sizes": "1,2",
        "reasoning": "true",
    }  # fmt: skip


def test_short_flags_of_a_command_are_labels_and_leave_its_words() -> None:
    command = "vllm serve m -tp 2 --eager -x=1 --low -1"
    assert labels.read_flag_labels(command) == {"tp": "2", "eager": "on", "x": "1", "low": "-1"}
    assert labels.strip_flags(command) == "vllm serve m"
    assert dict(labels.pair_flags(command.split())) == {"eager": "-x=1", "low": "-1"}
    assert labels.read_labels({"cmd": "vllm serve m -tp 2", "note": "a -b"}) == {
        "cmd.tp": "2",
        "note": "a -b",
    }
