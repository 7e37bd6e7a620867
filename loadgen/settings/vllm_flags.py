"""vLLM flags: those of `vllm bench serve`, of 0.33 and of the recipes of 2024 and 2025."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from loadgen.base.errors import UsageError
from loadgen.base.text import quote_value

_ROWS = 'rows of JSON, {"prompt": "…", "output_tokens": N}, and pass --dataset-path FILE'
# Both flags and names of data sets get this advice.
HUB = f"nothing is downloaded: download it, write its prompts as {_ROWS} (docs/datasets.md)"
QUESTIONS = (
    "download it; --dataset-path FILE without a name reads its rows, --dataset-category NAME those of a "
    "category, --output-len N is the length of outputs (docs/datasets.md)"
)
AUDIO = (
    "audio is not made here: write whole chat bodies with `input_audio` parts, one a line, and pass "
    "--dataset-path FILE"
)
TOOLS = (
    "nothing is downloaded: write whole chat bodies with their `tools`, one a line, and pass "
    "--dataset-path FILE"
)
SONNET = (
    "the poem is not read: --random-prefix-len, --random-input-len and --random-output-len with "
    "--prompt-format corpus are the same lengths of real text"
)
BURSTGPT = "pass --trace FILE --trace-format burstgpt, and no --dataset-name"
_NO_CODE = "code from a model's repository is never run"
_REPORT = "`loadgen report RUN_DIR --html` draws the timeline and the distributions of any run"
_CLIENT = "vllm bench serve"
_KEY = "--api-key"  # no flag of vLLM's either


def _map_flags(flags_by_words: Mapping[str, str]) -> dict[str, str]:
    """Invert a table of explanation → space-separated flags into flag → explanation."""
    return {flag: words for words, flags in flags_by_words.items() for flag in flags.split()}


# Spelled and meant as here.
_SAME = {
    "": (
        "--append-result --base-url --custom-output-len --dataset-path --disable-shuffle "
        "--endpoint --extra-body --frequency-penalty --goodput --host --input-len --insecure --label "
        "--logprobs --max-concurrency --metadata --metric-percentiles --min-p --no-oversample "
        "--no-self-timed --output-len --percentile-metrics --port "
        "--prefix-repetition-num-prefixes --prefix-repetition-output-len --prefix-repetition-prefix-len "
        "--prefix-repetition-suffix-len --presence-penalty --random-input-len "
        "--random-output-len --random-prefix-len --repetition-penalty --request-id-prefix "
        "--result-dir --result-filename --save-detailed --save-result --self-timed --served-model-name "
        "--sharegpt-output-len --skip-chat-template --temperature --timed-trace-chunk-hash-size "
        "--timed-trace-label-hash-ids --timed-trace-label-input-length --timed-trace-label-output-length "
        "--timed-trace-label-timestamp --timed-trace-sec-multiplier --top-k --top-p"
    ),
    "N requests take N / rate seconds, as in vLLM; --no-exact-rate and --duration leave the gaps as drawn": (
        "--request-rate --burstiness"
    ),
    "over the requests' indices, as in vLLM; the first request is sent at once, where vLLM waits for a gap": (
        "--ramp-up-end-rps --ramp-up-start-rps --ramp-up-strategy"
    ),
    "images are noise that compresses as photos do, vLLM's pixels are independent; no videos": (
        "--random-mm-bucket-config"
    ),
    "of images alone": "--random-mm-base-items-per-request --random-mm-num-mm-items-range-ratio "
    "--random-mm-limit-mm-per-prompt",
    "on without it for random prompts and traces, as in 0.33; --no-ignore-eos turns it off": "--ignore-eos",
    "as --skip-chat-template, whose name it was in 2025": "--custom-skip-chat-template",
    "0 or less are all rows of `custom`; a file without --dataset-name is sent whole": "--num-prompts",
    "as --quiet": "--disable-tqdm",
    "as --backend, whose name it was in 2025": "--endpoint-type",
    "also NAME: VALUE, as curl has it": "--header",
    "without it, the first that /v1/models names": "--model",
    "also `wave`: as many as --max-concurrency; their prompts are their own": "--num-warmups",
    "± R, as in 0.33; what it means elsewhere is --compat vllm-0.9, sglang or inferencex": (
        "--random-range-ratio"
    ),
    "the server itself is asked, at the paths that the engine has": "--ready-check-timeout-sec",
}
# Spelled as here, with another meaning.
_DIFFERS = {
    "also the names of 2025 and of SGLang (docs/from-vllm.md); `openai` and `vllm` follow --endpoint, "
    "`sglang` is SGLang's own /generate": "--backend",
    "sent with each chat request; `custom` over /v1/completions is rendered here with them, as in vLLM": (
        "--chat-template-kwargs"
    ),
    "`random` (and SGLang's `random-ids`), `random-mm`, `sharegpt`, `custom`, `prefix_repetition`, "
    "`timed_trace`; without it, the rows of --dataset-path are known by their keys; others are refused with "
    "the nearest way": "--dataset-name",
    "the name of a workload; the bare flag, which traces vLLM, is refused: --server-trace DIR": "--profile",
    "without it, drawn at random and printed, since the same prompts twice measure the prefix cache "
    "(vLLM: 0)": "--seed",
    "a directory, or a name in the local Hugging Face cache; for token ids its vocabulary is enough": (
        "--tokenizer"
    ),
}
# The flag of ours that means it; of the client that vLLM has in Rust.
_RENAMED = {
    "--turns N": "--multi-turn --multi-turn-num-turns",
    "--max-concurrency N": "--multi-turn-concurrency",
    "--think-time S, in seconds,": "--multi-turn-delay-ms",
}
# Accepted, and why nothing changes by it.
_NO_EFFECT = {
    f"{_NO_CODE}; an engine that --launch starts takes it in --server-args": "--trust-remote-code",
    "token ids need no tokenizer, and text prompts load it as `auto` does": "--tokenizer-mode",
    "token ids need no tokenizer, and text prompts load it all the same": "--skip-tokenizer-init",
    "no data set is streamed from the hub; responses are streamed as by vLLM, and --disable-stream has them "
    "whole": "--no-stream",
    "whole bodies are sent as they stand in the file, images and all": (
        "--enable-multimodal-chat --custom-ensure-client-side-data"
    ),
    "nothing is ranked": "--no-reranker",
    _REPORT: "--plot-dataset-stats --plot-timeline --timeline-itl-thresholds",
    "there is no log to configure": "--log-config-file",
}
# The value that changes nothing, and why any other is refused.
ONLY_VALUES = {
    "--random-batch-size": (1, "every request has one prompt"),
    "--best-of": (1, "every request has one response"),
    "--probe-request-rate": (0, "no probe requests are sent"),
}
# Each has the reason and the nearest way.
_REFUSED = {
    HUB: "--hf-name --hf-split --hf-subset --blazedit-max-distance --blazedit-min-distance",
    QUESTIONS: (
        "--spec-bench-category --speed-bench-category --speed-bench-dataset-subset --spec-bench-output-len "
        "--speed-bench-output-len"
    ),
    "the data set is not read; the flag for all that are is --output-len N": "--hf-output-len",
    "the name of 2023: --dataset-path FILE": "--dataset",
    SONNET: "--sonnet-input-len --sonnet-output-len --sonnet-prefix-len",
    AUDIO: "--asr-max-audio-len-sec --asr-min-audio-len-sec",
    TOOLS: "--bfcl-categories",
    "only greedy decoding and sampling are measured": "--use-beam-search",
    "adapters take no turns: pass an adapter's name as --model, or --dataset-path FILE with whole bodies, "
    "each with its own `model`": "--lora-modules --lora-assignment",
    "it is the server's: --launch vllm --server-args '--max-loras N'; the adapter's name is --model": (
        "--max-loras"
    ),
    "workloads are .toml files: --profile FILE": "--config",
    "other users could read it in `ps`: set OPENAI_API_KEY, or pass --api-key-env NAME or --api-key-file "
    "FILE": _KEY,
    "conversations that are made here all have --turns N; those of --dataset-path FILE have as many as were "
    "recorded": "--multi-turn-min-turns --multi-turn-max-turns",
    "every message of a conversation has --random-input-len N, or lengths of --input-dist": (
        "--per-turn-input-len"
    ),
    "what all conversations share is their system prompt, --random-prefix-len N, and what the turns of one "
    "share is its history": "--multi-turn-prefix-global-ratio --multi-turn-prefix-conversation-ratio",
}
TABLES = {
    "same": _map_flags(_SAME),
    "differs": _map_flags(_DIFFERS),
    "another name": _map_flags(_RENAMED),
    "no effect": _map_flags(_NO_EFFECT)
    | {
        flag: f"{only} is what is sent, other values are refused: {why}"
        for flag, (only, why) in ONLY_VALUES.items()
    },
    "refused": _map_flags(_REFUSED),
}
NO_EFFECT = TABLES["no effect"]

# Flags without effect that take a value.
VALUED_FLAGS = frozenset({"--tokenizer-mode", "--timeline-itl-thresholds", "--log-config-file", *ONLY_VALUES})
# Whole families, whose flags change from version to version.
_FAMILIES = {
    "--sonnet-": SONNET, "--hf-": HUB, "--spec-bench-": HUB, "--burstgpt-": BURSTGPT, "--speed-bench-": HUB,
    "--blazedit-": HUB, "--bfcl-": TOOLS, "--asr-": AUDIO,
}  # fmt: skip


def list_flags() -> list[tuple[str, str, str]]:
    """List (flag, `same`/`differs`/`no effect`/…, explanation) of every flag, sorted by flag."""
    rows = [(flag, what, words) for what, table in TABLES.items() for flag, words in table.items()]
    return sorted(rows, key=lambda row: row[0].lstrip("-").lower())


def explain_flag(flag: str) -> str | None:
    """Explain which flag of ours replaces a vLLM flag that is refused, or why none does; None for any other.

    A flag without a row of its own is explained by its family's, found by how it begins.
    """
    if flag in TABLES["another name"]:
        return f"{flag} of `{_CLIENT}` is {TABLES['another name'][flag]} here"
    family = next((words for beginning, words in _FAMILIES.items() if flag.startswith(beginning)), None)
    refused = TABLES["refused"].get(flag, family)
    client = "" if flag == _KEY else f" of `{_CLIENT}`"
    return None if refused is None else f"{flag}{client} is not supported: {refused}"


def refuse_bare_profile(argv: Sequence[str]) -> None:
    """Raise UsageError for a --profile without a name, which in vLLM traces the server."""
    for word, following in pairwise([*argv, "--"]):
        if word == "--profile" and following.startswith("--"):
            raise UsageError(
                "--profile takes the name of a workload here (`loadgen profiles` lists them); "
                "vLLM's bare --profile, which traces the server, is --server-trace"
            )


def explain_no_effects(flags: tuple[str, ...]) -> str:
    """Join, in one line, why each of these vLLM flags has no effect, once for each."""
    return "; ".join(f"{flag}: {NO_EFFECT[flag]}" for flag in dict.fromkeys(flags))


def explain_keyword_without_effect(flag: str) -> str | None:
    """Explain why a vLLM flag, given as a keyword, has no effect here; None if it has one, or is unknown."""
    reason = NO_EFFECT.get(flag)
    return None if reason is None else f"{flag} of `{_CLIENT}` has no effect here: {reason}"


class _Unheeded(argparse.Action):
    """The action of a vLLM flag without effect."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Add the flag to those noted in the namespace; raises UsageError for a value that is refused."""
        flag = self.option_strings[0]
        if isinstance(values, str) and (reason := _explain_wrong_value(flag, values)) is not None:
            raise UsageError(reason)
        setattr(namespace, self.dest, (*getattr(namespace, self.dest, ()), flag))


def add_unheeded_flags(parser: argparse.ArgumentParser) -> None:
    """Add vLLM's flags without effect to a parser whose help does not list them; noted as `no_effect`."""
    for flag in NO_EFFECT:
        nargs = None if flag in VALUED_FLAGS else 0
        parser.add_argument(flag, action=_Unheeded, nargs=nargs, dest="no_effect", help=argparse.SUPPRESS)


def _explain_wrong_value(flag: str, value: str) -> str | None:
    """Explain why a vLLM flag without effect is refused with this value; None if it accepts the value."""
    only, why = ONLY_VALUES.get(flag, (None, ""))
    try:
        heeded = only is not None and float(value) != only
    except ValueError:
        heeded = True
    return f"{flag} {quote_value(value)} of `{_CLIENT}` is not supported: {why}" if heeded else None
