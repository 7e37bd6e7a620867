"""Answer check: a run's answers to a few greedy prompts: garbage, or different from a baseline's."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from loadgen.base.text import REPLACEMENT, format_count
from loadgen.facts.run_facts import Fingerprint, GreedyAnswer
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions

COMPLETION, CHAT = "completion", "chat"


class Prompt(msgspec.Struct, frozen=True):
    """A fixed prompt of the answer check; `expects` is a pattern that a working model's answer has early."""

    text: str
    expects: str = ""  # "": any continuation is fine


# Any change of a text needs a new version: answers to other prompts are not compared. Each is shorter than a
# block of the prefix cache (16 tokens on a GPU), so that a second answer is computed just as the first.
VERSION: Final = 1
ANSWER_TOKENS: Final = 48
PROMPTS: Final = (
    Prompt("The capital of France is", r"Paris"),
    Prompt("The chemical symbol for gold is", r"\bAu\b"),
    Prompt("To be, or not to be, that is the", r"question"),
    Prompt("1, 2, 3, 4, 5,", r"6\D+7\D+8"),
    Prompt("Monday, Tuesday, Wednesday,", r"Thursday\W+(and )?Friday"),
    Prompt("5 + 4 = 9\n3 + 3 =", r"^\W*6\b|= \W*6\b"),
    Prompt("def add(a, b):\n    return", r"a \+ b"),
    Prompt("for (int i = 0; i < 10;", r"\+\+ ?i|i ?\+\+|i \+= 1"),
    Prompt('{"name": "Alice", "age": 30, "city":', r'^\s*"[A-Z][A-Za-z .]+"'),
    Prompt("中国的首都是", r"北京"),
    Prompt("Die Hauptstadt von Deutschland ist", r"Berlin"),
    Prompt("Once upon a time, there was a little"),
)

_EXPECTED = {prompt.text: prompt.expects for prompt in PROMPTS}
_FEWEST = 8  # tokens or characters from which repeating a single one is not by chance
_PERIOD_TOKENS, _PERIOD_CHARACTERS = 8, 30  # of a loop, at most
_TURNS = 3  # of a loop, at least, in the answer's second half
_NO_TEXT = 0.5  # share of replacement characters in an answer
_KNOWN, _KEPT = 4, 0.5  # questions the baseline must answer, and the share of them that is enough
_SHOWN = 24  # characters of an answer as an example


def make_empty_fingerprint(why: str) -> Fingerprint:
    """Make a fingerprint without answers, and with the reason."""
    return Fingerprint(version=VERSION, answers=(), missing=why)


class Flaw(StrEnum):
    """A flaw of an answer that shows without a baseline."""

    NOISE = "one token throughout, or no text, which NaN logits make"
    EMPTY = "empty"
    LOOP = "a few tokens repeated to the end"


# The share of answers with a flaw that is too high: alone, and beyond the baseline's. Greedy answers of
# working small models loop now and then, and an instruct model may have nothing to add to a prompt.
_ALONE = {Flaw.NOISE: 1 / 6, Flaw.EMPTY: 1 / 3, Flaw.LOOP: 1 / 2}
_WORSE = {Flaw.NOISE: 1 / 6, Flaw.EMPTY: 1 / 4, Flaw.LOOP: 1 / 4}


def judge_answers(own: Fingerprint, baseline: Fingerprint | None = None) -> list[str]:
    """List what is broken in a run's answers, a line each; [] if nothing is, or there are no answers.

    That is failed prompts, flaws of too many answers, and plain questions that only the baseline answers. A
    difference from the baseline is no flaw. Empty answers and loops are compared with the baseline's if it
    has the same prompts; noise counts in any case.
    """
    reference = baseline if baseline is not None and not _explain_mismatch(own, baseline) else None
    lines = []
    failures = [answer.failure for answer in own.answers if answer.failure]
    if failures:
        first = _clean_text(failures[0])
        lines.append(f"{len(failures)} of {len(own.answers)} prompts failed, the first with {first}")
    for kind in Flaw:
        lines += _report_flaw(kind, own, reference)
    if reference is not None:
        lines += _describe_lost_answers(own, reference)
    return lines


def find_flaw(answer: GreedyAnswer) -> Flaw | None:
    """Return the flaw of one answer, the first of noise, empty and loop.

    None if it has none or is not usable. Noise is one token or character throughout, or over half
    replacement characters.
    """
    if not answer.usable:
        return None
    text = answer.text.strip()
    no_text = text.count(REPLACEMENT) > _NO_TEXT * len(text)
    if no_text or _is_all_equal(answer.token_ids) or _is_all_equal(text):
        return Flaw.NOISE
    if not text:
        return Flaw.EMPTY
    units: Sequence[object] = answer.token_ids or answer.text
    half = units[len(units) // 2 :]
    longest = min(_PERIOD_TOKENS if answer.token_ids else _PERIOD_CHARACTERS, len(half) // _TURNS)
    periods = range(1, longest + 1)
    loops = len(half) >= _FEWEST and any(half[period:] == half[:-period] for period in periods)
    return Flaw.LOOP if loops else None


def describe_difference(own: Fingerprint, baseline: Fingerprint, name: str) -> str:
    """Describe where usable answers differ from a baseline's, by token if all have ids, else by character.

    A difference is not an error of either. Why nothing was compared is said instead.
    """
    why = _explain_mismatch(own, baseline)
    both = () if why else zip(own.answers, baseline.answers, strict=True)
    pairs = [(a, b) for a, b in both if a.usable and b.usable]
    if not pairs:
        return f"outputs not compared with {name}: {why or 'no prompt was completed by both'}"
    by_token = all(a.token_ids and b.token_ids for a, b in pairs)
    differences = [found for a, b in pairs if (found := find_difference(a, b, by_token)) is not None]
    if not differences:
        return f"the same outputs as {name} to all {len(pairs)} prompts"
    equal, length = (statistics.median_low(column) for column in zip(*differences, strict=True))
    basis = f"median of {format_count(len(differences), 'prompt')}"
    if same := len(pairs) - len(differences):
        basis += f"; {same} the same to the end"
    unit = "tokens" if by_token else "characters"
    return f"first differs from {name} after {equal} of {length} {unit} ({basis})"


def count_right(own: Fingerprint) -> tuple[int, int]:
    """Count the right answers, and the prompts with an expected answer."""
    answers = [answer for answer in own.judged if _EXPECTED.get(answer.prompt)]
    return sum(_is_right(answer) for answer in answers), len(answers)


def list_answer_lines(result: Result, options: ReportOptions) -> list[str]:
    """List the report's lines on a run's answers to the greedy prompts; [] if it sent none."""
    return [] if result.facts.fingerprint is None else render_lines(result.facts.fingerprint)


def render_lines(own: Fingerprint) -> list[str]:
    """Return lines on a run's answers: how many there are and are right, and what is broken; or why none."""
    if own.missing:
        return [f"fingerprint: none: {own.missing}"]
    cut = [answer.cut for answer in own.answers if answer.cut]
    right, expected = count_right(own)
    line = f"fingerprint: {len(own.judged)} of {len(own.answers)} greedy prompts completed"
    if expected:
        line += f", {right} of {expected} plain questions as expected"
    if cut:
        line += f"; {len(cut)} cut: {cut[0]}"
    return [line, *(f"fingerprint: broken? {fault}" for fault in judge_answers(own))]


def _explain_mismatch(own: Fingerprint, other: Fingerprint) -> str:
    """Return why two fingerprints cannot be compared; "" if they can."""
    if missing := own.missing or other.missing:
        return missing
    if own.version != other.version or len(own.answers) != len(other.answers):
        return f"other prompts (set {own.version} here, {other.version} there)"
    return "" if own.form == other.form else f"asked as {own.form} here, as {other.form} there"


def _report_flaw(kind: Flaw, own: Fingerprint, reference: Fingerprint | None) -> list[str]:
    """Return a line on a flaw if two or more answers and too large a share of them have it; else []."""
    flawed = [answer for answer in own.judged if find_flaw(answer) is kind]
    there = (
        [answer for answer in reference.judged if find_flaw(answer) is kind] if reference is not None else []
    )
    count = len(own.judged)
    # Noise is always broken; other flaws may be the way this model answers, as the baseline then does too.
    alone = reference is None or kind is Flaw.NOISE
    least, counted = (_ALONE, len(flawed)) if alone else (_WORSE, len(flawed) - len(there))
    if not flawed or counted < max(2, least[kind] * count):
        return []
    compared = f" (of the baseline's: {len(there)})" if reference is not None else ""
    example = f": {_quote_beginning(flawed[0].text)}" if flawed[0].text.strip() else ""
    return [f"{len(flawed)} of {count} outputs are {kind.value}{compared}{example}"]


def _describe_lost_answers(own: Fingerprint, reference: Fingerprint) -> list[str]:
    """Return a line if under half of 4 or more questions that the reference knows are right; else []."""
    pairs = zip(own.answers, reference.answers, strict=True)
    answers = [
        a
        for a, b in pairs
        if a.usable and find_flaw(a) is None and _is_right(b) and (_is_right(a) or not a.cut)
    ]
    kept = [answer for answer in answers if _is_right(answer)]
    if len(answers) < _KNOWN or len(kept) >= _KEPT * len(answers):
        return []
    wrong = next(answer for answer in answers if not _is_right(answer))
    example = f"{_quote_beginning(wrong.prompt)} → {_quote_beginning(wrong.text)}"
    return [f"{len(kept)} right of {len(answers)} plain questions that the baseline gets right: {example}"]


def _is_right(answer: GreedyAnswer) -> bool:
    expects = _EXPECTED.get(answer.prompt, "")
    return answer.usable and bool(expects) and re.search(expects, answer.text) is not None


def _is_all_equal(units: Sequence[object]) -> bool:
    return len(units) >= _FEWEST and all(unit == units[0] for unit in units)


def find_difference(own: GreedyAnswer, other: GreedyAnswer, by_token: bool) -> tuple[int, int] | None:
    """Find how many tokens or characters are equal before two answers differ, and of how many; None if not.

    How a cut answer would have continued is not known.
    """
    mine, theirs = ((answer.token_ids if by_token else answer.text) for answer in (own, other))
    shorter = min(len(mine), len(theirs))
    equal = next((at for at in range(shorter) if mine[at] != theirs[at]), shorter)
    is_cut = (own.cut and len(mine) == shorter) or (other.cut and len(theirs) == shorter)
    length = shorter if is_cut else max(len(mine), len(theirs))
    return (equal, length) if equal < length else None


def _quote_beginning(text: str) -> str:
    return f"'{_clean_text(text.strip()[:_SHOWN])}'" + "…" * (len(text.strip()) > _SHOWN)


def _clean_text(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)
