"""A run's machine and model are known from what it tells, from flags, or it is said what to pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.features.roofline.estimate import ModelIdentity, find_ceiling
from loadgen.features.roofline.roofline_settings import Flags

CONFIG = str(Path(__file__).parents[2] / "data" / "configs" / "qwen3-8b.json")
H100 = ModelIdentity(model="Qwen/Qwen3-8B-FP8", gpu="NVIDIA H100 80GB HBM3", memory="2015.4 GiB")
PASS = "pass --hardware KEY (as jetson-thor) or --bandwidth GB/s"


def found(subject: ModelIdentity, **flags: object) -> tuple[str, float, str]:
    """The machine's key, its TB/s and the model; the reason instead where there is no ceiling."""
    ceiling, why = find_ceiling(subject, Flags(**flags))  # type: ignore[arg-type]
    if ceiling is None:
        return "", 0.0, why
    assert why == ""
    return ceiling.machine.key, ceiling.machine.bandwidth_bytes_per_s / 1e12, ceiling.model


@loop_over(
    ("subject", "flags", "expected"),
    [
        pytest.param(H100, {}, ("h100", 3.35, "Qwen/Qwen3-8B-FP8"), id="as the GPU says"),
        pytest.param(H100, {"hardware": "l4"}, ("l4", 0.3, "Qwen/Qwen3-8B-FP8"), id="the flag wins"),
        pytest.param(
            replace(H100, gpu="4 × NVIDIA H100 80GB HBM3", devices=2),
            {},
            ("h100", 6.7, "Qwen/Qwen3-8B-FP8"),
            id="two of four",
        ),
        pytest.param(
            replace(H100, gpu="", devices=2),
            {"hardware": "h100"},
            ("h100", 6.7, "Qwen/Qwen3-8B-FP8"),
            id="a key is of one device",
        ),
        pytest.param(
            replace(H100, gpu="", devices=2),
            {"hardware": "4xh100"},
            ("h100", 13.4, "Qwen/Qwen3-8B-FP8"),
            id="unless it counts them",
        ),
        pytest.param(
            replace(H100, devices=2), {"bandwidth_gb_per_s": 500.0}, ("", 0.5, H100.model), id="bandwidth"
        ),
        pytest.param(
            ModelIdentity(model="Qwen3-8B", gpu="Orin (nvgpu)", memory="7.4 GiB"),
            {},
            ("jetson-orin-nano", 0.102, "Qwen3-8B"),
            id="a board by its memory",
        ),
        pytest.param(
            ModelIdentity(model="tiny", gpu="NVIDIA L4"),
            {"model_config": CONFIG},
            ("l4", 0.3, "tiny"),
            id="a config that is given",
        ),
        pytest.param(
            ModelIdentity(model="Qwen/Qwen3-8B", simulated="jetson-thor/qwen3-8b-bf16"),
            {},
            ("jetson-thor", 0.273, "Qwen/Qwen3-8B"),
            id="the engine's preset",
        ),
        pytest.param(
            ModelIdentity(model="served", simulated="roofline/4xl4/Qwen3-8B"),
            {},
            ("l4", 1.2, "Qwen3-8B"),
            id="a preset of ours",
        ),
        pytest.param(
            ModelIdentity(model="bench", simulated="bench/1024x50"),
            {"hardware": "l4", "model_config": CONFIG},
            ("l4", 0.3, "bench"),
            id="a preset that is made up, with flags",
        ),
    ],
)
def test_the_machine_and_the_model_are_known(
    subject: ModelIdentity, flags: dict[str, object], expected: tuple[str, float, str]
) -> None:
    key, bandwidth, model = found(subject, **flags)
    assert (key, model) == (expected[0], expected[2])
    assert bandwidth == pytest.approx(expected[1])


@loop_over(
    ("subject", "flags", "why"),
    [
        pytest.param(
            ModelIdentity(model="tiny"),
            {},
            f"the memory bandwidth of the machine is unknown: {PASS}",
            id="no GPU",
        ),
        pytest.param(
            ModelIdentity(model="tiny", gpu="NVIDIA Vera"),
            {},
            f"NVIDIA Vera is not in the table of machines: {PASS}",
            id="unknown",
        ),
        pytest.param(
            ModelIdentity(model="tiny", gpu="NVIDIA L4, NVIDIA A10"),
            {},
            f"NVIDIA L4, NVIDIA A10 is not in the table of machines: {PASS}",
            id="two kinds",
        ),
        pytest.param(
            replace(H100, gpu="8 × NVIDIA H100 80GB HBM3"),
            {},
            "how many of the 8 × NVIDIA H100 80GB HBM3 are in use is unknown: pass --hardware, as 8xh100",
            id="how many",
        ),
        pytest.param(
            replace(H100, partitioned=True),
            {},
            "of NVIDIA H100 80GB HBM3 only a part is in use (MIG): pass --bandwidth GB/s of that part",
            id="MIG",
        ),
        pytest.param(
            ModelIdentity(model="tiny", gpu="NVIDIA L4"),
            {},
            "the shape of tiny is unknown: pass --model-config, its config.json",
            id="unknown model",
        ),
        pytest.param(ModelIdentity(model="bench", simulated="bench/1024x50"), {}, "", id="made up"),
    ],
)
def test_what_is_not_known_says_what_to_pass(
    subject: ModelIdentity, flags: dict[str, object], why: str
) -> None:
    assert found(subject, **flags) == ("", 0.0, why)


def test_weights_that_the_engine_itself_makes_smaller_are_counted_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(Path(CONFIG).read_bytes())
    plain = ModelIdentity(model="m", checkpoint_path=str(tmp_path), declared="BF16", gpu="NVIDIA L4")
    sizes = {}
    for as_run in ("", "none", "fp8"):
        ceiling, _ = find_ceiling(replace(plain, as_run=as_run), Flags())
        assert ceiling is not None
        sizes[as_run] = (round(ceiling.weights.dense_bytes / 1e9, 2), ceiling.weights.computes)
    assert sizes == {"": (15.14, "bf16"), "none": (15.14, "bf16"), "fp8": (8.19, "fp8")}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (Flags(hardware="h2000"), "--hardware h2000: unknown, the nearest is h200"),
        (Flags(bandwidth_gb_per_s=0.0), "--bandwidth 0: give the GB/s"),
        (Flags(model_config="none.json"), "none.json cannot be read: No such file"),
    ],
)
def test_flags_are_checked_before_a_run(flags: Flags, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        flags.check()
    Flags("h200", 4000.0, CONFIG).check()


def test_a_checkpoint_that_is_broken_costs_the_roofline_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(json.loads(Path(CONFIG).read_text())))
    (tmp_path / "model.safetensors").write_bytes(b"")
    subject = ModelIdentity(model="m", checkpoint_path=str(tmp_path), gpu="NVIDIA L4")
    assert found(subject) == (
        "",
        0.0,
        f"{tmp_path / 'model.safetensors'} is not a safetensors file, or is cut off: copy it again",
    )
