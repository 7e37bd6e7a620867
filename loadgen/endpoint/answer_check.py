"""Fingerprint: the answers to a few greedy prompts, kept with a run; whether they are answers at all."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec
from pydantic import BaseModel, ConfigDict

COMPLETION, CHAT = "completion", "chat"


class Prompt(msgspec.Struct, frozen=True):
    """One prompt of the set; `expects` is a pattern that a model which can answer at all says early."""

    text: str
    expects: str = ""  # "": any continuation will do


# A change of any text is a new version: answers to other prompts are not compared. Each is shorter than a
# block of the prefix cache (16 tokens on a GPU), so that one server's second answer is computed as its first.
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

_FEWEST = 8  # tokens or characters by which one alone throughout is no accident
_PERIOD_TOKENS, _PERIOD_CHARACTERS = 8, 30  # of a loop, at most
_TURNS = 3  # of a loop, at least, in the answer's second half
_REPLACEMENT = "\ufffd"
_NO_TEXT = 0.5  # of an answer's characters that stand for none
_KNOWN, _KEPT = 4, 0.5  # questions the baseline must answer, and the share of them that is enough
_SHOWN = 24  # characters of an answer as an example


class GreedyAnswer(BaseModel):
    """What the server said to one prompt at temperature 0."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: str
    text: str = ""
    token_ids: tuple[int, ...] = ()  # where the server tells them
    failure: str = ""  # why there is no answer
    cut: str = ""  # why it ends before its end: there was no more time

    @property
    def known(self) -> bool:
        """Whether there is anything to judge: an answer, be it empty, that no failure or cut explains."""
        return not self.failure and bool(self.text or self.token_ids or not self.cut)


class Fingerprint(BaseModel):
    """The answers to the same few prompts on every checkpoint."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int  # of the set of prompts: only equal ones are compared
    answers: tuple[GreedyAnswer, ...]
    missing: str = ""  # why nothing was asked
    form: str = COMPLETION  # or CHAT: a template stood around the prompts

    @classmethod
    def none(cls, why: str) -> Fingerprint:
        """One without answers."""
        return cls(version=VERSION, answers=(), missing=why)

    @property
    def judged(self) -> tuple[GreedyAnswer, ...]:
        """The answers there is something to say of."""
        return tuple(answer for answer in self.answers if answer.known)


class Flaw(StrEnum):
    """What an answer is instead of one, as far as it shows by itself."""

    NOISE = "one token throughout, or no text, which NaN logits make"
    EMPTY = "empty"
    LOOP = "a few tokens repeated to the end"


# The share of the answers with a flaw that is too many: alone, and more than the baseline's. Greedy answers
# of healthy small models loop now and then, and an instruct model may have nothing to add to a prompt.
_ALONE = {Flaw.NOISE: 1 / 6, Flaw.EMPTY: 1 / 3, Flaw.LOOP: 1 / 2}
_WORSE = {Flaw.NOISE: 1 / 6, Flaw.EMPTY: 1 / 4, Flaw.LOOP: 1 / 4}


class Parting(msgspec.Struct, frozen=True):
    """Where two answers to one prompt part."""

    prompt: str
    equal: int  # tokens or characters before the first that differs
    length: int  # of the longer answer; of the shorter where that one was cut
    parted: bool

    @property
    def share(self) -> float:
        """How much of the answer is equal, 0 to 1."""
        return self.equal / self.length if self.length else 1.0


class Divergence(msgspec.Struct, frozen=True):
    """How far the answers of two checkpoints go together, which is no fault of either."""

    partings: tuple[Parting, ...]
    unit: str  # tokens, characters
    why: str = ""  # why nothing was compared

    def line(self, baseline: str) -> str:
        """One sentence of it; `baseline` is the other checkpoint's name."""
        if self.why:
            return f"answers not compared with {baseline}: {self.why}"
        count = len(self.partings)
        parted = [parting for parting in self.partings if parting.parted]
        if not parted:
            return f"the same answers as {baseline} to all {count} prompts"
        equal = statistics.median_low(parting.equal for parting in parted)
        length = statistics.median_low(parting.length for parting in parted)
        of = f"median of {len(parted)} prompt{'s' * (len(parted) != 1)}"
        if same := count - len(parted):
            of += f"; {same} the same to the end"
        return f"first differs from {baseline} after {equal} of {length} {self.unit} ({of})"


def judge(own: Fingerprint, baseline: Fingerprint | None = None) -> list[str]:
    """What is broken about the answers, one line each; empty where nothing is, or nothing was asked.

    That answers differ from the baseline's is nothing broken: see `divergence`. Empty answers and loops count
    against the baseline's where there is one that was asked the same; noise counts wherever it is.
    """
    beside = baseline if baseline is not None and not _unlike(own, baseline) else None
    lines = []
    failures = [answer.failure for answer in own.answers if answer.failure]
    if failures:
        first = _printable(failures[0])
        lines.append(f"{len(failures)} of {len(own.answers)} prompts failed, the first with {first}")
    for kind in Flaw:
        lines += _too_many(kind, own, beside)
    if beside is not None:
        lines += _forgotten(own, beside)
    return lines


def flaw(answer: GreedyAnswer) -> Flaw | None:
    """What is wrong with an answer by itself; None where nothing is, or there is no answer to look at."""
    if not answer.known:
        return None
    said = answer.text.strip()
    if _one_throughout(answer.token_ids) or _one_throughout(said) or _not_text(said):
        return Flaw.NOISE
    if not said:
        return Flaw.EMPTY
    return Flaw.LOOP if _loops(answer) else None


def divergence(own: Fingerprint, baseline: Fingerprint) -> Divergence:
    """Where the answers to each prompt part: by token where both tell them throughout, else by character."""
    if why := _unlike(own, baseline):
        return Divergence((), "", why)
    pairs = [(a, b) for a, b in zip(own.answers, baseline.answers, strict=True) if a.known and b.known]
    if not pairs:
        return Divergence((), "", "no prompt was answered by both")
    by_token = all(a.token_ids and b.token_ids for a, b in pairs)
    partings = tuple(
        _parting(a, b, (a.token_ids, b.token_ids) if by_token else (a.text, b.text)) for a, b in pairs
    )
    return Divergence(partings, "tokens" if by_token else "characters")


def answered_right(own: Fingerprint) -> tuple[int, int]:
    """How many of the answers that can be right are, and of how many."""
    asked = [answer for answer in own.judged if _expected(answer)]
    return sum(_right(answer) for answer in asked), len(asked)


def lines(own: Fingerprint) -> list[str]:
    """What a report says of a run's answers by themselves."""
    if own.missing:
        return [f"fingerprint: none: {own.missing}"]
    known, cut = own.judged, [answer.cut for answer in own.answers if answer.cut]
    right, of = answered_right(own)
    said = f"fingerprint: {len(known)} of {len(own.answers)} greedy prompts answered"
    if of:
        said += f", {right} of {of} plain questions as expected"
    if cut:
        said += f"; {len(cut)} cut: {cut[0]}"
    return [said, *(f"fingerprint: broken? {line}" for line in judge(own))]


def _unlike(own: Fingerprint, other: Fingerprint) -> str:
    """Why two fingerprints cannot be compared; "" where they can."""
    for one in (own, other):
        if one.missing:
            return one.missing
    if own.version != other.version or len(own.answers) != len(other.answers):
        return f"other prompts (set {own.version} here, {other.version} there)"
    return "" if own.form == other.form else f"asked as {own.form} here, as {other.form} there"


def _too_many(kind: Flaw, own: Fingerprint, beside: Fingerprint | None) -> list[str]:
    found = [answer for answer in own.judged if flaw(answer) is kind]
    there = [answer for answer in beside.judged if flaw(answer) is kind] if beside is not None else []
    count = len(own.judged)
    # Noise is never healthy; what else there is may be how this model answers, which the baseline tells.
    alone = beside is None or kind is Flaw.NOISE
    least, counted = (_ALONE, len(found)) if alone else (_WORSE, len(found) - len(there))
    if not found or counted < max(2, least[kind] * count):
        return []
    compared = f" (of the baseline's: {len(there)})" if beside is not None else ""
    example = f": {_shown(found[0].text)}" if found[0].text.strip() else ""
    return [f"{len(found)} of {count} answers are {kind.value}{compared}{example}"]


def _forgotten(own: Fingerprint, beside: Fingerprint) -> list[str]:
    """Text that looks like any other and says nothing shows only by what the baseline knows."""
    pairs = zip(own.answers, beside.answers, strict=True)
    asked = [a for a, b in pairs if a.known and flaw(a) is None and _right(b) and (_right(a) or not a.cut)]
    kept = [answer for answer in asked if _right(answer)]
    if len(asked) < _KNOWN or len(kept) >= _KEPT * len(asked):
        return []
    wrong = next(answer for answer in asked if not _right(answer))
    example = f"{_shown(wrong.prompt)} → {_shown(wrong.text)}"
    return [f"{len(kept)} right of {len(asked)} plain questions that the baseline answers: {example}"]


def _expected(answer: GreedyAnswer) -> str:
    return next((prompt.expects for prompt in PROMPTS if prompt.text == answer.prompt), "")


def _right(answer: GreedyAnswer) -> bool:
    expects = _expected(answer)
    return answer.known and bool(expects) and re.search(expects, answer.text) is not None


def _one_throughout(said: Sequence[object]) -> bool:
    return len(said) >= _FEWEST and all(unit == said[0] for unit in said)


def _not_text(said: str) -> bool:
    return bool(said) and said.count(_REPLACEMENT) > _NO_TEXT * len(said)


def _loops(answer: GreedyAnswer) -> bool:
    """Whether the second half is one short piece again and again."""
    if answer.token_ids:
        return _periodic(answer.token_ids, _PERIOD_TOKENS)
    return _periodic(answer.text, _PERIOD_CHARACTERS)


def _periodic(said: Sequence[object], longest: int) -> bool:
    half = said[len(said) // 2 :]
    longest = min(longest, len(half) // _TURNS)
    return len(half) >= _FEWEST and any(half[period:] == half[:-period] for period in range(1, longest + 1))


def _parting(
    own: GreedyAnswer, other: GreedyAnswer, said: tuple[Sequence[object], Sequence[object]]
) -> Parting:
    shorter = min(map(len, said))
    equal = next((at for at in range(shorter) if said[0][at] != said[1][at]), shorter)
    cut = [len(units) for answer, units in zip((own, other), said, strict=True) if answer.cut]
    # What a cut answer would have gone on with is not known.
    length = min(cut) if cut and min(cut) == shorter else max(map(len, said))
    return Parting(own.prompt, equal, length, equal < length)


def _shown(text: str) -> str:
    """The beginning of a text on one line, without what a terminal would obey."""
    return f"'{_printable(text.strip()[:_SHOWN])}'" + "…" * (len(text.strip()) > _SHOWN)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)
