"""What trtllm-bench prints is a run for each overview in a text."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.features.roofline import machines
from loadgen.study.audit.findings import audit_runs
from loadgen.study.compare import run_groups
from loadgen.study.importers import result_sources
from loadgen.study.run_summary import Reported
from loadgen.verdict.verdict import Level

DATA = Path(__file__).parents[3] / "data" / "results"
REAL = {
    "0.21": {"completed": 100, "concurrency": 94.605, "request_throughput": 86.5373,
        "output_throughput": 11076.77, "total_token_throughput": 22153.5399, "duration": 1.1555715,
        "mean_e2el_ms": 1093.2284, "min_e2el_ms": 1050.1519, "max_e2el_ms": 1137.6817,
        "median_e2el_ms": 1091.7905, "p90_e2el_ms": 1130.72, "p95_e2el_ms": 1133.0074,
        "p99_e2el_ms": 1137.6817, "mean_ttft_ms": 162.6706, "min_ttft_ms": 93.921, "max_ttft_ms": 232.4339,
        "median_ttft_ms": 159.7857, "p90_ttft_ms": 220.053, "p95_ttft_ms": 226.9148, "p99_ttft_ms": 232.4339,
        "mean_tpot_ms": 7.3272, "min_tpot_ms": 6.645, "max_tpot_ms": 8.1306, "median_tpot_ms": 7.6079,
        "p90_tpot_ms": 8.1246, "p95_tpot_ms": 8.1289, "p99_tpot_ms": 8.1306},
    "docs": {"request_throughput": 43.2089, "output_throughput": 5530.7382,
        "total_token_throughput": 94022.5497, "duration": 115.7169214, "mean_e2el_ms": 75903.4456,
        "mean_ttft_ms": 52667.0339, "min_ttft_ms": 3914.7621, "max_ttft_ms": 107501.2487,
        "median_ttft_ms": 52269.7072, "p90_ttft_ms": 96583.7187, "p95_ttft_ms": 101978.4566,
        "p99_ttft_ms": 106563.4497, "mean_tpot_ms": 182.9639, "min_tpot_ms": 32.8005,
        "max_tpot_ms": 208.4667, "median_tpot_ms": 204.0463, "p90_tpot_ms": 206.3863,
        "p95_tpot_ms": 206.5064, "p99_tpot_ms": 206.5821},
}  # fmt: skip
NOT_READ = ("not read: per user output throughput, per gpu output throughput, per user output speed",)
# What stands above it in NVIDIA/TensorRT-LLM's documentation of trtllm-bench.
PRINTED = """\
===========================================================
= PYTORCH BACKEND
===========================================================
Model:\t\t\tmeta-llama/Llama-3.1-8B-Instruct
TensorRT LLM Version:\t1.0
Quantization:\t\tFP8
"""
PRINTED += (
    (DATA / "trtllm_bench_0.21.stdout.txt")
    .read_text("utf-8")
    .replace("Quantization:           None\n", "")
    .replace("TP Size:                1", "TP Size:                2")
)


def read(tmp_path: Path, content: str) -> tuple[Reported, ...]:
    (tmp_path / "bench.out").write_text(content, "utf-8")
    found = result_sources.read_sources([str(tmp_path / "bench.out")])
    assert found.errors == ()
    return found.reported


def test_an_overview_has_its_figures_its_load_and_its_setup(tmp_path: Path) -> None:
    (run,) = read(tmp_path, PRINTED)
    assert run.figures == pytest.approx(REAL["0.21"])
    assert (run.name, run.engine, run.machine) == (
        "Llama-3.1-8B-Instruct-FP8", "TensorRT-LLM 1.0", "2 × GPU",
    )  # fmt: skip
    assert (run.input_len, run.output_len, run.load.max_concurrency) == (128, 128, None)
    assert run.remarks == NOT_READ
    (audited,) = audit_runs([run], machines.find_machine("h100"), None)
    assert audited.level is Level.VALID


def test_the_settings_of_two_overviews_tell_them_apart(tmp_path: Path) -> None:
    runs = read(tmp_path, PRINTED + PRINTED.replace("EP Size:                None", "EP Size:   2"))
    assert run_groups.name_rows(runs) == [
        "Llama-3.1-8B-Instruct-FP8 (ep size None)", "Llama-3.1-8B-Instruct-FP8 (ep size 2)",
    ]  # fmt: skip


def test_an_overview_alone_is_named_by_its_file(tmp_path: Path) -> None:
    (run,) = read(tmp_path, PRINTED[PRINTED.index("= PERFORMANCE") :])
    assert (run.name, run.figures["mean_ttft_ms"]) == ("bench", 162.6706)


@pytest.mark.parametrize("length", ["nan", "inf", "-1.5", "0", "none"])
def test_a_length_that_is_none_is_not_one_of_the_load(length: str, tmp_path: Path) -> None:
    (run,) = read(tmp_path, PRINTED.replace("128.0000", length))
    assert (run.input_len, run.output_len, run.load.asked_output_len) == (None, None, None)
    assert run.figures["mean_ttft_ms"] == 162.6706


@pytest.mark.parametrize("version", REAL)
def test_every_number_that_is_printed_has_its_place(version: str) -> None:
    (run,) = result_sources.read_sources([str(DATA / f"trtllm_bench_{version}.stdout.txt")]).reported
    assert run.figures == pytest.approx(REAL[version])
    assert run.remarks == NOT_READ
