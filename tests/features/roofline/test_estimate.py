"""A run's machine and model are known from its facts, from flags, or it is said what to pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders import made_cases as made
from builders.loops import loop_over, loop_over_named, read_tables
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Facts, SensorSummary, Server
from loadgen.features.roofline import bound, estimate
from loadgen.features.roofline.estimate import find_ceiling
from loadgen.features.roofline.roofline_settings import Flags
from loadgen.report import report
from loadgen.report.run_directory import Result
from loadgen.server.checkpoint import Checkpoint
from loadgen.server.engine_config import EngineConfig

TABLES = read_tables("roofline")
CONFIG = str(Path(__file__).parents[2] / "data" / "configs" / "qwen3-8b.json")
PASS = "pass --hardware KEY (as jetson-thor) or --bandwidth GB/s"


def told(
    model: str,
    simulated: str = "",
    devices: int | None = None,
    files: Checkpoint | None = None,
    as_run: str = "",
    **machine: str,
) -> Facts:
    """What a run of a model reports of itself, and its machine in its environment."""
    server = Server(url="http://h", engine="vLLM", model=model, simulated=simulated)
    engine = EngineConfig(quantization=as_run, tensor_parallel=devices)
    return made.run(server=server, environment=machine, checkpoint=files, as_run=engine).facts


def found(subject: dict[str, Any], **flags: object) -> tuple[str, float, str]:
    """The machine's key, its TB/s and the model; the reason instead where there is no ceiling."""
    given: Any = {name: CONFIG if value == "CONFIG" else value for name, value in flags.items()}
    ceiling, why = find_ceiling(told(**subject), Flags(**given))
    if ceiling is None:
        return "", 0.0, why
    assert why == ""
    return ceiling.machine.key, ceiling.machine.bandwidth_bytes_per_s / 1e12, ceiling.model


@loop_over_named(("subject", "flags", "expected"), TABLES["known"])
def test_the_machine_and_the_model_are_known(
    subject: dict[str, Any], flags: dict[str, object], expected: list[Any]
) -> None:
    key, bandwidth, model = found(subject, **flags)
    assert (key, model) == (expected[0], expected[2])
    assert bandwidth == pytest.approx(expected[1])


@loop_over_named(("subject", "flags", "why"), TABLES["unknown"])
def test_what_is_not_known_says_what_to_pass(
    subject: dict[str, Any], flags: dict[str, object], why: str
) -> None:
    assert found(subject, **flags) == ("", 0.0, why.replace("PASS", PASS))


def test_weights_that_the_engine_itself_makes_smaller_are_counted_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(Path(CONFIG).read_bytes())
    files = Checkpoint(path=str(tmp_path), config_digest="", quantization="BF16")
    sizes = {}
    for as_run in ("", "none", "fp8"):
        ceiling, _ = find_ceiling(told("m", files=files, as_run=as_run, gpu="NVIDIA L4"), Flags())
        assert ceiling is not None
        sizes[as_run] = (round(ceiling.weights.dense_bytes / 1e9, 2), ceiling.weights.computes)
    assert sizes == {"": (15.14, "bf16"), "none": (15.14, "bf16"), "fp8": (8.19, "fp8")}


def test_a_checkpoint_that_is_broken_costs_the_roofline_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(Path(CONFIG).read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"")
    files = Checkpoint(path=str(tmp_path), config_digest="")
    why = f"{tmp_path / 'model.safetensors'} is not a safetensors file, or is cut off: copy it again"
    assert found({"model": "m", "files": files, "gpu": "NVIDIA L4"}) == ("", 0.0, why)


SERVER = Server(
    url="http://127.0.0.1:8000/v1/completions", engine="vLLM", model="m", model_root="Qwen/Qwen3-8B"
)
SENSED = SensorSummary(duration_s=1, period_s=1, samples=1, cpu_ms_per_sample=1, gpus=("GPU 0", "GPU 1"))


@pytest.mark.parametrize(
    ("how", "devices"),
    [({"server_gpus": ("GPU 0", "GPU 1")}, 2), ({"server_gpus": ("GPU 0",)}, 1), ({"server_gpus": ()}, None)],
)
def test_the_devices_are_those_with_memory_of_the_server(how: dict[str, Any], devices: int | None) -> None:
    facts = made.run(sensed=SENSED.model_copy(update=how)).facts
    assert estimate.count_devices(facts) == devices


def test_a_simulated_server_is_of_the_model_that_its_preset_plays() -> None:
    played = replace(SERVER, simulated="jetson-thor/qwen3-8b-bf16", model="Qwen/Qwen3-8B")
    facts = estimate.add_ceiling(made.run(server=played, ceiling=None).facts, Flags())
    assert facts.ceiling is not None
    assert (facts.ceiling.machine.key, facts.ceiling.model) == ("jetson-thor", "Qwen/Qwen3-8B")
    assert facts.no_ceiling == ""
    case = made.run(server=replace(SERVER, simulated="instant"), ceiling=None)  # a preset of no machine
    assert estimate.add_ceiling(case.facts, Flags()) == case.facts
    assert "failed:" not in report.render_report(Result(case.facts, case.records))


def test_tokens_that_prompts_share_leave_ttft_out() -> None:
    for prefix, keys in ((0, {"mean_ttft_ms", "mean_tpot_ms", "median_itl_ms"}), (50, {"mean_tpot_ms"})):
        case = made.run(workload={"prefix_len": prefix, "percentile_metrics": "e2el"})
        figures, load = bound.list_bound_figures(case.facts, case.metrics)
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
    figures, _ = bound.list_bound_figures(case.facts, case.metrics)
    assert figures.get("acceptance_length") == length
    said = " ".join(report.render_report(Result(case.facts, case.records)).split())
    assert ("tokens a pass" in said) == (length == 1.6)


def test_the_report_has_the_roofline_or_why_there_is_none() -> None:
    case = made.run()
    text = " ".join(report.render_report(Result(case.facts, case.records)).split())
    assert "roofline: 700 tok/s at best (15.2 GB a step of 5.33 requests, this machine at 2000 GB/s)" in text
    without = replace(case.facts, ceiling=None, no_ceiling="pass --hardware KEY")
    text = report.render_report(Result(without, case.records))
    assert "roofline: unknown: pass --hardware KEY" in text.split("\n")
    silent = replace(without, no_ceiling="")
    assert "\nroofline" not in report.render_report(Result(silent, case.records))


@loop_over(("given", "hardware", "count"), [(0, "4xh100", 4), (0, "l4", 1), (2, "4xh100", 2), (0, None, 0)])
def test_the_hardware_that_is_named_says_how_many_gpus(given: int, hardware: str | None, count: int) -> None:
    facts = made.run(gpus=given).facts
    assert estimate.add_ceiling(facts, Flags(hardware=hardware)).gpus == count
