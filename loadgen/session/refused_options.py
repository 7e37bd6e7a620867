"""Refused flags: those of `vllm bench serve` that are not supported here, each with what to use instead."""

from __future__ import annotations

ONLY_RANDOM = "only --dataset-name random is supported"
OTHER_DATASETS = (
    "--random-mm-",
    "--sharegpt-",
    "--custom-",
    "--spec-bench-",
    "--speed-bench-",
    "--prefix-repetition-",
    "--blazedit-",
    "--asr-",
    "--timed-trace-",
    "--hf-",
)
# Flags of `vllm bench serve` 0.32 that are not supported here, each with what to use instead.
REFUSED = {
    "--dataset-path": ONLY_RANDOM,
    "--self-timed": ONLY_RANDOM,
    "--no-self-timed": ONLY_RANDOM,
    "--no-oversample": ONLY_RANDOM,
    "--skip-chat-template": "--backend openai sends prompts without a template",
    "--enable-multimodal-chat": "only text is sent",
    "--disable-shuffle": ONLY_RANDOM,
    "--random-batch-size": "every request has one prompt",
    "--no-reranker": "only text generation is measured",
    "--tokenizer-mode": "use --tokenizer DIR",
    "--skip-tokenizer-init": "--prompt-format ids (the default) needs none; a server's: --skip-tokenizer",
    "--trust-remote-code": "code from a model's repository is never run",
    "--use-beam-search": "only greedy decoding and sampling are measured",
    "--lora-modules": "pass the adapter's name as --model",
    "--lora-assignment": "pass the adapter's name as --model",
    "--ramp-up-strategy": "use --request-rate with --burstiness",
    "--ramp-up-start-rps": "use --request-rate with --burstiness",
    "--ramp-up-end-rps": "use --request-rate with --burstiness",
    "--probe-request-rate": "no probe requests are sent",
    "--plot-timeline": "use `loadgen report --html` for plots",
    "--timeline-itl-thresholds": "use `loadgen report --html` for plots",
    "--plot-dataset-stats": "use `loadgen report --html` for plots",
    "--log-config-file": "there is no log to configure: use --quiet",
}
