"""Replay: a trace's requests as a plan's: lengths and shared prefixes as recorded, at the recorded times."""

from __future__ import annotations

from loadgen.features.traces import formats
from loadgen.features.traces.blocks import BlockContent
from loadgen.features.traces.formats import TraceSource
from loadgen.features.traces.prompt_form import IDS, form_of
from loadgen.features.traces.replayed import ReplayedRequests
from loadgen.features.traces.reuse import prefix_reuse
from loadgen.features.traces.schedule import TraceSchedule, TraceSelection, TraceWindow
from loadgen.features.traces.trace_rows import TraceRows
from loadgen.features.traces.word_blocks import ReplayedWords
from loadgen.plan.data_facts import DataFacts
from loadgen.plan.plan_inputs import PlanInputs, SourcedRequests, WordCounts
from loadgen.plan.streams import arrival_rng
from loadgen.plan.vocabulary import find_vocabulary

_BITS = 2**64


def requests(inputs: PlanInputs) -> SourcedRequests:
    """The requests of a profile's trace; raises UsageError where trace, profile and server do not fit."""
    profile = inputs.profile
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
    made, ids_source, text, how = _made(inputs, trace, picked)
    notes += how
    reuse = prefix_reuse(trace.hashes, made.begins, made.hash_counts, made.input_lens, trace.block)
    facts = DataFacts(
        kind="trace",
        file=trace.file,
        file_digest=trace.digest,
        rows=trace.file_rows,
        sent=len(picked.places),
        repeated=reuse.repeated,
        skipped={**trace.skipped, **picked.skipped},
        clipped=picked.clipped,
        text=text,
        reusable_tokens=int(reuse.tokens.sum()),
        schedule=None if schedule is None else schedule.facts,
    )
    return SourcedRequests(
        made,
        facts,
        None if schedule is None else schedule.offsets_ns,
        ids_source=ids_source,
        notes=tuple(notes),
        sessions=None if trace.sessions is None else trace.sessions[picked.places],
    )


def _made(
    inputs: PlanInputs, trace: TraceRows, picked: TraceSelection
) -> tuple[ReplayedRequests, str, str, list[str]]:
    """The requests in the form that the API takes; where their ids or their text are from, and notes."""
    subject = inputs.subject
    form = form_of(inputs.profile, subject, inputs.dialect)
    # Of two traces without hashes, sent to one server with one seed, row 1 is not the same prompt.
    seed, own_seed = (inputs.stream.key(part) % _BITS for part in ("blocks", f"own {trace.digest}"))
    vocabulary = find_vocabulary(subject.tokenizer, subject.model_root, subject.vocab_size)
    content = BlockContent(trace.block, seed, own_seed, vocabulary.allowed)
    if form == IDS:
        ids = ReplayedRequests(trace, picked.places, picked.input_lens, picked.output_lens, content)
        return ids, vocabulary.source, "", []
    counts = subject.word_counts or WordCounts()
    spelled = ReplayedWords(trace, picked.places, (picked.input_lens, picked.output_lens), content, counts)
    how = counts.how or "one token a word is assumed: the server was not asked"
    return spelled, "", "common words", [f"prompts of words: {how}"]
