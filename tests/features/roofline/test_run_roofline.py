"""A run's facts become its machine and its model, and its figures those that a bound takes."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from builders import made_cases as made
from builders.loops import loop_over
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Server
from loadgen.facts.sensor_facts import SensorSummary
from loadgen.features import roofline
from loadgen.features.roofline import roofline_checks, run_roofline
from loadgen.features.roofline.estimate import ModelIdentity
from loadgen.features.roofline.roofline_settings import Flags
from loadgen.report import report
from loadgen.report.run_directory import Result
from loadgen.server.checkpoint import Checkpoint
from loadgen.server.engine_config import EngineConfig

SERVER = Server(
    url="http://127.0.0.1:8000/v1/completions", engine="vLLM", model="m", model_root="Qwen/Qwen3-8B"
)
SENSED = SensorSummary(duration_s=1, period_s=1, samples=1, cpu_ms_per_sample=1, gpus=("GPU 0", "GPU 1"))


def test_the_facts_say_what_ran_on_what() -> None:
    facts = made.run(
        server=SERVER,
        environment={"gpu": "2 × NVIDIA L4", "memory": "251.5 GiB", "gpu_mig": "on"},
        checkpoint=Checkpoint(path="models/q", config_digest="", quantization="FP8"),
        as_run=EngineConfig(quantization="fp8", kv_cache_dtype="fp8_e4m3", tensor_parallel=2),
    ).facts
    assert run_roofline.identify_model(facts) == ModelIdentity(
        model="Qwen/Qwen3-8B",
        checkpoint_path="models/q",
        declared="FP8",
        as_run="fp8",
        kv_dtype="fp8_e4m3",
        gpu="2 × NVIDIA L4",
        memory="251.5 GiB",
        partitioned=True,
        devices=2,
    )


@pytest.mark.parametrize(
    ("how", "devices"),
    [
        ({"server_gpus": ("GPU 0", "GPU 1")}, 2),
        ({"server_gpus": ("GPU 0",)}, 1),
        ({"server_gpus": ()}, None),
    ],
)
def test_the_devices_are_those_with_memory_of_the_server(how: dict[str, Any], devices: int | None) -> None:
    facts = made.run(sensed=SENSED.model_copy(update=how)).facts
    assert run_roofline.identify_model(facts).devices == devices


def test_a_simulated_server_is_of_the_model_that_its_preset_plays() -> None:
    simulated = replace(SERVER, simulated="jetson-thor/qwen3-8b-bf16", model="Qwen/Qwen3-8B")
    facts = run_roofline.add_ceiling(made.run(server=simulated, ceiling=None).facts, Flags())
    assert facts.ceiling is not None
    assert (facts.ceiling.machine.key, facts.ceiling.model) == ("jetson-thor", "Qwen/Qwen3-8B")
    assert facts.no_ceiling == ""


def test_tokens_that_prompts_share_leave_ttft_out() -> None:
    for prefix, keys in ((0, {"mean_ttft_ms", "mean_tpot_ms", "median_itl_ms"}), (50, {"mean_tpot_ms"})):
        case = made.run(workload={"prefix_len": prefix, "percentile_metrics": "e2el"})
        figures, load = roofline_checks.list_bound_figures(case.facts, case.metrics)
        assert {key for key in figures if key in keys} == keys
        assert ("mean_ttft_ms" in figures) == (prefix == 0)
        assert (load.input_len, load.output_len, load.max_concurrency) == (100, 11, 8)


@loop_over(
    ("facts", "length"),
    [
        ({}, None),
        ({"as_run": EngineConfig(speculative="eagle, 3 tokens")}, 1.0),  # a token a message
        ({"window": made.observed(drafts=1000, accepted_tokens=1200)}, 3200 / 2000),
        ({"window": made.observed(drafts=1000, accepted_tokens=3200)}, None),  # others' tokens too
    ],
)
def test_a_pass_over_the_weights_gives_what_drafts_gave(facts: dict[str, Any], length: float | None) -> None:
    case = made.run(**facts)
    figures, _ = roofline_checks.list_bound_figures(case.facts, case.metrics)
    assert figures.get("acceptance_length") == length
    said = " ".join(report.render_report(Result(case.facts, case.records)).split())
    assert ("tokens a pass" in said) == (length == 1.6)


def test_the_report_has_the_roofline_or_why_there_is_none() -> None:
    case = made.run()
    text = " ".join(report.render_report(Result(case.facts, case.records)).split())
    assert "roofline: 700 tok/s at best (15.2 GB a step of 5.33 requests, this machine at 2000 GB/s)" in text
    without = replace(case.facts, ceiling=None, no_ceiling="pass --hardware KEY")
    assert (
        "\nroofline: unknown: pass --hardware KEY\n"
        in report.render_report(Result(without, case.records)) + "\n"
    )
    silent = replace(without, no_ceiling="")
    assert "\nroofline" not in report.render_report(Result(silent, case.records))


@loop_over(
    ("given", "hardware", "count"),
    [(0, "4xh100", 4), (0, "l4", 1), (2, "4xh100", 2), (0, None, 0)],
)
def test_the_hardware_that_is_named_says_how_many_gpus(given: int, hardware: str | None, count: int) -> None:
    facts = made.run(gpus=given).facts
    assert run_roofline.add_ceiling(facts, Flags(hardware=hardware)).gpus == count


def test_a_preset_of_no_machine_needs_no_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bound", "estimate", "machines"):
        monkeypatch.delattr(roofline, name, raising=False)
        monkeypatch.setitem(sys.modules, f"{roofline.__name__}.{name}", None)
    case = made.run(server=replace(SERVER, simulated="instant"), ceiling=None)
    assert run_roofline.add_ceiling(case.facts, Flags()) == case.facts
    assert "failed:" not in report.render_report(Result(case.facts, case.records))
    with pytest.raises(ImportError):
        run_roofline.add_ceiling(case.facts, Flags(hardware="l4"))
