"""What trtllm-bench prints is a run for each overview in a text."""

from __future__ import annotations

from pathlib import Path

from loadgen.features.roofline import machines
from loadgen.study.audit.findings import audit_runs
from loadgen.study.compare import run_groups
from loadgen.study.importers import result_sources
from loadgen.study.run_summary import Reported
from loadgen.verdict.verdict import Level

DATA = Path(__file__).parents[3] / "data" / "results"
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
