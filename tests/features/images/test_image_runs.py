"""Image runs: what a run with images learns of their tokens, and what ends it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders.loops import loop_over, read_tables
from builders.provoked_data import of_images
from fakes.hosted_api import KEY, HostedApi
from fakes.scripted_server import Answer, Asked, whole
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.features.images.image_counts import BY_TEXT, count_image_tokens

TABLES = read_tables("image_runs")

pytestmark = [pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]
LOAD = ["--num-prompts", "6", "--max-concurrency", "2", "--random-input-len", "40"]
LOAD += ["--random-output-len", "3", "--seed", "1", "--image-format", "png", "--image-size"]
TOKENS = 30  # of an image


def count(content: str | list[dict[str, Any]]) -> int:
    """A token a word, five of the template, and thirty an image."""
    if isinstance(content, str):
        return 5 + len(content.split())
    images = len([part for part in content if part["type"] == "image_url"])
    return 5 + len(str(content[0]["text"]).split()) + TOKENS * images


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def bench(api: Callable[[Asked], Answer], *words: str) -> int:
    with VirtualServing(api) as server:
        return cli.main(["bench", "--base-url", server.base_url, "--quiet", *LOAD, *words])


def stored() -> dict[str, Any]:
    (path,) = Path().rglob("result.json")
    result: dict[str, Any] = json.loads(path.read_text("utf-8"))["loadgen"]
    return result


def test_tokens_of_images_are_what_the_text_alone_has_less(capsys: pytest.CaptureFixture[str]) -> None:
    api = HostedApi(counts=count, owner="vllm")
    assert bench(api, "16x8", "--images", "1-2", "--no-observe") == 0
    result, shown = stored(), capsys.readouterr().out
    counts = result["data"]["images"]["counts"]
    images = result["images"]
    assert images["tokens_per_image"] == TOKENS
    assert (images["images"], images["tokens"]) == (sum(counts), TOKENS * sum(counts))
    assert images["how"] == "the server's count of a prompt less that of the same text alone"
    assert f" a second, {TOKENS} tokens each" in " ".join(shown.split())
    assert "images-ignored" not in shown
    probes = [body for body in api.served[-6:] if body["max_completion_tokens"] == 1]
    assert len(probes) == len(result["image_probes"]) == 6
    assert all(isinstance(body["messages"][0]["content"], str) for body in probes)


def test_a_server_that_ignores_images_is_doubted(capsys: pytest.CaptureFixture[str]) -> None:
    def ignore(content: str | list[dict[str, Any]]) -> int:
        return count(content if isinstance(content, str) else content[0]["text"])

    assert bench(HostedApi(counts=ignore, owner="vllm"), "16x8", "--no-observe") == 0
    assert "0 tokens for 6 images" in " ".join(capsys.readouterr().out.split())


# What vLLM 0.32, SGLang 0.5.23 and llama.cpp's server answer where they serve a Qwen3.
@loop_over(("status", "error"), TABLES["refusals"])
def test_a_model_without_vision_is_one_line(
    status: int, error: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    api = HostedApi(counts=count, owner="vllm")

    def refuse(asked: Asked) -> Answer:
        if b'"image_url"' not in asked.body:
            return api(asked)
        return Answer([whole(msgspec.json.encode(error), f"{status} Refused")])

    assert bench(refuse, "16x8") == 1
    said = capsys.readouterr().err
    assert f"refuses images ({status}: {error.get('error', error)['message']}" in said
    assert "serve a vision model (--model; llama.cpp: --mmproj)" in said
    assert said.count("\n") == 1


@loop_over(("more", "tokens"), [(0, {0}), (64, {64, 66})])
def test_texts_that_vary_are_not_taken_for_images_that_are_ignored(more: int, tokens: set[int]) -> None:
    run = of_images(more)
    run.records.input_tokens[2::2] += 2  # texts of some other length than planned
    counted, how = count_image_tokens(run.facts, run.records)
    assert (set(counted.tolist()), how) == (tokens, BY_TEXT)
