"""Replay: a trace's requests as a plan's: lengths and shared prefixes as recorded, at the recorded times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from loadgen.arrays import Int64
from loadgen.errors import UsageError
from loadgen.protocol.openai import Chat, Dialect
from loadgen.workload.data_facts import DataFacts
from loadgen.workload.plan_inputs import PlanInputs, SourcedRequests
from loadgen.workload.requests import PromptRequests, fingerprint
from loadgen.workload.streams import arrival_rng
from loadgen.workload.traces import formats
from loadgen.workload.traces.blocks import BlockContent, IdTexts
from loadgen.workload.traces.formats import TraceSource
from loadgen.workload.traces.reuse import prefix_reuse
from loadgen.workload.traces.schedule import TraceSchedule, TraceSelection, TraceWindow
from loadgen.workload.traces.trace_rows import TraceRows
from loadgen.workload.vocabulary import find_vocabulary

_PIECE = 4096  # rows whose hashes are hashed at once
_BITS = 2**64
# Rows of their own, which is no fault of the run: an oversampled file sends the same row twice.
_EQUAL = "{} requests have the prompt of an earlier one, by the trace's hashes and lengths"


class ReplayedRequests(PromptRequests):
    """The requests of a trace: token ids made of each one's hashes when it is asked for.

    `rows` is int64[requests], each request's row in the file, from 1.
    """

    format = "ids"

    def __init__(
        self, trace: TraceRows, places: Int64, input_lens: Int64, output_lens: Int64, content: BlockContent
    ) -> None:
        self.input_lens, self.output_lens = input_lens, output_lens
        self.rows, self._file = trace.numbers[places], trace.file
        self.begins = trace.starts[places]
        self.hash_counts = trace.starts[places + 1] - self.begins
        self._places = places  # unlike a row's number, no two are equal
        self._hashes = trace.hashes
        self._content = content
        self._texts: IdTexts | None = None  # made with the first body

    def where(self, i: int) -> str:
        """Request i by file and row, as `trace.jsonl row 17`."""
        return f"{self._file} row {int(self.rows[i])}"

    def ids(self, i: int) -> Int64:
        """Prompt i, int64[input_lens[i]]."""
        ids: Int64 = self._content.allowed[self._places_of(i)]
        return ids

    def prompt(self, i: int) -> list[int]:
        """Prompt i as the list that goes into the request's JSON."""
        ids: list[int] = self.ids(i).tolist()
        return ids

    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        """The fields of request i, its prompt as JSON: a list of 14,000 ids takes a millisecond to write."""
        if self._texts is None:
            self._texts = IdTexts(self._content.allowed)
        written = cast(list[int], self._texts.prompt(self._places_of(i)))
        return dialect.request(model, written, int(self.output_lens[i]))

    def digest(self) -> str:
        """A fingerprint of all that the prompts follow from: lengths, hashes, seeds, block size, ids."""
        columns = (self.input_lens, self.output_lens, self._places, self.hash_counts)
        return fingerprint(self.format, columns, [self._content.digest(), *self._pieces()])

    def _places_of(self, i: int) -> Int64:
        """Prompt i as places in the allowed ids."""
        begin = int(self.begins[i])
        hashes = self._hashes[begin : begin + int(self.hash_counts[i])].astype(np.int64)
        return self._content.places(hashes, int(self.input_lens[i]), int(self._places[i]))

    def _pieces(self) -> Iterator[bytes]:
        for first in range(0, len(self.begins), _PIECE):
            spans = zip(
                self.begins[first : first + _PIECE].tolist(),
                self.hash_counts[first : first + _PIECE].tolist(),
                strict=True,
            )
            pieces = [self._hashes[begin : begin + count] for begin, count in spans]
            yield np.concatenate(pieces).astype("<i8").tobytes()


def requests(inputs: PlanInputs) -> SourcedRequests:
    """The requests of a profile's trace; raises UsageError where trace, profile and server do not fit."""
    profile, subject = inputs.profile, inputs.subject
    _check(inputs)
    window = TraceWindow.parse(profile.trace_window)
    source = TraceSource(profile.trace, window, inputs.stream)
    name, trace = formats.rows(profile.trace_format, source)
    picked = TraceSelection.of(trace, profile, window, inputs.most)
    notes = [*trace.notes]
    if inputs.most is not None and len(picked.places) < inputs.most:
        notes.append(f"the trace has {len(picked.places)} of the {inputs.most} requests that were asked for")
    schedule = None
    if profile.timed:
        rng = arrival_rng(inputs.stream)
        schedule = TraceSchedule.of(trace, picked.places, profile, window, name, rng)
        notes += schedule.notes
        picked = picked.first(len(schedule.offsets_ns))
    vocabulary = find_vocabulary(subject.tokenizer, subject.model_root, subject.vocab_size)
    seed, own_seed = (inputs.stream.key(part) % _BITS for part in ("blocks", "own"))
    content = BlockContent(trace.block, seed, own_seed, vocabulary.allowed)
    made = ReplayedRequests(trace, picked.places, picked.input_lens, picked.output_lens, content)
    reuse = prefix_reuse(trace.hashes, made.begins, made.hash_counts, made.input_lens, trace.block)
    if reuse.repeated:
        notes.append(_EQUAL.format(reuse.repeated))
    facts = DataFacts(
        kind="trace",
        file=trace.file,
        file_digest=trace.digest,
        rows=trace.file_rows,
        sent=len(picked.places),
        skipped={**trace.skipped, **picked.skipped},
        clipped=picked.clipped,
        reusable_tokens=int(reuse.tokens.sum()),
        schedule=None if schedule is None else schedule.facts,
    )
    return SourcedRequests(
        made,
        facts,
        None if schedule is None else schedule.offsets_ns,
        ids_source=vocabulary.source,
        notes=tuple(notes),
    )


def _check(inputs: PlanInputs) -> None:
    """Raises UsageError of what a trace cannot be sent with."""
    profile = inputs.profile
    if isinstance(inputs.dialect, Chat) or not inputs.subject.engine.takes_ids:
        who = "the chat API" if isinstance(inputs.dialect, Chat) else inputs.subject.engine.name
        raise UsageError(
            f"--trace: prompts of exact lengths and shared blocks are token ids, and {who} takes text: "
            "use --backend openai (/v1/completions)"
        )
    if profile.prompt_format not in ("auto", "ids"):
        raise UsageError(
            f"--prompt-format {profile.prompt_format}: the prompts of a trace are token ids: leave it out"
        )
