"""Custom: vLLM's own kind of file, `{"prompt", "output_tokens"?}` a line, by vLLM's rules.

CSV and Parquet with such columns are read as the same rows; vLLM reads JSONL alone.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base import parsing
from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError
from loadgen.base.json_lines import Lines, OpenedFile, explain_fault
from loadgen.features.data import row_kinds
from loadgen.features.data.listed_texts import (
    FileTexts,
    apply_template,
    count_tokens,
    oversample_rows,
    shuffle_rows,
)
from loadgen.plan.planned_requests import UNKNOWN_LEN
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import PlanInputs, SourcedRequests
from loadgen.plan.tokenizers import find_optional_tokenizer, load_tokenizer

KIND = "custom"
FLAG = "--dataset-path"
OF_THE_ROWS = -1
_OUTPUT_LEN = 256  # vLLM's default
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=parsing.MOST_TOKENS)]
_ONCE = "the server applies its chat template; vLLM's client would send it a prompt that has one already"


class PromptRow(msgspec.Struct):
    """One line of the file; its `output_tokens` are checked only if they are used."""

    prompt: str
    output_tokens: Any = None


def requests(inputs: PlanInputs) -> SourcedRequests:
    """Make the requests of vLLM's `custom` file: shuffled, in the chat template, drawn again if too few.

    Raises UsageError for a file or row that is not of this kind, or has an empty prompt.
    """
    profile, seed = inputs.profile, inputs.shared_seed
    file = OpenedFile(profile.dataset_path, FLAG)
    lines = row_kinds.convert_rows(file) if row_kinds.is_sheet(file) else Lines(file)
    order = shuffle_rows(len(lines), seed, profile.disable_shuffle)[: inputs.most]
    wanted = set(order)  # every row is decoded, since each must be of this kind
    rows = {i: row for i, row in enumerate(lines.decode_rows(PromptRow)) if i in wanted}
    output_lens = [_find_output_len(profile, lines, i, rows[i]) for i in order]
    texts = [rows[i].prompt for i in order]
    if "" in texts:
        raise lines.refusal(order[texts.index("")], "its prompt is empty")
    sent, input_lens, tokenizer = _apply_templates(inputs, texts)
    which = oversample_rows(len(order), inputs.most, seed, profile.no_oversample)
    text = "prompts of the file" + ", in the model's chat template" * (sent is not texts)
    facts = replace(row_kinds.make_facts(KIND, lines, which), text=text)
    lens = input_lens[which], np.array(output_lens, np.int64)[which]
    listed = FileTexts(sent, which, lens, lines.path, [lines.number(i) for i in order])
    twice = inputs.dialect.chat and not profile.skip_chat_template
    return SourcedRequests(listed, facts, tokenizer=tokenizer, notes=(_ONCE,) if twice else ())


def _find_output_len(profile: Profile, lines: Lines, i: int, row: PromptRow) -> int:
    """Return the tokens asked of row i's answer: --custom-output-len, else 256; -1 takes the row's own."""
    asked = _OUTPUT_LEN if profile.custom_output_len is None else profile.custom_output_len
    if asked != OF_THE_ROWS:
        return asked
    if row.output_tokens is None:
        raise lines.refusal(i, "has no output_tokens: add them, or pass --custom-output-len N")
    try:
        return msgspec.convert(row.output_tokens, _Tokens, strict=False)
    except msgspec.ValidationError as error:
        raise lines.refusal(
            i, explain_fault(error, msgspec.json.encode(row.output_tokens), "output_tokens")
        ) from None


def _apply_templates(inputs: PlanInputs, texts: list[str]) -> tuple[list[str], Int64, str]:
    """Apply the chat template as vLLM does; return texts, tokens (UNKNOWN_LEN: uncounted), tokenizer."""
    profile, by_server = inputs.profile, inputs.dialect.chat
    tokenizer = find_optional_tokenizer(inputs.subject)
    if tokenizer is None and (by_server or profile.skip_chat_template):
        return texts, np.full(len(texts), UNKNOWN_LEN, np.int64), ""
    if tokenizer is None:
        raise UsageError(
            f"--dataset-name {KIND} renders the model's chat template here, as vLLM does, which needs a "
            f"tokenizer, and {inputs.subject.no_tokenizer}: pass --tokenizer, or "
            "--skip-chat-template to send the prompts as they are, or --backend openai-chat for the "
            "server's own template"
        )
    loaded = load_tokenizer(tokenizer, KIND)
    if profile.skip_chat_template:
        templated = texts
    else:
        templated = [apply_template(loaded, tokenizer, text, profile.chat_template_kwargs) for text in texts]
    lens = np.array(count_tokens(loaded, templated), np.int64)
    return texts if by_server else templated, lens, tokenizer
