"""Images on a real vLLM that serves a tiny vision model: their tokens are those of its own processor."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines import place, running
from engines.clients import loadgen, measured, read_json, read_run, scrape
from engines.running import OFFLINE, Engine

pytestmark = pytest.mark.engine

SIZES = ((280, 140), (140, 280), (64, 64))
_PROMPT = "vllm:prompt_tokens_total"
_LOAD = ["--model", "qwen3", "--num-prompts", "12", "--max-concurrency", "2", "--num-warmups", "2"]
_LOAD += ["--random-input-len", "24", "--random-output-len", "4", "--seed", "1", "--image-size"]
# Prints how many tokens the processor makes of an image of each size, less the one of its place in the text.
_COUNT = """if True:
    import json, sys
    from PIL import Image
    from transformers import AutoProcessor
    processor, counts = AutoProcessor.from_pretrained(sys.argv[1]), []
    for width, height in json.loads(sys.argv[2]):
        made = processor(text=["<image>"], images=[Image.new("RGB", (width, height))])
        counts.append(len(made["input_ids"][0]))
    print(json.dumps(counts))
"""


@pytest.fixture(scope="module")
def vlm(engines_python: Path) -> Path:
    """The tiny vision model, with its processor."""
    return place.tiny_vlm(engines_python)


@pytest.fixture(scope="module")
def seeing_vllm(engines_python: Path, vlm: Path) -> Iterator[Engine]:
    """vLLM with the tiny vision model."""
    more = ["--no-enable-prefix-caching", "--limit-mm-per-prompt", '{"image": 2}']
    with running.vllm(engines_python, vlm, more) as engine:
        yield engine


def _count_by_processor(python: Path, model: Path) -> list[int]:
    argv = [str(python), "-c", _COUNT, str(model), json.dumps(SIZES)]
    found = subprocess.run(argv, check=True, capture_output=True, text=True, env={**os.environ, **OFFLINE})
    counts: list[int] = json.loads(found.stdout.splitlines()[-1])
    return counts


def test_tokens_of_images_are_the_processors_and_the_servers(
    seeing_vllm: Engine, engines_python: Path, vlm: Path, tmp_path: Path
) -> None:
    sizes = ", ".join(f"{width}x{height}" for width, height in SIZES)
    before = scrape(seeing_vllm.base_url)
    words = ["--base-url", seeing_vllm.base_url, "--tokenizer", str(vlm), *_LOAD, sizes, "--save-requests"]
    finished = measured(words, tmp_path)
    (directory,) = (tmp_path / "runs").iterdir()
    result = read_json(directory / "result.json")
    ours = result["loadgen"]
    rows = [json.loads(line) for line in (directory / "requests.jsonl").read_text("utf-8").splitlines()]
    own = dict(zip(SIZES, _count_by_processor(engines_python, vlm), strict=True))
    assert len(set(own.values())) == len(SIZES)
    planned = {own[width, height]: count for width, height, count in ours["data"]["images"]["sizes"]}
    assert Counter(row["image_tokens"] for row in rows) == planned
    assert ours["images"]["tokens"] == sum(tokens * count for tokens, count in planned.items())
    assert result["total_input_tokens"] == sum(row["input_tokens"] for row in rows)
    window = ours["window"]
    assert window["prompt_tokens"] == result["total_input_tokens"]
    assert scrape(seeing_vllm.base_url)[_PROMPT] - before[_PROMPT] > result["total_input_tokens"]
    assert "images-ignored" not in finished.out


def test_images_have_the_same_tokens_over_each_api(seeing_vllm: Engine, vlm: Path, tmp_path: Path) -> None:
    words = [
        "--base-url",
        seeing_vllm.base_url,
        "--tokenizer",
        str(vlm),
        *_LOAD,
        "280x140",
        "--images",
        "1-2",
    ]
    totals = []
    for backend in ("openai-chat", "openai-responses", "anthropic-messages"):
        (tmp_path / backend).mkdir()
        measured([*words, "--backend", backend], tmp_path / backend)
        images = read_run(tmp_path / backend)[0]["loadgen"]["images"]
        totals.append((images["images"], images["tokens"]))
    assert totals[0][1] > totals[0][0] > 12
    assert totals == totals[:1] * 3


def test_a_model_without_vision_ends_the_run_with_its_message(vllm: Engine, tmp_path: Path) -> None:
    finished = loadgen(["--base-url", vllm.base_url, *_LOAD, "64x64"], tmp_path)
    assert finished.code == 1
    assert "refuses images (400: qwen3 is not a multimodal model): serve a vision model" in finished.err
    assert finished.err.count("\n") == 1
