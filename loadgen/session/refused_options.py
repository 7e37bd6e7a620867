"""Refused flags: those of `vllm bench serve` that are not supported here, each with what to use instead."""

from __future__ import annotations

ONLY_RANDOM = "only --dataset-name random is supported"
OTHER_DATASETS = (
    "--random-mm-", "--sharegpt-", "--custom-", "--spec-bench-", "--speed-bench-", "--prefix-repetition-",
    "--blazedit-", "--asr-", "--timed-trace-", "--hf-",
)  # fmt: skip
# What to use instead of the flags of `vllm bench serve` 0.32 that are not supported here.
_INSTEAD = {
    ONLY_RANDOM: "--dataset-path --self-timed --no-self-timed --no-oversample --disable-shuffle",
    "--backend openai sends prompts without a template": "--skip-chat-template",
    "only text is sent": "--enable-multimodal-chat",
    "every request has one prompt": "--random-batch-size",
    "only text generation is measured": "--no-reranker",
    "use --tokenizer DIR": "--tokenizer-mode",
    "--prompt-format ids (the default) needs none; a server's: --skip-tokenizer": "--skip-tokenizer-init",
    "code from a model's repository is never run": "--trust-remote-code",
    "only greedy decoding and sampling are measured": "--use-beam-search",
    "pass the adapter's name as --model": "--lora-modules --lora-assignment",
    "use --request-rate with --burstiness": "--ramp-up-strategy --ramp-up-start-rps --ramp-up-end-rps",
    "no probe requests are sent": "--probe-request-rate",
    "use `loadgen report --html` for plots": (
        "--plot-timeline --timeline-itl-thresholds --plot-dataset-stats"
    ),
    "there is no log to configure: use --quiet": "--log-config-file",
}
REFUSED = {flag: reason for reason, flags in _INSTEAD.items() for flag in flags.split()}
