"""SGLang: the flags of `python -m sglang.bench_serving`."""

from __future__ import annotations

from loadgen.settings.other_clients import data_sets
from loadgen.settings.other_clients.client import OtherClient, by_flag

_TRACE = "--server-trace DIR, with --launch, has the engine trace the run"
_SAME = {
    "": "--base-url --disable-tqdm --header --max-concurrency --num-prompts --random-input-len "
    "--request-rate --served-model-name --sharegpt-output-len --temperature --tokenizer --top-p",
    "without it, the first that /v1/models names": "--model",
    "whole responses: E2E latency only": "--disable-stream",
    "ttft, tpot and e2el": "--goodput",
    "default 128, as vLLM (SGLang: 1024)": "--random-output-len",
    "default 127.0.0.1 (SGLang: 0.0.0.0)": "--host",
    "default by the name of --backend: 30000 of `sglang`, 23333 of `lmdeploy`, else 8000": ("--port"),
    "default 0, as vLLM (SGLang: 60)": "--ready-check-timeout-sec",
}
_DIFFERS = {
    "the file of `sharegpt`, or one whose rows are known by their keys": "--dataset-path",
    "the same names; default `openai` (SGLang: `sglang`, its own /generate)": "--backend",
    "`random-ids` and `random` are random tokens (SGLang's `random` cuts ShareGPT's texts: --prompt-format "
    "corpus is real text); `sharegpt` and `custom` are vLLM's; others are refused with the nearest way": (
        "--dataset-name"
    ),
    "± R around the length; with --compat sglang from R × length to length, as in SGLang": (
        "--random-range-ratio"
    ),
    "without it, drawn at random and printed (SGLang: 42)": "--seed",
    "the name of a workload; --server-trace DIR traces the server": "--profile",
}
_RENAMED = {
    "--backend openai-chat": "--apply-chat-template",
    "--no-ignore-eos": "--disable-ignore-eos",
    "--extra-body JSON": "--extra-request-body",
    "--reset-cache": "--flush-cache",
    "--num-warmups N": "--warmup-requests",
    "--prompt-format ids, the default": "--tokenize-prompt",
    "--label TEXT": "--tag",
    "--result-filename FILE, with --save-result (vLLM's JSON)": "--output-file",
    "--save-detailed, with --save-result": "--output-details",
    "--logprobs N": "--return-logprob --top-logprobs-num",
    "`loadgen report RUN_DIR --plot`": "--plot-throughput",
    "--server-trace DIR, with --launch,": "--profile-output-dir",
    "--prefix-groups N": "--gsp-num-groups",
    "--random-prefix-len N": "--gsp-system-prompt-len",
    "--turns N": "--gsp-num-turns",
    "--random-input-len N": "--gsp-question-len",
    "--random-output-len N": "--gsp-output-len",
    "--random-range-ratio R, with --compat sglang,": "--gsp-range-ratio",
    "--prefix-zipf S": "--gsp-zipf-alpha --gsp-group-distribution",
    "--num-prompts N, groups × prompts,": "--gsp-prompts-per-group",
    "--trace FILE --trace-format mooncake": "--mooncake-workload",
    "--speed-up X, one divided by the factor,": "--mooncake-slowdown-factor",
    "--trace FILE, which is sent at its own times,": "--use-trace-timestamps",
}
_REFUSED = {
    "vLLM's filter is what --dataset-name sharegpt has, prompts of up to 1024 tokens, 2048 with the answer; "
    "rows without --dataset-name are sent whatever their length": "--sharegpt-context-len",
    "write it into the prompts of --dataset-path FILE": "--prompt-suffix",
    data_sets.HUB: "--speed-bench-category --speed-bench-output-len",
    data_sets.TURNS: "--agentic-max-turns --dataset-offset --mooncake-num-rounds",
    "requests of all groups are mixed, and their lengths are counted exactly": (
        "--gsp-fast-prepare --gsp-ordered"
    ),
    "one --header for every request": "--gsp-send-routing-key",
    data_sets.IMAGES: "--image-content --image-count --image-format --image-resolution --random-image-count",
    _TRACE: "--profile-activities --profile-by-stage --profile-decode-url --profile-num-steps "
    "--profile-prefill-url --profile-prefix --profile-stages --profile-start-step --profile-steps",
    data_sets.LORA: "--lora-name --lora-request-distribution --lora-zipf-alpha",
    "nothing is printed while requests run: --print-request prints one and exits": "--print-requests",
    "pass it in --extra-body": "--logprob-start-len --return-routed-experts --token-ids-logprob",
    "cached tokens are counted without a flag, from usage and /metrics": "--cache-report",
    "the server is asked once, and its answer reported": "--flush-cache-timeout",
    "pass the address of the router as --base-url; only one server is measured": "--pd-separated",
    "set it at the server; prompts are always sent": "--fake-prefill",
    "there is one client, and `--workers N` sets its processes": "--rust-client --rust-worker-threads",
}
SGLANG = OtherClient(
    "SGLang",
    "sglang.bench_serving",
    "0.5.23",
    by_flag(_SAME),
    by_flag(_DIFFERS),
    by_flag(_RENAMED),
    {},
    by_flag(_REFUSED),
)
