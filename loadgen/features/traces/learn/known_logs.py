"""vLLM's log: the lines of its request logger (`--enable-log-requests`), as versions 0.2 to 0.32 write them.

One line has the prompt and the parameters up to 0.11; since then a line of DEBUG has the prompt and one of
INFO the parameters. How an answer ended is there with `--enable-log-outputs`, and where a client went away.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Annotated, TypeVar

import msgspec

from loadgen.base import parsing
from loadgen.base.clock import SECOND_NS
from loadgen.features.traces.learn.calls import (
    UNKNOWN,
    Call,
    CallEnd,
    Found,
    Rows,
    SkippedRow,
    ValueFault,
    read_number,
    read_time_ns,
)
from loadgen.features.traces.learn.log_file import LogFile
from loadgen.settings.request_settings import SAMPLING

_DATED = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:\d\d)?) ")
_STAMPED = re.compile(r"\b(?:INFO|DEBUG) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")
_RECEIVED = re.compile(r"\] Received request ([^\s:]+): ")
_DETAILS = re.compile(r"\] Request ([^\s:]+) details: prompt: ")
_ANSWERED = re.compile(
    r"\] Generated response (\S+?)(?: \((streaming \w+)\))?( details)?: output(?:_token_ids)?"
)
_NO_ANSWER = "no request for an answer"
_NO_PROMPT = "without a prompt: log it by VLLM_LOGGING_LEVEL=DEBUG"
_DELTA = "streaming delta"
_MARKS = ("Received request ", " details: prompt", "Generated response ", "borted")
_ABORTED = re.compile(r"\] (?:Aborted request(?:\(s\))? (\S+?)\.?|Request (\S+) aborted\.)$")
_PARAMS = re.compile(r"(?:^|, |\d\] )(?:sampling_)?params: SamplingParams\(")
_NUMBER = re.compile(rf"\b({'|'.join((*SAMPLING, 'max_tokens'))})=(-?\d[\d.e+-]*)(?=[,)])")
_DECODE_IDS = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=0, lt=2**31)]]).decode
_IDS = re.compile(r"(?:^|token_ids: )\[([\d, ]*)\]")
_FINISHED = re.compile(r", finish_reason: (\w+)$")
_LITERAL = re.compile(r"""'(?:[^'\\]++|\\.)*+'|"(?:[^"\\]++|\\.)*+\"""")
# Days before each month of a common year: the log's dates have no year, and a leap year's name 29 February.
_MONTHS = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_MARCH, _LEAP_DAY = 3, (2, 29)
_DAY_NS = 86_400 * SECOND_NS
_YEAR_NS = 365 * _DAY_NS
_MOST_KEPT = 1 << 16  # calls of which something is kept for a later line
T = TypeVar("T")


def is_vllm(lines: list[str]) -> bool:
    """Whether a line among the first ones of a log is of vLLM's logger."""
    return any(_STAMPED.search(line) and re.search(r"\.py:\d+\]", line) for line in lines)


def read_vllm(log: LogFile) -> Rows:
    """Yield the calls of a log, and their ends where it has them; raises UsageError that names the line."""
    reader = _LineReader()
    for row, line in log.read_lines():
        if any(mark in line for mark in _MARKS):
            try:
                yield from ((row, found) for found in reader.read(line))
            except ValueFault as fault:
                raise log.refusal(str(fault), row) from None


class _LineReader:
    """Reads line by line, and keeps what one line has for another: prompts, and the tokens of streams."""

    def __init__(self) -> None:
        self._clock = _LineClock()
        self._details: dict[str, tuple[str | None, list[int] | None]] = {}
        self._deltas: dict[str, int] = {}  # messages of each stream
        self._tokens: dict[str, int] = {}  # where their ids are logged

    def read(self, line: str) -> Iterator[Found]:
        """Yield what is in a line; raises ValueFault for one that is cut."""
        at_ns = self._clock.read_ns(line)
        if at_ns is None:
            return
        if found := _RECEIVED.search(line):
            yield _read_call(found[1], line[found.end() :], at_ns, self._details)
        elif found := _DETAILS.search(line):
            text, rest = _split_literal(line[found.end() :])
            _keep(self._details, found[1], (text, _read_ids(rest)))
        elif found := _ABORTED.search(line):
            for name in (found[1] or found[2]).split(","):
                streamed = self._take_streamed(name, name.rpartition("-")[0])
                yield CallEnd(name=name, end_ns=at_ns, output_len=streamed, cancelled=True)
        elif found := _ANSWERED.search(line):
            yield from self._read_answer(found, line[found.end() :], at_ns)

    def _read_answer(self, found: re.Match[str], rest: str, at_ns: int) -> Iterator[CallEnd]:
        """Yield the end of a call by the line of its answer; a message of a stream alone is counted."""
        name, stream, details = found.groups()
        answer, rest = _split_literal(rest.removeprefix(": ")) if rest.startswith(": ") else (None, rest)
        ids = _read_ids(rest)
        if stream == _DELTA:
            counted, more = (self._tokens, len(ids or ())) if details else (self._deltas, 1)
            if more:
                _keep(counted, name, counted.get(name, 0) + more)
            return
        if details and ids is None:
            return  # the next line has its text
        streamed = self._take_streamed(name)
        finished = _FINISHED.search(rest)
        yield CallEnd(
            name=name,
            end_ns=at_ns,
            output_len=len(ids) if ids is not None else streamed,
            answer=answer,
            cancelled=finished is not None and finished[1] == "abort",
            at_limit=finished is not None and finished[1] == "length",
        )

    def _take_streamed(self, *names: str) -> int:
        """Return the tokens of a stream's messages, and forget them; UNKNOWN if none were logged."""
        streamed = [counted.pop(name, UNKNOWN) for name in names for counted in (self._tokens, self._deltas)]
        return next((count for count in streamed if count != UNKNOWN), UNKNOWN)


def _keep(kept: dict[str, T], name: str, value: T) -> None:
    """Keep a value under a name, the last one, of the latest 65,536 at most."""
    kept.pop(name, None)
    kept[name] = value
    if len(kept) > _MOST_KEPT:
        del kept[next(iter(kept))]


class _LineClock:
    """Reads the time of lines: that of the container's log before them, else vLLM's own, of whole seconds."""

    def __init__(self) -> None:
        self._years_ns, self._last_ns, self._leap_ns = 0, 0, 0

    def read_ns(self, line: str) -> int | None:
        """Read a line's time in nanoseconds; None of a line that has none, as one of a text's own lines."""
        if found := _DATED.match(line):
            return read_time_ns(found[1].replace(",", "."))
        found = _STAMPED.search(line, 0, 400)
        if found is None:
            return None
        month, day, hour, minute, second = map(int, found.groups())
        if not 1 <= month <= 12:
            return None
        days = _MONTHS[month - 1] + day - 1
        at_ns = (((days * 24 + hour) * 60 + minute) * 60 + second) * SECOND_NS + self._years_ns
        if at_ns < self._last_ns - _YEAR_NS // 2:
            self._years_ns += _YEAR_NS + self._leap_ns
            at_ns += _YEAR_NS + self._leap_ns
            self._leap_ns = 0
        if (month, day) == _LEAP_DAY:
            self._leap_ns = _DAY_NS
        at_ns += self._leap_ns if month >= _MARCH else 0
        self._last_ns = at_ns
        return at_ns


def _read_call(
    name: str, rest: str, at_ns: int, details: dict[str, tuple[str | None, list[int] | None]]
) -> Call | SkippedRow:
    """Read the line of a request that came, with the prompt of the line before it where that has it."""
    text, ids = details.pop(name, (None, None))
    is_whole = rest.startswith("prompt: ")
    if is_whole:
        text, rest = _split_literal(rest.removeprefix("prompt: "))
    head, mark, after = rest.rpartition(", prompt_token_ids: ")
    if is_whole:
        ids = _read_ids(f"{mark}{after}")
    rest = _LITERAL.sub("''", head or rest)  # stop strings and schemas, which may hold anything
    begin = _PARAMS.search(rest)
    if begin is None:
        return SkippedRow(_NO_ANSWER)
    if text is None and ids is None:
        return SkippedRow(_NO_PROMPT)
    numbers = dict(_NUMBER.findall(rest, begin.end()))
    limit = numbers.pop("max_tokens", "")
    return Call(
        begin_ns=at_ns,
        ids=ids,
        text=None if ids is not None else text,
        output_limit=min(int(limit), parsing.MOST_TOKENS) if limit.isdigit() else UNKNOWN,
        sampling={key: read_number(value) for key, value in numbers.items()},
        name=name,
    )


def _split_literal(text: str) -> tuple[str | None, str]:
    """Split the literal of a Python text off the begin of another; None where it is None."""
    if text[:1] not in ("'", '"'):
        return None, text
    found = _LITERAL.match(text)
    if found is None:
        raise ValueFault("a prompt does not end: is the line cut?")
    try:
        return str(ast.literal_eval(found[0])), text[found.end() :]
    except (ValueError, SyntaxError):
        raise ValueFault("a prompt is no text of Python: is the line cut?") from None


def _read_ids(text: str) -> list[int] | None:
    """Read the token ids of a prompt or an answer; None where they are not in the line, or an empty list."""
    found = _IDS.search(text)
    if found is None or not found[1]:
        return None
    try:
        return _DECODE_IDS(f"[{found[1]}]")
    except msgspec.ValidationError:
        raise ValueFault("has a token id of more than 32 bits") from None
    except msgspec.DecodeError:
        raise ValueFault("has token ids that are no numbers: is the line cut?") from None
