"""The main job against a real `transformers serve`: text only, no ignore_eos, no [DONE]."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.clients import loadgen, measured, read_json
from engines.running import Engine
from loadgen.records.record import Records

pytestmark = pytest.mark.engine


def _smoke(engine: Engine, model: Path) -> list[str]:
    return f"--base-url {engine.base_url} --model {model} --profile smoke".split()


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_the_smoke_profile_runs_as_it_is(
    backend: str, transformers_serve: Engine, model: Path, tmp_path: Path
) -> None:
    flags = [*_smoke(transformers_serve, model), "--tokenizer", str(model), "--backend", backend]
    finished = measured([*flags, "--seed", "1"], tmp_path)
    assert "server: transformers serve" in finished.out
    (run,) = (tmp_path / "runs").iterdir()
    whole_report = (run / "report.txt").read_text("utf-8")
    assert "tokens: as reported by the server in usage" in whole_report  # a terminal's few lines may lack it
    assert "prompts: text-vllm" in whole_report
    assert "note: ignore_eos is not sent" in whole_report
    result, records = read_json(run / "result.json"), Records.load(run / "arrivals.npz")
    assert (result["completed"], result["failed"]) == (32, 0)
    assert result["total_input_tokens"] == records.input_tokens.sum()
    assert result["total_output_tokens"] == records.output_tokens.sum() == records.tokens.sum()
    if backend == "openai":
        assert records.input_tokens.tolist() == records.planned_input.tolist()
    # In chat a message with the role alone comes before prefill, mostly in a read of its own.
    first_token_ns = records.arrival_ns[records.start[:-1]]
    assert (first_token_ns >= records.first_byte_ns).all()
    assert backend == "openai" or (first_token_ns > records.first_byte_ns).sum() > 8


def test_answers_without_a_stream_are_measured_end_to_end(
    transformers_serve: Engine, model: Path, tmp_path: Path
) -> None:
    flags = [*_smoke(transformers_serve, model), "--tokenizer", str(model), "--disable-stream"]
    finished = measured(flags, tmp_path)
    assert "End-to-end Latency" in finished.block
    assert "TTFT" not in finished.block


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        ("--model nope", 1, "Server is pinned to"),
        ("--prompt-format ids", 2, "takes text, not token ids"),
        ('--extra-body {"ignore_eos":true}', 1, "Unexpected fields in the request: {'ignore_eos'}"),
    ],
)
def test_what_it_refuses_ends_in_one_line(
    more: str, code: int, said: str, transformers_serve: Engine, model: Path, tmp_path: Path
) -> None:
    flags = [*_smoke(transformers_serve, model), "--tokenizer", str(model), "--num-prompts", "4"]
    finished = loadgen([*flags, *more.split()], tmp_path)
    assert (finished.code, finished.err.count("\n")) == (code, 1)
    assert said in finished.err


def test_a_server_that_does_not_name_its_model_is_asked_about(
    transformers_serve: Engine, tmp_path: Path
) -> None:
    finished = loadgen(["--base-url", transformers_serve.base_url, "--profile", "smoke"], tmp_path)
    assert finished.code == 1
    assert "pass --model" in finished.err
