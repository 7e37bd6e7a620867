"""Names of models taken apart, those of GGUF files too."""

from __future__ import annotations

from builders.loops import loop_over
from loadgen.roofline.models import split_gguf


@loop_over(
    ("model", "parts"),
    [
        ("/models/Qwen3-8B-Q4_K_M.gguf", ("Qwen3-8B", "GGUF-Q4_K_M")),
        ("Qwen/Qwen3-8B-GGUF:Q4_K_M", ("Qwen3-8B", "GGUF-Q4_K_M")),
        ("unsloth/Qwen3-8B-GGUF", ("Qwen3-8B", "GGUF")),
        ("Qwen3-235B-UD-Q4_K_XL-00001-of-00003.gguf", ("Qwen3-235B", "GGUF-UD-Q4_K_XL")),
        ("tiny.gguf", ("tiny", "")),
        ("/models/Qwen3-8B-FP8", ("Qwen3-8B", "FP8")),
        ("Qwen/Qwen3-8B", ("Qwen3-8B", "")),
    ],
)
def test_a_name_is_a_base_and_a_quantization(model: str, parts: tuple[str, str]) -> None:
    assert split_gguf(model) == parts
