"""Where a run looks for a server's metrics, by what the server is, and what it says where there are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from fakes.scripted_server import Answer, Asked, api, stream, whole
from fakes.virtual_run import BASE_URL, serving
from loadgen import cli
from loadgen.server import scraper

EXPOSITIONS = Path(__file__).parents[1] / "data" / "metrics"


def run_at(owner: str, metrics: dict[str, str]) -> tuple[set[str], dict[str, Any] | None]:
    """A run at the server whose models are this owner's; the metrics' paths it asked for, and its window."""
    asked_for = set[str]()
    plain = api(lambda _: stream(5, 0.02), owner=owner)

    def script(asked: Asked) -> Answer:
        path = asked.head.split()[1]
        if not path.endswith("/metrics"):
            return plain(asked)
        asked_for.add(path)
        if path not in metrics:
            return Answer([whole(b"", "404 Not Found")])
        return Answer([whole((EXPOSITIONS / f"{metrics[path]}.txt").read_bytes())])

    with serving(script):
        words = "--random-input-len 5 --random-output-len 5 --num-prompts 4 --transport wire"
        assert cli.main(["bench", "--quiet", "--base-url", BASE_URL, *words.split()]) == 0
    directory = max(Path("runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    window: dict[str, Any] | None = json.loads((directory / "result.json").read_text())["loadgen"]["window"]
    return asked_for, window


@loop_over(
    ("owner", "metrics", "paths", "names", "error"),
    [
        ("tensorrt_llm", {"/prometheus/metrics": "trtllm"}, {"/prometheus/metrics"}, "trtllm", ""),
        ("tensorrt_llm", {}, {"/prometheus/metrics"}, "", "/prometheus/metrics answers 404 (sglang needs"),
        ("lmdeploy", {"/metrics": "lmdeploy"}, {"/metrics"}, "lmdeploy", ""),
        ("someone", {"/metrics": "dynamo_frontend"}, {"/metrics"}, "dynamo", ""),
        ("library", {}, set(), "", "Ollama has no /metrics in any release"),
        ("someone", {}, {"/metrics"}, None, ""),
    ],
)
def test_metrics_are_read_where_the_engine_has_them(
    owner: str,
    metrics: dict[str, str],
    paths: set[str],
    names: str | None,
    error: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("run"))
        patch.setattr(scraper, "_IDLE_S", 0.5)
        asked_for, window = run_at(owner, metrics)
    assert asked_for == paths
    assert (None if window is None else window["names"]) == names
    assert window is None or window["trouble"].startswith(error)
