"""Flags: every one of `vllm bench serve` means the same or is refused by name."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.run.command.options import Options, bench_parser, parse

FLAGS = Path(__file__).parents[2] / "data" / "flags"
KNOWN = {option for action in bench_parser()._actions for option in action.option_strings}
VLLM_FLAGS = (FLAGS / "vllm.txt").read_text("utf-8").split()
REFUSED = sorted(set(VLLM_FLAGS) - KNOWN)


@loop_over("flag", REFUSED)
def test_every_flag_of_vllm_is_taken_or_refused_as_theirs(flag: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{flag} of `vllm bench serve` is not supported: ")):
        parse([flag, "1"])


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
        overrides={
            "dataset_name": "random",
            "input_len": 2048,
            "output_len": 128,
            "num_prompts": 100,
            "max_concurrency": 8,
        },
    )


@loop_over(
    ("command", "overrides"),
    [
        ("", {}),
        ("--input-len 5 --output-len 6", {"input_len": 5, "output_len": 6}),
        ("--random-input-len=5", {"input_len": 5}),
        ("--request-rate inf --burstiness inf", {"request_rate": float("inf"), "burstiness": float("inf")}),
        ("--random-range-ratio 0.5 --random-prefix-len 3", {"range_ratio": "0.5", "prefix_len": 3}),
        ("--ignore-eos", {"ignore_eos": True}),
        ("--no-ignore-eos", {"ignore_eos": False}),
        ("--disable-stream", {"stream": False}),
        ("--no-stream", {}),  # of a data set, which vLLM streams from the hub
        ("--max_concurrency 4 --num_prompts=5", {"max_concurrency": 4, "num_prompts": 5}),
        ("--dataset-name random-ids", {"dataset_name": "random"}),
        ("--input-len 5 --random-input-len 4", {"input_len": 5}),
        ("--output-len 5 --random-output-len 4", {"output_len": 5}),
        ("--dataset-path f --custom-output-len -1", {"dataset_path": "f", "custom_output_len": -1}),
        ("--dataset-name custom --custom-output-len 4 --output-len 5", {
            "dataset_name": "custom", "output_len": 5, "sharegpt_output_len": 5, "custom_output_len": 5,
            "prefix_repetition_output_len": 5}),
        ("--trace f --no-self-timed --speed-up 2", {"trace": "f", "self_timed": False, "speed_up": 2}),
        ("--trace f --self-timed --trace-window 1:", {
            "trace": "f", "self_timed": True, "trace_window": "1:"}),
        ("--custom-skip-chat-template --no-oversample", {"skip_chat_template": True, "no_oversample": True}),
        ("--min-tokens 5 --compat sglang", {"min_tokens": 5, "compat": "sglang"}),
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
)  # fmt: skip
def test_flags_of_the_workload_are_keys_of_a_profile(command: str, overrides: dict[str, Any]) -> None:
    found = parse(shlex.split(command)).overrides
    assert {key: list(v) if isinstance(v, tuple) else v for key, v in found.items()} == overrides


@loop_over(
    ("command", "changes"),
    [
        ("--host example --port 81", {"base_url": "http://example:81"}),
        ("--host example", {"base_url": "http://example:8000", "default_port": True}),
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
    found = vars(parse(shlex.split(command)))
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}
    assert plain == {**vars(Options()), **changes}


def test_every_workload_flag_is_named_after_its_key() -> None:
    from loadgen.plan.profile import Profile

    own = {"name", "description", "ladder", "table", "server"}  # [server] has flags of its own
    dests = {action.dest for action in bench_parser()._actions}
    assert set(Profile.model_fields) - own <= dests


@loop_over("flag", ["--schedule", "--bursts", "--cancel-rate", "--cancel-after"])
@loop_over("value", ["", "  "])
def test_a_load_that_a_shell_variable_left_empty_is_refused(flag: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{flag}: is empty: write .*, or leave the flag out"):
        parse([flag, value])
