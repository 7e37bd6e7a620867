"""Quality text: the text that is scored, whole or in segments, and that prompts are cut from.

The default was written for this project: stories, letters, a recipe and facts in English, German, French,
Spanish, Chinese, Japanese and Russian; a proof, sums, Python, C, SQL and JSON.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.base import untrusted
from loadgen.base.errors import UsageError

_FILE = Path(__file__).with_name("quality_text.txt")
_FEWEST, _MOST = 2000, 16 << 20  # bytes
_SEGMENT_CHARACTERS = 500
_PROMPT_CHARACTERS = 240
TOKENS, ANSWER_TOKENS = 20_000, 16  # of all answers, and of one: many prompts find what few of them break
PROMPT_TOKENS = 48  # of a prompt, at most: a text of one token a character has many more
_STEP = (math.sqrt(5) - 1) / 2  # of the golden ratio: however many prompts there are, they spread evenly
_WORD = re.compile(r"(?:^|(?<=\s))\S")  # its first character
_LONGEST_WORD = 40  # characters; a text with fewer blanks has no words


class QualityPlan(msgspec.Struct, frozen=True, dict=True):
    """What is to be measured: on which text, with how many tokens, and until which precision."""

    text: str
    tokens: int = TOKENS  # of all answers
    answer_tokens: int = ANSWER_TOKENS  # of an answer, at most
    precision: float | None = None  # half of KL's interval (nats a token), at which to stop
    chat: bool = False  # the prompts are users' messages

    @property
    def text_digest(self) -> str:
        """The SHA-256 of the text, in hex."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def list_settings(self) -> dict[str, int | bool | float | str]:
        """List what decides the distribution of answers, for a reference file: equal files can be joined."""
        return {
            "answer_tokens": self.answer_tokens, "prompt_tokens": PROMPT_TOKENS, "chat": self.chat,
            "temperature": 1.0, "top_p": 1.0, "top_k": "off", "min_p": 0.0, "penalties": "off",
        }  # fmt: skip

    def follow_settings(self, settings: Mapping[str, Any]) -> QualityPlan:
        """Return the plan with a reference file's `answer_tokens`, else its own, and `chat`, else False."""
        tokens = untrusted.read_count(settings.get("answer_tokens"))
        return replace(self, answer_tokens=tokens or self.answer_tokens, chat=settings.get("chat") is True)

    def cut_segments(self) -> list[str]:
        """Cut the text into segments of 500 characters at most, at line ends or blanks, without those."""
        segments, rest = [], self.text.strip()
        while rest:
            end = len(rest)
            if end > _SEGMENT_CHARACTERS:
                found = max(rest.rfind(blank, 1, _SEGMENT_CHARACTERS) for blank in "\n ")
                end = found if found > 0 else _SEGMENT_CHARACTERS
            segments.append(rest[:end].rstrip())
            rest = rest[end:].lstrip()
        return segments

    def list_prompts(self) -> Iterator[str]:
        """Yield as many prompts as are enough if no answer ends early."""
        return map(self.cut_prompt, range(-(-self.tokens // self.answer_tokens)))

    def cut_prompt(self, number: int) -> str:
        """Cut prompt `number`, from 0: 240 characters from a word on, evenly spread, no two alike."""
        begins, stride = self._beginnings
        lap, at = divmod(number, len(begins))
        begin = begins[at * stride % len(begins)] + lap
        return self.text[begin : begin + _PROMPT_CHARACTERS].strip() or self.text[:_PROMPT_CHARACTERS]

    @cached_property
    def _beginnings(self) -> tuple[Sequence[int], int]:
        """Where a prompt may begin, and how far the next is: a stride that comes to each of them once."""
        most = max(len(self.text) - _PROMPT_CHARACTERS, 1)
        words = [found.start() for found in _WORD.finditer(self.text, 0, most)]
        begins: Sequence[int] = words if len(words) >= most / _LONGEST_WORD else range(most)
        near = max(round(len(begins) * _STEP), 1)
        return begins, next(stride for stride in count(near) if math.gcd(stride, len(begins)) == 1)


class TokenizedText(msgspec.Struct, frozen=True):
    """A text's segments as token ids, each after a line end, and how many bytes of each have a score."""

    segments: tuple[tuple[int, ...], ...]
    scored_bytes: tuple[int, ...]

    def take_ids(self, other: TokenizedText) -> TokenizedText | None:
        """Return the other's ids with its byte counts, else these; None if more than a first id differs."""
        pairs = zip(self.segments, other.segments, strict=False)
        same = all(theirs in (own, own[1:]) or own == theirs[1:] for own, theirs in pairs)
        if not same or len(other.segments) != len(self.segments):
            return None
        return TokenizedText(other.segments, other.scored_bytes or self.scored_bytes)


def read_text(path: Path | None = None) -> str:
    """Read a text of 2,000 bytes to 16 MiB, by default the one that is shipped.

    Raises UsageError where it cannot be read, is not UTF-8, is blank, or is of another size.
    """
    try:
        with untrusted.open_regular(path or _FILE) as file:
            data = file.read(_MOST + 1)
        text = data.decode()
    except OSError as error:
        raise UsageError(f"--text {path}: {error.strerror or error}: name a file of text") from None
    except UnicodeDecodeError:
        raise UsageError(f"--text {path} is not UTF-8: convert the file to it") from None
    if not text.strip():
        raise UsageError(f"--text {path} has nothing but blanks: name a file of text")
    if not _FEWEST <= len(data) <= _MOST:
        raise UsageError(f"--text {path} has {len(data):,} bytes: give {_FEWEST:,} to {_MOST:,}")
    return text
