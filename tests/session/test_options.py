"""Flags: every one of `vllm bench serve` means the same or is refused by name."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from msgspec.structs import asdict

from loadgen.errors import UsageError
from loadgen.session.options import Options, bench_parser, parse
from loadgen.session.refused_options import REFUSED

# `vllm bench serve` 0.32: every flag of its own, and of each of its datasets.
# fmt: off
VLLM = [
    "backend", "base-url", "host", "port", "endpoint", "header", "insecure", "model", "served-model-name",
    "tokenizer", "tokenizer-mode", "skip-tokenizer-init", "trust-remote-code", "num-prompts",
    "request-rate", "burstiness", "max-concurrency", "ramp-up-strategy", "ramp-up-start-rps",
    "ramp-up-end-rps", "self-timed", "probe-request-rate", "num-warmups", "ready-check-timeout-sec", "seed",
    "ignore-eos", "logprobs", "extra-body", "chat-template-kwargs", "request-id-prefix", "use-beam-search",
    "top-p", "top-k", "min-p", "temperature", "frequency-penalty", "presence-penalty", "repetition-penalty",
    "lora-modules", "lora-assignment", "input-len", "output-len", "label", "save-result", "save-detailed",
    "append-result", "metadata", "result-dir", "result-filename", "percentile-metrics",
    "metric-percentiles", "goodput", "disable-tqdm", "plot-timeline", "timeline-itl-thresholds",
    "plot-dataset-stats", "dataset-name", "dataset-path", "no-stream", "no-oversample",
    "skip-chat-template", "enable-multimodal-chat", "disable-shuffle", "random-input-len",
    "random-output-len", "random-range-ratio", "random-prefix-len", "random-batch-size", "no-reranker",
]
# fmt: on
# fmt: off
DATASETS = [
    "no-self-timed", "random-mm-base-items-per-request", "random-mm-num-mm-items-range-ratio",
    "random-mm-limit-mm-per-prompt", "random-mm-bucket-config", "sharegpt-output-len", "custom-output-len",
    "custom-ensure-client-side-data", "spec-bench-output-len", "spec-bench-category",
    "speed-bench-dataset-subset", "speed-bench-output-len", "speed-bench-category",
    "prefix-repetition-prefix-len", "prefix-repetition-suffix-len", "prefix-repetition-num-prefixes",
    "prefix-repetition-output-len", "blazedit-min-distance", "blazedit-max-distance",
    "asr-min-audio-len-sec", "asr-max-audio-len-sec", "timed-trace-chunk-hash-size",
    "timed-trace-sec-multiplier", "timed-trace-label-timestamp", "timed-trace-label-input-length",
    "timed-trace-label-output-length", "timed-trace-label-hash-ids", "hf-subset", "hf-split", "hf-name",
    "hf-output-len",
]
# fmt: on
KNOWN = {option for action in bench_parser()._actions for option in action.option_strings}


@pytest.mark.parametrize("flag", [f"--{name}" for name in VLLM])
def test_every_flag_of_vllm_is_taken_or_refused_as_theirs(flag: str) -> None:
    if flag in KNOWN:
        return
    with pytest.raises(UsageError, match=re.escape(f"{flag} of `vllm bench serve` is not supported")):
        parse([flag, "1"])


@pytest.mark.parametrize("flag", [f"--{name}" for name in DATASETS])
def test_every_flag_of_vllms_other_datasets_is_refused_as_theirs(flag: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{flag} of `vllm bench serve` is not supported")):
        parse([flag, "1"])


def test_no_flag_is_both_taken_and_refused() -> None:
    assert KNOWN.isdisjoint(REFUSED)


def test_the_drop_in_command_says_what_it_says_there() -> None:
    command = (
        "--base-url http://localhost:8000 --model qwen3 --tokenizer /models/Qwen/Qwen3-8B "
        "--dataset-name random --random-input-len 2048 --random-output-len 128 --num-prompts 100 "
        "--max-concurrency 8"
    )
    assert parse(shlex.split(command)) == Options(
        base_url="http://localhost:8000",
        model="qwen3",
        tokenizer="/models/Qwen/Qwen3-8B",
        overrides={"input_len": 2048, "output_len": 128, "num_prompts": 100, "max_concurrency": 8},
    )


@pytest.mark.parametrize(
    ("command", "overrides"),
    [
        ("", {}),
        ("--input-len 5 --output-len 6", {"input_len": 5, "output_len": 6}),
        ("--random-input-len=5", {"input_len": 5}),
        ("--request-rate inf --burstiness inf", {"request_rate": float("inf"), "burstiness": float("inf")}),
        ("--random-range-ratio 0.5 --random-prefix-len 3", {"range_ratio": "0.5", "prefix_len": 3}),
        ("--ignore-eos", {"ignore_eos": True}),
        ("--no-ignore-eos", {"ignore_eos": False}),
        ("--no-stream", {"stream": False}),
        ("--num-warmups wave", {"num_warmups": "wave"}),
        ("--num-warmups 3", {"num_warmups": 3}),
        (
            "--top-k 5 --top-p 0.5 --min-p 0 --temperature 0",
            {"top_k": 5, "top_p": 0.5, "min_p": 0, "temperature": 0},
        ),
        ("""--extra-body '{"a": {"b": 1}}'""", {"extra_body": {"a": {"b": 1}}}),
        ("""--chat-template-kwargs '{"a": false}'""", {"chat_template_kwargs": {"a": False}}),
        ("--backend openai-chat", {"backend": "openai-chat"}),
        ("--percentile-metrics ttft,e2el", {"percentile_metrics": "ttft,e2el"}),
        ("--metric-percentiles 50,99.9", {"metric_percentiles": "50,99.9"}),
        ("--goodput ttft:500 tpot:50", {"goodput": ["ttft:500", "tpot:50"]}),
        ("--request-timeout 0 --stall-timeout 1.5", {"request_timeout": 0, "stall_timeout": 1.5}),
    ],
)
def test_flags_of_the_workload_are_keys_of_a_profile(command: str, overrides: dict[str, Any]) -> None:
    found = parse(shlex.split(command)).overrides
    assert {key: list(v) if isinstance(v, tuple) else v for key, v in found.items()} == overrides


@pytest.mark.parametrize(
    ("command", "changes"),
    [
        ("--host example --port 81", {"base_url": "http://example:81"}),
        ("--host example", {"base_url": "http://example:8000"}),
        ("--port 81", {"base_url": "http://127.0.0.1:81"}),
        ("--profile a,b", {"profiles": ("a", "b")}),
        ("--port 81 --header A=b C=d=e --header F=g", {
            "base_url": "http://127.0.0.1:81", "headers": {"A": "b", "C": "d=e", "F": "g"}}),
        ("--metadata a=b c=d --metadata e=f", {"metadata": ("a=b", "c=d", "e=f")}),
        ("--disable-tqdm", {"quiet": True}),
        ("--seed 0", {"seed": 0}),
        ("--seed=-1", {"seed": -1}),
        ("--port 81 --ready-check-timeout-sec 60", {
            "base_url": "http://127.0.0.1:81", "ready_check_timeout_s": 60.0}),
        ("--save-result --save-detailed --append-result", {
            "save_result": True, "save_detailed": True, "append_result": True}),
        ("--result-dir d --result-filename f --label l", {
            "result_dir": "d", "result_filename": "f", "label": "l"}),
        ("--request-id-prefix x-", {"request_id_prefix": "x-"}),
        ("--port 81 --transport httpx --http2 --insecure", {
            "base_url": "http://127.0.0.1:81", "transport": "httpx", "http2": True, "insecure": True}),
    ],
)  # fmt: skip
def test_other_flags_are_options(command: str, changes: dict[str, Any]) -> None:
    found = asdict(parse(shlex.split(command)))
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}
    assert plain == {**asdict(Options()), **changes}


def test_every_workload_flag_is_named_after_its_key() -> None:
    from loadgen.workload.profile import Profile

    own = {"name", "description", "ladder", "table", "server"}  # [server] has flags of its own
    dests = {action.dest for action in bench_parser()._actions}
    assert set(Profile.model_fields) - own <= dests
