"""Sent texts: what recorded prompts share, and how fast the same ones were answered in an earlier run.

Prompts that are made here are unlike in every run, and the plan knows what they share. Those of a file are
the same in every run: what a cache may have of them is learned after the run, where it matters.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadgen.base.arrays import Float64, Int64
from loadgen.base.clock import MS_NS
from loadgen.base.errors import UsageError
from loadgen.base.structs import replace
from loadgen.facts.run_facts import EarlierRun, Facts, SharedTexts
from loadgen.figures.per_request import PerRequest
from loadgen.plan import plan
from loadgen.plan.plan import Plan
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.records.record import Records
from loadgen.report import run_directory
from loadgen.report.run_directory import Result
from loadgen.run.firing import Outcome
from loadgen.verdict.evidence import reported_reuse

CACHED = 0.05  # of the prompt tokens: below, no one asks what the prompts share
_FIELDS = ("tools", "system", "instructions", "messages", "input", "prompt", "text", "input_ids")
_DATA = re.compile(rb"data:[\w.+/-]+;base64,[\w+/=-]*")
_MOST_BYTES = 128 << 20  # of prompts that are compared
_MOST_BYTES_PER_TOKEN = 6  # of text, a third more than usual
_MOST_TEMPLATE = 96  # tokens
_MOST_COMPARED = 4096  # requests
_LEAST_AFTER_THE_FIRST_WAVE = 10
_UNFINISHED = "unfinished"  # in a series: the directory of the runs that have not ended
_DAY, _MOST_RUNS = timedelta(days=1), 50

# Maps the contents of each prompt to its TTFT and TPOT (ns; NaN: unknown).
_Answered = dict[bytes, tuple[float, float]]


def list_steps(
    subject: ModelTarget, runs_dir: Path, made: Plan, outcome: Outcome
) -> Iterator[tuple[str, Callable[[Facts], Facts]]]:
    """Yield the steps after a run of recorded prompts: what they share, and how an earlier run answered."""
    yield "what the prompts share", partial(add_shared_texts, made=made, records=outcome.records)
    add = partial(add_earlier, subject=subject, runs_dir=runs_dir, made=made, records=outcome.records)
    yield "an earlier run", add


def add_shared_texts(known: Facts, made: Plan, records: Records) -> Facts:
    """Return the facts with what the sent prompts share, if over 5 % of their tokens were cached.

    Of sessions without branches the first turns are compared: a later one's history is known. Nothing is
    added of more than 128 MiB of prompts.
    """
    by = reported_reuse(known, records).values()
    if not any(hits > CACHED * queries for hits, queries in by):
        return known
    sent = np.arange(int(records.index.max(initial=-1)) + 1)
    if made.turns is not None and not made.turns.has_branches:
        sent = made.turns.begins[:-1][made.turns.begins[:-1] <= sent[-1]]
    texts, size = list[bytes](), 0
    for i in sent.tolist():
        texts.append(_read_prompt(made, i))
        size += len(texts[-1])
        if size > _MOST_BYTES:
            return known
    # The most tokens that a chat template can add to each prompt.
    sizes = dict(zip(sent.tolist(), map(len, texts), strict=True))
    counted = [
        tokens - sizes[i] // _MOST_BYTES_PER_TOKEN
        for i, tokens, ok in zip(
            records.index.tolist(), records.input_tokens.tolist(), records.ok.tolist(), strict=True
        )
        if ok and tokens >= 0 and i in sizes
    ]
    template = min(max(min(counted, default=_MOST_TEMPLATE), 0), _MOST_TEMPLATE)
    share = count_shared_bytes(texts) / max(size, 1)
    return replace(known, shared_texts=SharedTexts(share, template if made.dialect.chat else 0))


def count_shared_bytes(texts: list[bytes]) -> int:
    """Count the bytes of texts that are the beginning of an earlier one too, in any order of them.

    Together the beginnings make a tree. Sorted, each text adds to it what it does not share with its
    neighbour, so the count is the same in every order.
    """
    before, shared = b"", 0
    for text in sorted(texts):
        most = min(len(before), len(text))
        own, other = (np.frombuffer(each, np.uint8, most) for each in (text, before))
        apart = own != other
        shared += int(apart.argmax()) if apart.any() else most
        before = text
    return shared


def _read_prompt(made: Plan, i: int) -> bytes:
    """Return what a model is given of request i as JSON bytes: tools, as in templates, before the text."""
    body: dict[str, Any] = msgspec.json.decode(made.body(i), type=dict[str, msgspec.Raw])
    text = b"".join(bytes(body[name]) for name in _FIELDS if name in body)
    return _DATA.sub(lambda found: hashlib.blake2b(found[0], digest_size=16).hexdigest().encode(), text)


def add_earlier(known: Facts, subject: ModelTarget, runs_dir: Path, made: Plan, records: Records) -> Facts:
    """Return the facts with the first run of the same prompts under no harder load, of those kept next to it.

    Nothing is added where cached tokens are reported, since these show what a cache did.
    """
    first = None if reported_reuse(known, records) else _find_first(known, runs_dir)
    if first is None:
        return known
    seed = Seed(first.facts.seed, first.facts.seed_chosen, first.facts.repeat, first.facts.attempt)
    before = _list_answers(first.facts, plan.make(first.facts.profile, subject, seed), first.records)
    now = _list_answers(known, made, records)
    both = [(answer, now[key]) for key, answer in before.items() if key in now]
    if not both:
        return known
    before_ns, now_ns = (np.array([each[side] for each in both]) for side in range(2))
    return replace(known, earlier=compare_answers(before_ns, now_ns, first.facts.held_concurrency or 1))


def _find_first(known: Facts, runs_dir: Path) -> Result | None:
    """Find the first run of these prompts on this server in the last day, of the latest 50 in a directory."""
    kept = [*runs_dir.glob(f"*/{run_directory.RESULT}")]
    if runs_dir.parent.name == _UNFINISHED:
        kept += runs_dir.parent.parent.glob(f"*/*/{run_directory.RESULT}")
    for path in sorted(kept, key=lambda path: path.stat().st_mtime_ns)[-_MOST_RUNS:]:
        try:
            if known.data.file_digest.encode() not in path.read_bytes():  # before its arrivals are read
                continue
            earlier = run_directory.load(path.parent)
        except (OSError, UsageError):
            continue
        facts = earlier.facts
        recent, harder = known.started - facts.started < _DAY, _list_load(known) >= _list_load(facts)
        if recent and harder.all() and _name_prompts(facts) == _name_prompts(known):
            return earlier
    return None


def _list_load(facts: Facts) -> Float64:
    return np.array([facts.profile.max_concurrency or np.inf, facts.profile.request_rate])


def _name_prompts(facts: Facts) -> tuple[object, ...]:
    """Return what runs of the same prompts on one server, by its label too, have in common under any load."""
    server, each = facts.server, ("max_concurrency", "num_prompts", "duration")
    profile = facts.profile.model_copy(update={"request_rate": np.inf, **dict.fromkeys(each)})
    return server.url, server.version, server.model, facts.label, facts.data.file_digest, profile


def compare_answers(before_ns: Float64, now_ns: Float64, wave: int) -> EarlierRun:
    """Compare TTFT and TPOT, float64[prompts, 2], of the same prompts in two runs, in the order of the first.

    The first `wave` of them is left out if ten are left.
    """
    if len(now_ns) - wave >= _LEAST_AFTER_THE_FIRST_WAVE:
        before_ns, now_ns = before_ns[wave:], now_ns[wave:]
    ratios, tpot_ratios = now_ns[:, 0] / before_ns[:, 0], now_ns[:, 1] / before_ns[:, 1]
    known = tpot_ratios[np.isfinite(tpot_ratios)]
    return EarlierRun(
        requests=len(ratios),
        fell=int((ratios < 1).sum()),
        before_ms=float(np.median(before_ns[:, 0])) / MS_NS,
        now_ms=float(np.median(now_ns[:, 0])) / MS_NS,
        ratio=float(np.median(ratios)),
        tpot_ratio=float(np.median(known)) if len(known) else 1.0,
    )


def _list_answers(known: Facts, made: Plan, records: Records) -> _Answered:
    """List TTFT and TPOT by prompt, in the order of sending; of a prompt that is sent twice the first."""
    each = PerRequest.from_records(records, known.ask())
    rows: Int64 = np.flatnonzero(each.has_ttft & each.ok & (each.ttft_ns > 0))
    rows = rows[np.argsort(records.sent_ns[rows], kind="stable")][:_MOST_COMPARED]
    tpot_ns = np.where(each.has_tpot & (each.tpot_ns() > 0), each.tpot_ns(), np.nan)
    found: _Answered = {}
    for row in rows.tolist():
        key = hashlib.blake2b(_read_prompt(made, int(records.index[row])), digest_size=16).digest()
        found.setdefault(key, (float(each.ttft_ns[row]), float(tpot_ns[row])))
    return found
