"""SGLang: the flags of `python -m sglang.bench_serving`."""

from __future__ import annotations

from loadgen.session.other_clients.client import OtherClient, by_flag

_NO_DATA = "prompts are random tokens, not rows of a data set: only --dataset-name random is supported"
_NO_TRACES = "traces are not replayed: use --request-rate with --burstiness"
_NO_IMAGES = "only text is sent"
_TRACE = "--server-trace DIR, with --launch, has the engine trace the run"
_SAME = {
    "": "--base-url --disable-tqdm --header --max-concurrency --num-prompts --random-input-len "
    "--request-rate --served-model-name --sharegpt-output-len --temperature --tokenizer --top-p",
    "without it, the first that /v1/models names": "--model",
    "whole responses: E2E latency only": "--disable-stream",
    "ttft, tpot and e2el": "--goodput",
    "default 128, as vLLM (SGLang: 1024)": "--random-output-len",
    "default 127.0.0.1 (SGLang: 0.0.0.0)": "--host",
    "default 8000, as vLLM (SGLang: the engine's)": "--port",
    "default 0, as vLLM (SGLang: 60)": "--ready-check-timeout-sec",
}
_DIFFERS = {
    "the file of `sharegpt`, or one whose rows are known by their keys": "--dataset-path",
    "the same names; default `openai` (SGLang: `sglang`, its own /generate)": "--backend",
    "`random-ids` and `random` are random tokens; SGLang's `random` cuts ShareGPT's texts": "--dataset-name",
    "± R around the length; SGLang draws from [R × length, length], so its 1.0 is 0.0 here": (
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
}
_REFUSED = {
    _NO_DATA: "--sharegpt-context-len --speed-bench-category --speed-bench-output-len --prompt-suffix",
    "conversations of several turns are not sent": "--agentic-max-turns --dataset-offset --gsp-num-turns "
    "--mooncake-num-rounds",
    "all prompts share one prefix: --random-prefix-len": "--gsp-fast-prepare --gsp-group-distribution "
    "--gsp-num-groups --gsp-ordered --gsp-output-len --gsp-prompts-per-group --gsp-question-len "
    "--gsp-range-ratio --gsp-send-routing-key --gsp-system-prompt-len --gsp-zipf-alpha",
    _NO_TRACES: "--mooncake-slowdown-factor --mooncake-workload --use-trace-timestamps",
    _NO_IMAGES: "--image-content --image-count --image-format --image-resolution --random-image-count",
    _TRACE: "--profile-activities --profile-by-stage --profile-decode-url --profile-num-steps "
    "--profile-prefill-url --profile-prefix --profile-stages --profile-start-step --profile-steps",
    "one adapter a run: pass its name as --model": "--lora-name --lora-request-distribution "
    "--lora-zipf-alpha",
    "nothing is printed while requests run: --print-request prints one and exits": "--print-requests",
    "pass it in --extra-body": "--logprob-start-len --return-routed-experts --token-ids-logprob",
    "cached tokens are counted without a flag, from usage and /metrics": "--cache-report",
    "the server is asked once, and its answer reported": "--flush-cache-timeout",
    "pass the address of the router as --base-url; only one server is measured": "--pd-separated",
    "set it at the server; prompts are always sent": "--fake-prefill",
    "one process sends everything; `loadgen selftest` measures its own error": "--rust-client "
    "--rust-worker-threads",
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
