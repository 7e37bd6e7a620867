"""Timed trace: vLLM's own kind (`--dataset-name timed_trace`), with its labels, block size and unit of time.

What vLLM puts in a block comes from Python's `hash`, which differs from process to process unless
PYTHONHASHSEED is set: where it is, to the same value, the prompts here are vLLM's; else they come from the
block hash of `loadgen.features.traces.trace_blocks`, which is the same everywhere.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, cast

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Int64
from loadgen.base.block_hashes import chain_hashes
from loadgen.base.clock import SECOND_NS
from loadgen.base.errors import UsageError
from loadgen.base.json_lines import Lines
from loadgen.base.text import quote_value
from loadgen.features.traces.trace_blocks import BlockContent
from loadgen.features.traces.trace_replay import MadeRequests, ReplayedRequests, TraceSelection, replay
from loadgen.features.traces.trace_rows import HashedRow, Length, TraceRows, read_hashed_rows
from loadgen.plan.model_files import find_vocabulary
from loadgen.plan.planned_requests import Turns
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import PlanInputs, SourcedRequests
from loadgen.plan.tokenizers import find_optional_tokenizer, load_tokenizer

TIMED_TRACE = "timed_trace"
FLAG = "--dataset-path"
_VARIABLE = "PYTHONHASHSEED"
_SEED_BITS = 0xFFFF_FFFF
_OURS = (
    f"the blocks' content is not vLLM's, whose own changes from process to process: set {_VARIABLE} to the "
    "same number for both clients, with a tokenizer, and it is equal"
)
_SHORT = (
    "{} rows have fewer hash_ids than blocks of {} tokens need: their prompts are shorter than recorded, as "
    "vLLM's are"
)
_Hash = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_FIELDS: tuple[tuple[str, Any] | tuple[str, Any, Any], ...] = (
    ("timestamp", Annotated[float, msgspec.Meta(ge=0)]), ("input_length", Length), ("output_length", Length),
    ("hash_ids", list[_Hash] | None, None),
)  # fmt: skip


class PythonHashContent(BlockContent, frozen=True):
    """The content of blocks as vLLM makes it from Python's hash of block id and length."""

    def places(self, ids: Int64, length: int, row: int) -> Int64:
        """Make a row's prompt from its blocks, the last one cut, as indices into `allowed`.

        Block h of n tokens is `random.Random(hash("h:n") & 0xFFFFFFFF).choices(allowed, k=n)`; the generator
        is that of numpy, which makes the same numbers of the same key.
        """
        pieces = []
        state = np.random.RandomState()
        for value in ids.tolist():
            size = min(self.block, length)
            state.seed([hash(f"{value}:{size}") & _SEED_BITS])
            pieces.append((state.random_sample(size) * len(self.allowed)).astype(np.int64))
            length -= size
            if not length:
                break
        return np.concatenate(pieces)

    def digest(self) -> bytes:
        """Return what the content depends on: allowed ids, block size, and Python's hash."""
        return b"%s %d" % (super().digest(), hash("0:0"))


def requests(inputs: PlanInputs) -> SourcedRequests:
    """Make the requests of a profile's trace; raises UsageError if trace, profile and server do not fit."""
    if not inputs.subject.takes_ids(inputs.dialect):
        who = inputs.subject.name_text_api(inputs.dialect)
        raise UsageError(
            f"--dataset-name {TIMED_TRACE} sends token ids, and {who} takes text: use --backend openai "
            "(/v1/completions), or --trace FILE --trace-format timed, whose prompts are words there"
        )
    trace = _read_rows(inputs.profile)

    def make(picked: TraceSelection, held: int, turns: Turns | None) -> MadeRequests:
        content, source, notes = _make_content(inputs)
        made, hashes = ReplayedRequests(trace, picked, content), trace.hashes
        if isinstance(content, PythonHashContent):  # whose cut blocks do not begin as whole ones do
            last_len = made.input_lens % trace.block
            cut = last_len > 0
            last = (made.begins + made.input_lens // trace.block)[cut]
            hashes = hashes.astype(np.int64)
            hashes[last] = chain_hashes(hashes[last], last_len[cut])
        return MadeRequests(made, hashes, ids_source=source, notes=notes)

    return replay(inputs, trace, (TIMED_TRACE, "timed"), make)


def _read_rows(profile: Profile) -> TraceRows:
    """Read the file's rows under the profile's labels; raises UsageError that names a row.

    A prompt that is longer than its hashes cover is cut to them, as vLLM's is, with a note. Each row needs
    hashes.
    """
    lines = Lines.open(profile.dataset_path, FLAG)
    first = next(lines.decode_rows(dict))
    labels = {name: str(getattr(profile, f"timed_trace_label_{name}")) for name, *_ in _FIELDS}
    for name, label in labels.items():
        if label not in first:
            keys = quote_value(", ".join(map(str, first)))
            flag = f"--timed-trace-label-{name.replace('_', '-')}"
            raise lines.refusal(0, f"has no {label}, only {keys}: name the key with {flag}")
    if len(set(labels.values())) < len(labels):
        raise UsageError(f"--timed-trace-label-*: two of {', '.join(labels.values())} are one key")
    kind = cast(type[HashedRow], msgspec.defstruct("TimedRow", _FIELDS, rename=labels))
    block = profile.timed_trace_chunk_hash_size
    rows = read_hashed_rows(lines, profile.timed_trace_sec_multiplier * SECOND_NS, block, kind)
    counts = np.diff(rows.starts)
    if not counts.all():
        raise lines.file.refusal(
            f"has no {labels['hash_ids']}, of which {TIMED_TRACE} makes prompts: send it with --trace FILE "
            "--trace-format timed, which needs none",
            int(rows.numbers[np.argmin(counts)]),
        )
    covered = np.minimum(rows.input_lens, counts * block)
    short = int((covered < rows.input_lens).sum())
    return replace(rows, input_lens=covered, notes=(_SHORT.format(short, block),) if short else ())


def _make_content(inputs: PlanInputs) -> tuple[BlockContent, str, tuple[str, ...]]:
    """Make the blocks' content, vLLM's with PYTHONHASHSEED and a tokenizer; return it, ids' source, notes."""
    subject, block = inputs.subject, inputs.profile.timed_trace_chunk_hash_size
    tokenizer = find_optional_tokenizer(subject)
    # Only then is Python's hash of a text the same in every process of this environment.
    is_set = os.environ.get(_VARIABLE, "random") not in ("", "random") and not sys.flags.ignore_environment
    if is_set and tokenizer is not None:
        loaded = load_tokenizer(tokenizer, TIMED_TRACE)
        special = set(loaded.all_special_ids)
        ids = np.array(sorted(i for i in loaded.get_vocab().values() if i not in special), np.int64)
        note = f"the blocks' content is vLLM's of {_VARIABLE}={os.environ[_VARIABLE]}"
        return PythonHashContent(block, 0, 0, ids), tokenizer, (note,)
    vocabulary = find_vocabulary(subject.tokenizer, subject.model_root, subject.vocab_size)
    # vLLM's own seed is always 0 here: the same trace is the same prompts.
    return BlockContent(block, 0, 0, vocabulary.allowed), vocabulary.source, (_OURS,)
