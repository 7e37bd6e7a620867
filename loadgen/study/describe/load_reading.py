"""Load reading: the requests of any trace, data set or plan as columns, what they share as blocks."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Int64
from loadgen.base.block_hashes import SERVER_BLOCK, chain_hashes
from loadgen.features.data.data_command import find_file_key, join_text, make_data_plan
from loadgen.features.traces.trace_blocks import make_load_columns
from loadgen.features.traces.trace_formats import TraceSource, read_trace
from loadgen.features.traces.trace_schedule import TraceWindow
from loadgen.figures.workloads.load_columns import NO_DELAY, LoadColumns
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import UNKNOWN_LEN, PromptRequests, Turns
from loadgen.plan.request_sources import RandomStream, Seed

_LETTER_BYTES = 4  # of a token of English text, as OpenAI's guide has it
_BLOCK_BYTES = SERVER_BLOCK * _LETTER_BYTES
_ROOT = np.int64(0x2545_F491_4F6C_DD1D)
_ESTIMATED = (
    f"tokens of the prompts are estimated, a token for {_LETTER_BYTES} bytes: --tokenizer DIR counts them"
)
_IN_ORDER = "reuse is of one session after another: run together they use more between"
_AS_ANSWERS_COME = "requests are sent as answers come: arrivals are known of a run only"
_SESSIONS = "sessions have times, and their turns wait for answers: no arrivals of requests"


def read_load(file: str | None, values: dict[str, Any], options: dict[str, Any]) -> LoadColumns:
    """Read the columns of a file, of what the profile's keys `values` name, or of a plan of random prompts.

    A trace is read whole unless the keys select some of it; anything else is what a run would send. Raises
    UsageError.
    """
    if file is not None:
        values = {**values, find_file_key(file, values): file}
    if set(values) <= {"trace", "trace_format"} and "trace" in values and "profile" not in options:
        seed = options["seed"] if "seed" in options else Seed.draw().value
        source = TraceSource(values["trace"], TraceWindow.parse(""), RandomStream(seed))
        form, rows = read_trace(values.get("trace_format", ""), source)
        return make_load_columns(rows, f"{_shorten(values['trace'])}, {form}")
    made = make_data_plan(values, options)
    return _describe_plan(made, options.get("tokenizer"))


def _shorten(path: str) -> str:
    return PurePath(path).name or path


def _describe_plan(made: Plan, tokenizer: str | None) -> LoadColumns:
    """Make the columns of a plan, each prompt made once; lengths that no one knows are estimated of text."""
    count = len(made)
    lens, starts, blocks = made.requests.input_lens[:count].copy(), array("q", [0]), []
    estimated = False
    total = 0
    for i, (own, length, exact) in enumerate(_list_prompt_blocks(made, tokenizer)):
        if lens[i] == UNKNOWN_LEN:
            lens[i], estimated = length, estimated or not exact
        blocks.append(own)
        total += len(own)
        starts.append(total)
    notes = list(made.notes)
    if estimated:
        notes.append(_ESTIMATED)
    if made.turns is not None:
        notes += [_IN_ORDER, *([_SESSIONS] if made.offsets_ns is not None and made.offsets_ns.any() else [])]
    if made.offsets_ns is None:
        notes.append(_AS_ANSWERS_COME)
    name = f"{_shorten(made.facts.file)}, {made.facts.kind}" if made.facts.file else made.facts.kind
    return LoadColumns(
        name,
        lens,
        made.requests.output_lens[:count],
        made.offsets_ns[:count] if made.offsets_ns is not None and made.turns is None else None,
        np.concatenate(blocks) if blocks else np.zeros(0, np.int64),
        np.frombuffer(starts, np.int64),
        SERVER_BLOCK,
        _list_sessions(made),
        None if made.turns is None else find_pauses_ns(made.turns)[:count],
        None if made.turns is None or made.turns.waits is None else made.turns.waits.depths[:count],
        tuple(notes),
    )


def _list_sessions(made: Plan) -> Int64 | None:
    if made.turns is not None:
        return made.turns.list_sessions()[: len(made)]
    return None if made.sessions is None else made.sessions[: len(made)]


def find_pauses_ns(turns: Turns) -> Int64:
    """Return the pause before each turn (ns), int64[requests], NO_DELAY of those that wait for none."""
    pauses_ns = turns.delays_ns.copy()
    waiting = np.ones(len(pauses_ns), np.bool_)
    waiting[turns.begins[:-1]] = False
    if turns.waits is not None:
        waiting = np.diff(turns.waits.starts) > 0
    pauses_ns[~waiting] = NO_DELAY
    return pauses_ns


def _list_prompt_blocks(made: Plan, tokenizer: str | None) -> Iterator[tuple[Int64, int, bool]]:
    """Yield the hashes of each prompt's whole blocks, its length in tokens, and whether that is counted."""
    encode: Callable[..., list[int]] | None = None
    if tokenizer is not None:
        from loadgen.plan.tokenizers import load_tokenizer  # slow, and only text needs it

        encode = load_tokenizer(tokenizer, "auto").encode
    for i in range(len(made)):
        prompt = made.requests.prompt(i) if isinstance(made.requests, PromptRequests) else join_text(made, i)
        if isinstance(prompt, str) and encode is None:
            text = prompt.encode("utf-8", "surrogatepass")
            words = np.frombuffer(text[: len(text) // _BLOCK_BYTES * _BLOCK_BYTES], "<i8")
            yield _hash_blocks(words, _BLOCK_BYTES // 8), -(-len(text) // _LETTER_BYTES), False
            continue
        if isinstance(prompt, str):
            assert encode is not None
            prompt = encode(prompt, add_special_tokens=True)
        ids = np.array(prompt[: len(prompt) // SERVER_BLOCK * SERVER_BLOCK], np.int64)
        yield _hash_blocks(ids, SERVER_BLOCK), len(prompt), True


def _hash_blocks(words: NDArray[Any], width: int) -> Int64:
    """Hash each `width` words, int64[len(words) / width]."""
    columns = words.astype(np.int64).reshape(-1, width)
    hashes = np.full(len(columns), _ROOT)
    for column in columns.T:
        hashes = chain_hashes(hashes, np.ascontiguousarray(column))
    return hashes
