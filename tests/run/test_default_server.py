"""Which server a command means: the one on vLLM's port, or the embedded engine where that is meant."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import loadgen
from builders.loops import loop_over
from fakes.scripted_server import api, closed_port, stream
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.plan.profile import Profile
from loadgen.run import attach
from loadgen.run.command import keywords, options
from loadgen.run.command.options import DEFAULT_URL, SPEAKING_OF_A_SERVER, Options, parse
from loadgen.settings import request_settings
from loadgen.settings.keyword_types import BenchOptions
from loadgen.study.series.ladder_command import ladder_parser

# Every other flag, by its name in the parser: alone it leaves the run to the embedded engine. A new flag must
# be in one of the two.
# fmt: off
SILENT = [
    "help", "preset",
    # a server started for the run: with --launch there is another address, without it these are refused
    "launch", "launch_command", "launch_container", "container_engine", "container_args", "server_args",
    "server_env", "server_python", "context_len", "memory_fraction", "tensor_parallel", "quantization",
    "skip_tokenizer", "prefix_caching", "server_seed", "max_running", "launch_timeout_sec", "dry_run",
    # the workload
    "profile", "input_len", "output_len", "range_ratio", "prefix_len", "num_prompts", "max_concurrency",
    "request_rate", "burstiness", "exact_rate", "duration", "num_warmups", "seed", "prompt_format",
    "ignore_eos",
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
    "logprobs", "extra_body", "chat_template_kwargs", "stream", "continuous_usage", "request_id_prefix",
    "print_request", "export_requests", "min_tokens", "prefill_concurrency", "cancel_rate", "cancel_after",
    "schedule", "bursts", "ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps", "classes",
    "num_sessions", "turns", "think_time", "turn_delays", "assistant", "session_header", "turn_timeout",
    "users", "user_rate", "max_requests",
    "image_size", "images", "image_dir", "image_format",
    "random_mm_base_items_per_request", "random_mm_num_mm_items_range_ratio",
    "random_mm_limit_mm_per_prompt", "random_mm_bucket_config",
    # the data: of no file, as random prompts are without
    "disable_shuffle", "no_oversample", "skip_chat_template", "sharegpt_output_len", "custom_output_len",
    "dataset_category",
    "prefix_repetition_prefix_len", "prefix_repetition_suffix_len", "prefix_repetition_num_prefixes",
    "prefix_repetition_output_len", "timed_trace_label_timestamp", "timed_trace_label_input_length",
    "timed_trace_label_output_length", "timed_trace_label_hash_ids", "timed_trace_chunk_hash_size",
    "timed_trace_sec_multiplier", "every_input_len", "every_output_len", "prompt_corpus", "compat",
    "input_dist", "output_dist", "prefix_groups", "prefix_zipf", "trace_format", "self_timed",
    "trace_window", "speed_up", "trace_max_input_len", "trace_max_output_len", "trace_too_long",
    "trace_idle_cap", "trace_jitter", "trace_replay",
    # the run
    "transport", "http2", "source_address", "request_timeout", "stall_timeout", "repeat", "selftest",
    "fingerprint", "observe", "quiet", "disable_tqdm", "max_failures", "max_consecutive_failures",
    "max_duration_s", "drain_timeout_s", "stop_when_saturated", "workers", "live_totals",
    "shard", "start_at", "expect_plan", "cluster", "shards",
    # the output
    "layout", "formula", "depth", "batch_sizes",
    "percentile_metrics", "metric_percentiles", "goodput", "slo", "warmup",
    "cooldown", "explain", "strict", "save_result", "save_detailed", "append_result", "save_requests",
    "fail_on", "json", "result_dir", "result_filename", "run_dir", "metadata", "label", "otel",
    "prometheus", "receive_spans",
]
# fmt: on
FLAGS = {action.dest: action.option_strings for action in ladder_parser()._actions}


def test_every_flag_either_speaks_of_a_server_or_does_not() -> None:
    assert SPEAKING_OF_A_SERVER.isdisjoint(SILENT)
    named = set(FLAGS) | set(BenchOptions.__annotations__)
    assert named ^ (SPEAKING_OF_A_SERVER | set(SILENT)) == set()


@loop_over("name", sorted(SPEAKING_OF_A_SERVER))
def test_with_a_flag_that_speaks_of_a_server_vllms_is_meant(name: str) -> None:
    assert options.find_default_url({name, "num_prompts"}, launched=False) == DEFAULT_URL
    assert options.find_default_url({name, "preset"}, launched=False) is None
    assert options.find_default_url({name}, launched=True) is None


@loop_over("name", SILENT)
def test_without_one_the_embedded_engine_is_meant(name: str) -> None:
    assert options.find_default_url({name}, launched=False) is None


AT_DEFAULT = {"base_url": DEFAULT_URL, "default_url": True, "default_port": True}
COPIED = (
    "--model X --dataset-name random --random-input-len 2048 --random-output-len 128 --num-prompts 100 "
    "--max-concurrency 8"
)


@loop_over(
    ("line", "base_url", "default_url"),
    [
        ("", None, False),
        ("--profile smoke", None, False),
        ("--num-prompts 5 --save-result --label l", None, False),
        ("--preset instant", None, False),
        ("--preset instant --model m --tokenizer t --hardware l4", None, False),
        ("--launch vllm --model m --hardware l4", None, False),
        (COPIED, DEFAULT_URL, True),
        ("--dataset-name random", DEFAULT_URL, True),
        ("--profile smoke --model m", DEFAULT_URL, True),
        ("--backend vllm", DEFAULT_URL, True),
        ("--backend vllm-chat", DEFAULT_URL, True),
        ("--backend openai-chat --model m", DEFAULT_URL, True),
        ("--backend llama.cpp", DEFAULT_URL, True),
        *[
            (f"--backend {name} --model m", "http://127.0.0.1:30000", True)
            for name in ("sglang", "sglang-native", "sglang-oai", "sglang-oai-chat")
        ],
        *[(f"--backend {name}", "http://127.0.0.1:23333", True) for name in ("lmdeploy", "lmdeploy-chat")],
        ("--backend=lmdeploy --host h", "http://h:23333", False),
        ("--backend sglang --port 81", "http://127.0.0.1:81", False),
        ("--backend sglang --base-url http://h:1", "http://h:1", False),
        ("--backend sglang --preset instant", None, False),
        ("--backend sglang --endpoint /v1/completions", DEFAULT_URL, True),  # of vLLM's client
        ("--backend lmdeploy --endpoint-type openai-comp", "http://127.0.0.1:23333", True),
        ("--header A=b", DEFAULT_URL, True),
        ("--server-trace d", DEFAULT_URL, True),
        ("--model m --base-url http://h:1", "http://h:1", False),
        ("--model m --base-url http://127.0.0.1:8000", DEFAULT_URL, False),
        ("--model m --host h", "http://h:8000", False),
        ("--model m --port 81", "http://127.0.0.1:81", False),
    ],
)
def test_a_command_line_means_a_server(line: str, base_url: str | None, default_url: bool) -> None:
    found = parse(shlex.split(line))
    assert (found.base_url, found.default_url) == (base_url, default_url)


@loop_over(
    ("base_url", "given", "expected"),
    [
        (None, {}, {}),
        (None, {"num_prompts": 5}, {}),
        (None, {"preset": "instant", "model": "m"}, {"preset": "instant", "model": "m"}),
        (None, {"model": "m"}, {**AT_DEFAULT, "model": "m"}),
        (None, {"backend": "sglang"}, {**AT_DEFAULT, "base_url": "http://127.0.0.1:30000"}),
        (None, {"backend": "lmdeploy-chat"}, {**AT_DEFAULT, "base_url": "http://127.0.0.1:23333"}),
        ("http://h:1", {"model": "m"}, {"base_url": "http://h:1", "model": "m"}),
    ],
)
def test_a_call_means_the_same_server(
    base_url: str | None, given: dict[str, Any], expected: dict[str, object]
) -> None:
    found = vars(keywords.parse_call(base_url, None, given)[0])
    overrides = {name: value for name, value in given.items() if name in ("num_prompts", "backend")}
    overrides |= (
        {"backend": request_settings.find_backend(overrides["backend"])} if "backend" in overrides else {}
    )
    assert found == {**vars(Options(quiet=True)), "overrides": overrides, **expected}


@pytest.fixture
def default_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.chdir(tmp_path)
    return monkeypatch


def moved(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Have the default address at a port that is ours: 8000 may be anyone's."""
    monkeypatch.setattr(options, "DEFAULT_URL", url)


@pytest.mark.parametrize("verb", ["bench", "ladder"])
def test_nothing_there_is_one_line_with_both_ways(
    verb: str, default_port: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    moved(default_port, url)
    copied = COPIED if verb == "bench" else "--model X"
    assert cli.main([verb, "--quiet", *copied.split()]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"loadgen: {url} is not ready: ")
    assert said.err.endswith(f"{options.explain_no_server(url)}\n")
    assert "this is vLLM's)" in said.err
    assert said.err.count("\n") == 1
    assert not list(Path().rglob("*.json*"))


def test_a_call_raises_the_same(default_port: pytest.MonkeyPatch) -> None:
    moved(default_port, f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(loadgen.LoadgenError, match=r"--preset NAME"):
        loadgen.bench(model="m")


def test_an_address_that_was_given_has_no_such_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--quiet", "--base-url", f"http://127.0.0.1:{closed_port()}"]) == 1
    assert "--preset" not in capsys.readouterr().err


def test_the_copied_command_measures_the_server_there(
    default_port: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with VirtualServing(api(lambda _: stream(), owner="vllm")) as server:
        moved(default_port, server.base_url)
        small = "--model m --dataset-name random --random-input-len 8 --random-output-len 3 --num-prompts 4"
        assert cli.main(["bench", "--quiet", *small.split(), "--save-result"]) == 0
        assert len([asked for asked in server.asked if asked.head.startswith("POST")]) == 4
        measured = f"{server.base_url}/v1/completions"
    assert measured in " ".join(capsys.readouterr().out.split())
    (result,) = (json.loads(path.read_text("utf-8")) for path in Path().glob("*.json"))
    assert (result["model_id"], "simulated" in result) == ("m", False)


@loop_over(
    ("backend", "line", "port"),
    [
        ("sglang", "--model m", 30000),
        ("sglang", "--model m --host 127.0.0.2", 30000),
        ("sglang", "--model m --endpoint /v1/completions", 8000),
        ("sglang", "--model m --backend openai", 8000),
        ("sglang", "--model m --port 8123", 8123),
        ("sglang", "--model m --base-url http://127.0.0.1:8123", 8123),
        ("openai-chat", "--model m", 8000),
        ("openai-chat", "--model m --backend lmdeploy-chat", 23333),
    ],
)
def test_a_profile_names_the_client_whose_port_is_meant(backend: Any, line: str, port: int) -> None:
    options = attach._set_default_port(parse(shlex.split(line)), Profile(backend=backend))
    assert str(options.base_url).endswith(f":{port}")


@loop_over(("name", "whose"), [("sglang", "SGLang"), ("lmdeploy", "LMDeploy"), ("vllm", "vLLM")])
def test_whose_port_a_default_is_can_be_read(name: str, whose: str) -> None:
    url = options.find_default_url({"backend"}, False, request_settings.find_default_port(name))
    assert f"this is {whose}'s)" in options.explain_no_server(url or "")
