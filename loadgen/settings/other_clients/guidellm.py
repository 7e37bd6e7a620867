"""guidellm: the flags of `guidellm run`, and of `guidellm benchmark` before 0.7."""

from __future__ import annotations

from loadgen.settings.other_clients.client import OtherClient, by_flag

_COLUMNS = (
    "a file's columns are `prompt` and `output_tokens`, or whole bodies' own keys: rename them, and pass "
    "--dataset-path FILE"
)
_SAME = {
    "without it, the first that /v1/models names": "--model",
}
PROFILE = (
    "synchronous is --max-concurrency 1 here, concurrent --max-concurrency N, throughput --request-rate inf, "
    "constant --request-rate R --burstiness inf, poisson and async --request-rate R; a sweep is "
    "`loadgen sweep --rate 1,2,4`, with the loads that you choose"
)
_DIFFERS = {
    f"the name of a workload here; {PROFILE}": "--profile",
    "the API: `openai` or `openai-chat`; the target is --base-url": "--backend",
    "a directory, or a name in the local Hugging Face cache": "--tokenizer",
    "a number here; guidellm 0.7 and later write kind=static,value=N": "--seed",
    "a text here, and --metadata KEY=VALUE for pairs": "--label",
    "left out of the steady state here, as N requests or Ss; guidellm counts a share below 1": (
        "--cooldown --warmup"
    ),
}
_RENAMED = {
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
_REFUSED = {
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
    by_flag(_SAME),
    by_flag(_DIFFERS),
    by_flag(_RENAMED),
    {},
    by_flag(_REFUSED),
)
