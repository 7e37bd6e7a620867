"""Refused flags: those of `vllm bench serve` that are not built here, each with what to use instead."""

from __future__ import annotations

ONLY_RANDOM = "only --dataset-name random is built"
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
# Flags of `vllm bench serve` 0.32 that are not built here, each with what to use instead.
REFUSED = {
    "--dataset-path": ONLY_RANDOM,
    "--self-timed": ONLY_RANDOM,
    "--no-self-timed": ONLY_RANDOM,
    "--no-oversample": ONLY_RANDOM,
    "--skip-chat-template": "--backend openai sends prompts without a template",
    "--enable-multimodal-chat": "only text is sent",
    "--disable-shuffle": ONLY_RANDOM,
    "--random-batch-size": "one prompt a request is sent",
    "--no-reranker": "only text generation is measured",
    "--tokenizer-mode": "only --tokenizer is built",
    "--skip-tokenizer-init": "--prompt-format ids (the default) needs none; a server's: --skip-tokenizer",
    "--trust-remote-code": "code from a model's repository is never run",
    "--use-beam-search": "beam search is not built",
    "--lora-modules": "pass the adapter's name as --model",
    "--lora-assignment": "pass the adapter's name as --model",
    "--ramp-up-strategy": "only --request-rate with --burstiness is built",
    "--ramp-up-start-rps": "only --request-rate with --burstiness is built",
    "--ramp-up-end-rps": "only --request-rate with --burstiness is built",
    "--probe-request-rate": "probe requests are not built",
    "--plot-timeline": "plots are not built",
    "--timeline-itl-thresholds": "plots are not built",
    "--plot-dataset-stats": "plots are not built",
    "--log-config-file": "there is no log to configure: use --quiet",
}
