"""Data names: the values of the keys that choose among data sets, texts and traces; nothing is imported."""

from __future__ import annotations

from typing import Literal

DatasetName = Literal["random", "sharegpt", "custom", "prefix_repetition", "timed_trace"]
PromptFormat = Literal["auto", "ids", "text-vllm", "text-vllm-0.9", "corpus", "words"]
Compat = Literal["vllm", "vllm-0.9", "sglang", "inferencex"]
TraceFormat = Literal[
    "", "mooncake", "bailian", "azure-2023", "azure-2024", "burstgpt", "weka", "servegen", "timed"
]
# The lengths of answers that are a data set's own: --output-len is each of them.
READ_OUTPUT_LENS = ("sharegpt_output_len", "custom_output_len", "prefix_repetition_output_len")
