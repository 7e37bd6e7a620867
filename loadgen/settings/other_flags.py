"""Other flags: those of aiperf, guidellm and SGLang, imported when an unknown flag is met."""

from __future__ import annotations

from loadgen.settings import other_client
from loadgen.settings.other_client import OtherClient, map_flags
from loadgen.settings.vllm_flags import VLLM

_THE_TRACE = (
    "a trace is sent as it was recorded: --trace FILE, with --trace-window, --speed-up, --trace-idle-cap, "
    "--trace-max-input-len and --trace-jitter"
)
_RAMP = "requests in prefill have no ramp: one of rate or concurrency is --schedule"
_SWEEP = "one load a run: `loadgen sweep` makes several, by --concurrency, --rate, --vary and --link"
_SEARCH = "`loadgen limit` searches in one way, for the highest load at which percentiles meet --slo"
_FILES = "a run is files: `loadgen export RUN_DIR --jsonl` has its rows"
_WORKERS = "`--workers N` sets the processes that send, `--workers auto` takes as many as the load needs"
_NO_SERVICES = "there are no services between the processes: pass `--workers N` for more of them"
_AIPERF_SAME = {
    "": "--endpoint --model --prefill-concurrency --request-rate",
    "also NAME=VALUE": "--header",
    "conversations to send": "--num-sessions",
    "one value for all turns of a session": "--session-header",
}
_AIPERF_DIFFERS = {
    "a text file; aiperf takes the name of one of its own": "--prompt-corpus",
    "the API: `chat` and `completions` are accepted, as names of --backend": "--endpoint-type",
    "NAME:MS of ttft, tpot and e2el; request_latency is e2el, time_to_first_token ttft": "--goodput",
    "requests here; in aiperf, different prompts that requests share": "--num-prompts",
    "± R as vLLM, aiperf's default; its sglang style is --compat sglang": "--random-range-ratio",
    "a directory, or a name in the local Hugging Face cache; nothing is downloaded": "--tokenizer",
    "how bytes are read and timed (auto, ring, wire, httpx)": "--transport",
}
_AIPERF_RENAMED = {
    "--dataset-path FILE (prompts, whole bodies, conversations), or --trace FILE": "--input-file",
    "--trace-format NAME for a trace, and nothing else, as keys show the kind,": "--custom-dataset-type",
    "--trace FILE, which is sent at its own times,": "--fixed-schedule --open-loop-replay",
    "--no-self-timed": "--no-fixed-schedule --ignore-trace-delays",
    "--trace-window START:END, in seconds,": "--fixed-schedule-start-offset --fixed-schedule-end-offset",
    "--speed-up X": "--replay-speedup --synthesis-speedup-ratio",
    "--trace-idle-cap S": "--trace-idle-gap-cap-seconds --system-idle-gap-cap-seconds "
    "--max-idle-gap-cap-seconds",
    "--trace-max-input-len N": "--synthesis-max-isl",
    "--trace-max-output-len N": "--synthesis-max-osl",
    "--prefix-groups N": "--num-prefix-prompts --prefix-prompt-pool-size --prompt-prefix-pool-size",
    "--input-dist normal:mean=M,sd=S": "--isl-stddev --prompt-input-tokens-stddev "
    "--synthetic-input-tokens-stddev",
    "--output-dist normal:mean=M,sd=S": "--osl-stddev --output-tokens-stddev --prompt-output-tokens-stddev",
    "--input-dist histogram:FILE and --output-dist histogram:FILE": "--seq-dist --sequence-distribution",
    "--disable-shuffle": "--dataset-sampling-strategy",
    "--max-concurrency N": "--concurrency",
    '--schedule "concurrency 1 to N over Ss, N for Ts"': "--concurrency-ramp-duration",
    '--schedule "rate 0 to R over Ss, R for Ts"': "--request-rate-ramp-duration",
    '--schedule "rate A for Ss, B for Ts"': "--request-rate-series",
    "--num-prompts N": "--request-count --num-requests",
    "--num-sessions N": "--conversation-num --num-conversations",
    "--turns N": "--conversation-turn-mean --session-turns-mean",
    "--think-time S, in seconds,": "--conversation-turn-delay-mean --session-turn-delay-mean",
    "--think-time normal:mean=M,sd=S, in seconds,": "--conversation-turn-delay-stddev "
    "--session-turn-delay-stddev",
    "--turn-delays X": "--conversation-turn-delay-ratio --session-delay-ratio",
    "--user-rate R, the rate of one user, which is all users' rate by their number,": "--user-centric-rate",
    "--users N": "--num-users",
    "--base-url URL": "--url -u",
    "--model NAME": "--model-names -m",
    "--endpoint PATH": "--custom-endpoint",
    "--header NAME:VALUE": "-H",
    "--random-input-len N": "--isl --prompt-input-tokens-mean --synthetic-input-tokens-mean",
    "--random-output-len N": "--osl --output-tokens-mean --prompt-output-tokens-mean",
    "--random-prefix-len N": "--shared-system-prompt-length --prompt-prefix-length --prefix-prompt-length",
    "--seed N": "--random-seed",
    "--duration S": "--benchmark-duration",
    "--drain-timeout S": "--benchmark-grace-period",
    "--burstiness B (1 Poisson, inf constant)": "--arrival-pattern --request-rate-mode --arrival-smoothness "
    "--vllm-burstiness",
    "--num-warmups N": "--warmup-request-count --num-warmup-requests --num-warmup-sessions",
    "--request-timeout S": "--request-timeout-seconds",
    "--ready-check-timeout-sec S": "--wait-for-model-timeout",
    "--extra-body JSON": "--extra-inputs",
    "--reset-cache": "--reset-kv-cache",
    "--server-trace DIR, with --launch,": "--server-profiler",
    "--continuous-usage": "--per-chunk-usage",
    "--backend openai-chat": "--apply-chat-template",
    "--cancel-rate N%": "--request-cancellation-rate",
    "--cancel-after Ss": "--request-cancellation-delay",
    "--max-failures N or N%": "--failed-request-threshold",
    "--run-dir DIR": "--artifact-dir --output-artifact-dir",
    "--save-requests (a row per request) or --save-detailed": "--export-level --profile-export-level",
    "--quiet": "--ui --ui-type",
    "--repeat N": "--num-profile-runs",
    "--no-observe": "--no-gpu-telemetry --no-server-metrics",
    "--profile FILE.toml": "--config -f",
    "--goodput ttft:MS": "--ttft-sla-ms",
    "--goodput tpot:MS": "--itl-sla-ms --tpot-sla-ms",
    "--goodput e2el:MS": "--e2e-sla-ms",
    "`loadgen compare RUNS` with --alpha A": "--confidence-level",
    "`loadgen sweep --concurrency 1,2,4…512`": "--concurrency-max --concurrency-min --concurrency-steps",
    "`loadgen sweep --vary input_len=128,1024`": "--isl-max --isl-min --isl-steps",
    "`loadgen sweep --vary output_len=128,1024`": "--osl-max --osl-min --osl-steps",
    "`loadgen limit --slo 'ttft p90 < 500ms'`": "--search-metric --search-sla --search-sla-tier "
    "--search-stat",
    "`loadgen limit --over rate` (or concurrency)": "--search-space",
    "--start LOAD of `loadgen limit`": "--search-initial-points",
    "--max-runs N of `loadgen limit`": "--search-max-iterations",
}
_AIPERF_REFUSED = {
    "answers are streamed without it; --disable-stream has them whole": "--streaming",
    "other users could read it in `ps`: set OPENAI_API_KEY, or pass --api-key-env NAME or --api-key-file "
    "FILE": "--api-key",
    "one server and one model a run": "--model-selection-strategy --url-strategy",
    "code from a model's repository is never run, and nothing is downloaded": "--tokenizer-revision "
    "--tokenizer-trust-remote-code",
    "the server's usage is what is counted, without a flag": "--use-server-token-count",
    "the field is chosen for the server": "--use-legacy-max-tokens --force-min-tokens",
    "connections are kept and used again": "--connection-reuse-strategy",
    "only HTTP with JSON is sent": "--request-content-type --transport-type",
    "readiness is asked at the paths that the engine has": "--wait-for-model-interval --wait-for-model-mode",
    "the engine has its own path for it": "--reset-kv-cache-path --reset-kv-cache-timeout-seconds "
    "--server-profiler-start-path --server-profiler-stop-path --server-profiler-timeout-seconds",
    f"{other_client.HUB}; of ShareGPT, --dataset-name sharegpt --dataset-path FILE": "--public-dataset "
    "--hf-subset --hf-weka-dataset --dataset-filter",
    "rows are sent again where --num-prompts is more than there are, but with --no-oversample": (
        "--allow-dataset-wrap --num-dataset-entries"
    ),
    "random text is of --prompt-corpus FILE": "--random-corpus-style",
    "lengths are bounded where they are drawn: --input-dist normal:mean=M,sd=S,max=N": "--max-context-length",
    "a request holds what the file has: whole bodies (--dataset-path FILE) may have a system message": (
        "--omit-kv-hints --system-prompt --system-prompt-file"
    ),
    "every request has one prompt": "--batch-size --batch-size-text --prompt-batch-size -b",
    "prefixes are shared by groups: --prefix-groups N with --random-prefix-len N": (
        "--user-context-prompt-length"
    ),
    "lengths follow --input-dist and --output-dist, each request's apart": "--isl-block-size --isl-osl-pairs "
    "--prompt-input-tokens-block-size --synthetic-input-tokens-block-size",
    "prompts that are made here are never in the cache from an earlier run, and rows of a file are sent as "
    "they stand: --reset-cache empties the server's cache": "--cache-bust",
    other_client.SAME_TURNS: "--conversation-turn-stddev --session-turns-stddev",
    "recorded delays are scaled by --turn-delays X, or left out by --turn-delays none": (
        "--inter-turn-delay-cap-seconds"
    ),
    other_client.TURNS: "--uuid-and-strip --use-think-time-only",
    "a trace begins with its first request": "--fixed-schedule-auto-offset",
    _THE_TRACE: "--trace-session-sample-ratio --open-loop-strict --synthesis-output-len-multiplier "
    "--synthesis-prefix-len-multiplier --synthesis-prefix-root-multiplier --synthesis-prompt-len-multiplier "
    "--trajectory-start-max-ratio --trajectory-start-min-ratio --burst-phase-starts "
    "--agentic-cache-warmup-duration --agentic-warmup-grace-period",
    other_client.AUDIO: "--audio-batch-size --audio-depths --audio-format --audio-length-mean "
    "--audio-length-stddev --audio-num-channels --audio-sample-rates --batch-size-audio",
    other_client.IMAGES: "--batch-size-image --batch-size-video --image-batch-size --image-format "
    "--image-height-mean --image-height-stddev --image-source --image-source-sampling --image-width-mean "
    "--image-width-stddev --video-audio-codec --video-audio-depth --video-audio-num-channels "
    "--video-audio-sample-rate --video-batch-size --video-codec --video-duration --video-format --video-fps "
    "--video-height --video-synth-type --video-width --download-video-content",
    "only text generation is measured": "--rankings-passages-mean --rankings-passages-prompt-token-mean "
    "--rankings-passages-prompt-token-stddev --rankings-passages-stddev "
    "--rankings-query-prompt-token-mean --rankings-query-prompt-token-stddev",
    _RAMP: "--prefill-concurrency-ramp-duration",
    "warm-up requests are sent as the measured ones: --num-warmups N": "--warmup-arrival-pattern "
    "--warmup-concurrency --warmup-concurrency-ramp-duration --warmup-duration --warmup-grace-period "
    "--warmup-prefill-concurrency --warmup-prefill-concurrency-ramp-duration --warmup-request-rate "
    "--warmup-request-rate-ramp-duration",
    _SWEEP: "--no-sweep-table --parameter-sweep-mode --sweep-type --sweep-variant --variant "
    "--parameter-sweep-cooldown-seconds",
    _SEARCH: "--search-direction --search-percentile-pooling --search-planner --search-random-seed "
    "--search-recipe --search-style --optuna-acquisition --optuna-sampler "
    "--optuna-terminator --bo-constraint-mode --degradation-metric-tag --degradation-stat "
    "--degradation-threshold --slo-attainment-fraction --error-rate-sla",
    "--repeat N makes N runs; `loadgen campaign` cools down between runs": "--profile-run-cooldown-seconds "
    "--convergence-metric --convergence-mode --convergence-stat --convergence-threshold",
    "answers are not graded; --fingerprint shows whether they changed": "--accuracy-benchmark "
    "--accuracy-enable-cot "
    "--accuracy-grader --accuracy-n-shots --accuracy-system-prompt --accuracy-tasks --accuracy-verbose",
    _FILES: "--mlflow-artifact-glob --mlflow-experiment --mlflow-parent-run-id --mlflow-run-name "
    "--mlflow-tag --mlflow-tracking-uri --otel-resource-attributes --otel-url --wandb-entity "
    "--wandb-project --wandb-run-name --wandb-tag --gen-ai-provider --stream --export-outputs-json",
    "every token's arrival is kept: `loadgen report RUN_DIR --html` draws them over time": (
        "--slice-duration --export-http-trace --show-trace-timing"
    ),
    "the GPU and /metrics are sampled without a flag, on the machine and server they are on": (
        "--gpu-telemetry --server-metrics --server-metrics-formats"
    ),
    "the round trip is part of TTFT: measure next to the server": "--network-latency-automatic "
    "--network-latency-mean --network-latency-ping-interval",
    _WORKERS: "--workers-max --max-workers",
    _NO_SERVICES: "--record-processor-service-count --record-processors "
    "--zmq-dual-bind --zmq-host --zmq-ipc-path --api-host --api-port --stats-interval",
    "nothing is locked: --profile FILE.toml is the whole workload": "--scenario --unsafe-override",
    "every run has a directory of its own; --label TEXT names it in reports": "--profile-export-file "
    "--profile-export-prefix",
    "warnings are always printed; --explain shows the evidence of every doubt": "--verbose -v -vv "
    "--extra-verbose --log-level",
    "plots are drawn of any run on disk: `loadgen report RUN_DIR --html`": "--plot-required",
}
AIPERF = OtherClient(
    "aiperf",
    "aiperf profile",
    "0.13",
    map_flags(_AIPERF_SAME),
    map_flags(_AIPERF_DIFFERS),
    map_flags(_AIPERF_RENAMED),
    {},
    map_flags(_AIPERF_REFUSED),
)


_COLUMNS = (
    "a file's columns are `prompt` and `output_tokens`, or whole bodies' own keys: rename them, and pass "
    "--dataset-path FILE"
)
_GUIDELLM_SAME = {
    "without it, the first that /v1/models names": "--model",
}
GUIDELLM_PROFILE = (
    "synchronous is --max-concurrency 1 here, concurrent --max-concurrency N, throughput --request-rate inf, "
    "constant --request-rate R --burstiness inf, poisson and async --request-rate R; a sweep is "
    "`loadgen sweep --rate 1,2,4`, with the loads that you choose"
)
_GUIDELLM_DIFFERS = {
    f"the name of a workload here; {GUIDELLM_PROFILE}": "--profile",
    "the API: `openai` or `openai-chat`; the target is --base-url": "--backend",
    "a directory, or a name in the local Hugging Face cache": "--tokenizer",
    "a number here; guidellm 0.7 and later write kind=static,value=N": "--seed",
    "a text here, and --metadata KEY=VALUE for pairs": "--label",
    "left out of the steady state here, as N requests or Ss; guidellm counts a share below 1": (
        "--cooldown --warmup"
    ),
}
_GUIDELLM_RENAMED = {
    "--dataset-path FILE (prompts, whole bodies, conversations), --trace FILE, or for synthetic prompts "
    "--random-input-len N and --random-output-len N, or --input-dist and --output-dist, and for its turns "
    "--turns N,": ("--data --data-args"),
    "--num-prompts N": "--max-requests --data-samples",
    "--disable-shuffle, without which rows are sent in a random order of the seed,": "--data-sampler",
    "--base-url URL": "--target",
    "--max-concurrency N, --request-rate R or --burstiness B": "--rate-type",
    "--max-concurrency N or --request-rate R (several: `loadgen sweep --rate 1,2,4`)": "--rate",
    '--schedule "rate 0 to R over Ss, R for Ts", or with concurrency instead of rate': "--rampup",
    "--backend openai or openai-chat": "--backend-type --request-format --request-type",
    "--duration S": "--max-seconds",
    "--max-failures N": "--max-errors",
    "--max-failures N%": "--max-error-rate --max-global-error-rate",
    "--num-prompts N, --duration S or --max-failures N": "--constraint",
    "--tokenizer DIR": "--processor",
    "--seed N": "--random-seed",
    "--profile FILE.toml": "--config --scenario -c",
    "--label TEXT": "-l",
    "--run-dir DIR": "--output-dir --output-path",
    "`loadgen report RUN_DIR` with --html, --csv, --markdown or --plot": "--output --outputs",
    "--goodput NAME:MS (its slo)": "--metrics",
    "--stop-when-saturated": "--default-over-saturation --detect-saturation --over-saturation",
    "--warmup": "--warmup-percent",
    "--cooldown": "--cooldown-percent",
    "--quiet": "--disable-console --disable-console-interactive --disable-console-outputs --disable-progress",
    "--save-requests, which keeps every request,": "--output-sampling --sample-requests",
}
_GUIDELLM_REFUSED = {
    _COLUMNS: "--data-column-mapper --data-finalizer --data-preprocessor --data-preprocessors "
    "--data-preprocessors-kwargs",
    "a file is read before the first request, by one process": "--data-loader --data-num-workers "
    "--dataloader-kwargs",
    "its settings are flags here: --extra-body JSON, --api-key-env NAME, --insecure, --http2, "
    "--disable-stream, --request-timeout S": "--backend-args --backend-kwargs",
    "code from a model's repository is never run, and a tokenizer has no other settings": "--processor-args",
    "one load a run: `loadgen sweep` makes several": "--override",
    "progress is one line every ten seconds where the output is no terminal; --quiet has none": (
        "--console --log-progress-interval"
    ),
}
GUIDELLM = OtherClient(
    "guidellm",
    "guidellm run",
    "0.8.1, and `guidellm benchmark` of 0.3 to 0.6",
    map_flags(_GUIDELLM_SAME),
    map_flags(_GUIDELLM_DIFFERS),
    map_flags(_GUIDELLM_RENAMED),
    {},
    map_flags(_GUIDELLM_REFUSED),
)


_TRACE = "--server-trace DIR, with --launch, has the engine trace the run"
_SGLANG_SAME = {
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
_SGLANG_DIFFERS = {
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
_SGLANG_RENAMED = {
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
_SGLANG_REFUSED = {
    "vLLM's filter is what --dataset-name sharegpt has, prompts of up to 1024 tokens, 2048 with the answer; "
    "rows without --dataset-name are sent whatever their length": "--sharegpt-context-len",
    "write it into the prompts of --dataset-path FILE": "--prompt-suffix",
    other_client.HUB: "--speed-bench-category --speed-bench-output-len",
    other_client.TURNS: "--agentic-max-turns --dataset-offset --mooncake-num-rounds",
    "requests of all groups are mixed, and their lengths are counted exactly": (
        "--gsp-fast-prepare --gsp-ordered"
    ),
    "one --header for every request": "--gsp-send-routing-key",
    other_client.IMAGES: "--image-content --image-count --image-format --image-resolution "
    "--random-image-count",
    _TRACE: "--profile-activities --profile-by-stage --profile-decode-url --profile-num-steps "
    "--profile-prefill-url --profile-prefix --profile-stages --profile-start-step --profile-steps",
    other_client.LORA: "--lora-name --lora-request-distribution --lora-zipf-alpha",
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
    map_flags(_SGLANG_SAME),
    map_flags(_SGLANG_DIFFERS),
    map_flags(_SGLANG_RENAMED),
    {},
    map_flags(_SGLANG_REFUSED),
)


OTHERS: tuple[OtherClient, ...] = (SGLANG, GUIDELLM, AIPERF)
CLIENTS = (VLLM, *OTHERS)


def explain_other_flag(flag: str) -> str | None:
    """Explain which flag of ours replaces another client's flag, or why none does; None: no client has it."""
    words = (client.explain_flag(flag) for client in OTHERS)
    return next((text for text in words if text is not None), None)
