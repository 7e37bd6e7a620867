"""Parsing: command lines, numbers within bounds, times, dates and shares as users write them, typos."""

from __future__ import annotations

import argparse
import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Generic, NoReturn, TypeVar

from loadgen.base.clock import SECOND_NS
from loadgen.base.errors import UsageError
from loadgen.base.text import quote_value

MOST_TOKENS = 20_000_000  # of a prompt or an answer
MOST_REQUESTS = 100_000_000
MOST_STREAMS = 1_000_000
MOST_TURNS = 10_000  # of one conversation that is made here
MOST_SECONDS = 1e9  # 31 years
YEAR_S = 31_536_000.0
MOST_GB_PER_S = 1e9  # of a memory's bandwidth
MOST_IDS = 10_000_000  # of a vocabulary
MOST_GPUS = 1_000_000  # that a server runs on
MOST_INT = 2**31 - 1  # of a sampling parameter
MOST_SEED = 2**63 - 1
LEAST_RATE_PER_S = 1e-9  # one request in 31 years; far below, the arithmetic overflows
MOST_RATE_PER_S = 1e9  # times are whole nanoseconds
NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,12})?"  # as a text of a schedule, or of a time, writes it
TIME = rf"{NUMBER}\s*(?:ms|s|m|h)"
_NAIVE_EPOCH = datetime(1970, 1, 1)
_EPOCH = _NAIVE_EPOCH.replace(tzinfo=UTC)
_MOST_S = 9_214_646_400  # the begin of 2262: nanoseconds until then fit into 63 bits
_US_LETTERS = len("1970-01-01T00:00:00.000000")
_BELOW_US = re.compile(r"[.,]\d{6}(\d{1,3})")  # of a fraction
_NGINX = "%d/%b/%Y:%H:%M:%S%z"
_FIRST_NS = 631_152_000 * SECOND_NS  # 1990: a lower number is of another unit, or of a clock since boot
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TIME = re.compile(rf"({NUMBER})\s*(ms|s|m|h)", re.ASCII)
_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(%?)", re.ASCII)
_FLAG = re.compile("--?[A-Za-z]")
_LONGEST_MESSAGE = 300  # of argparse, which quotes a value whole
_ALIKE = 0.75  # by difflib, of a misspelt word and the one that is meant
_SHORTEST_BEGINNING = 4  # letters of a name that stand for the whole
_SHORTEST_WORD = 3  # letters of a word in it
# Names of ours, and the words of other clients and of habit for them, with dashes.
_SYNONYMS = {
    "backend": "endpoint-type api",
    "base-url": "url uri target server address host",
    "duration": "max-seconds benchmark-duration seconds",
    "explain": "verbose debug",
    "extra-body": "extra extra-inputs",
    "hardware": "gpu",
    "header": "headers",
    "max-concurrency": "concurrency concurrent conc users vus",
    "max-duration": "max-duration-s",
    "model": "model-name",
    "num-prompts": "n prompts requests num-requests request-count max-requests",
    "num-warmups": "warmups warmup-requests num-warmup-requests",
    "quiet": "silent disable-progress",
    "random-input-len": "isl input-tokens",
    "random-output-len": "osl output-tokens max-tokens",
    "request-rate": "rate rps qps",
    "request-timeout": "timeout",
    "result-dir": "output-dir",
    "result-filename": "output-file",
    "run-dir": "artifact-dir",
    "seconds": "duration benchmark-duration max-seconds",  # of a self-test
    "seed": "random-seed",
    "streams": "max-concurrency concurrency",
}
T = TypeVar("T")
_ALIKE_IN_MEANING = 0.9  # one slip in a word of ten letters
_MEANINGS: dict[str, list[str]] = {}
for _name, _words in _SYNONYMS.items():
    for _word in _words.split():
        _MEANINGS.setdefault(_word, []).append(_name)
_LONGEST_NUMBER = 40  # characters
_MOST, _LEAST = 1e15, 1e-15  # of any figure's magnitude: far beyond them nothing can be computed with it
N = TypeVar("N", int, float)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UsageError, where argparse prints to standard error and exits."""

    help_flag = "--help"  # that lists all flags

    def error(self, message: str) -> NoReturn:
        shown = message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"
        raise UsageError(f"{shown}; {self.prog} {self.help_flag} lists the flags")


def parse_arguments(
    parser: argparse.ArgumentParser,
    argv: Sequence[str],
    intermixed: bool = False,
    explain: Callable[[str], str | None] = lambda flag: None,
    page: str = "",
) -> argparse.Namespace:
    """Parse a command line; positional arguments may stand between flags if `intermixed`.

    Raises UsageError for an unexpected argument, and for all unknown flags with what `explain` returns for
    each, else with the nearest known flag and the `page` that has other clients' flags.
    """
    parse = parser.parse_known_intermixed_args if intermixed else parser.parse_known_args
    given, unknown = parse(list(argv))
    if not unknown:
        return given
    every = f"{parser.prog} {getattr(parser, 'help_flag', '--help')} lists the flags"
    if not _FLAG.match(unknown[0]):
        raise UsageError(f"unexpected argument {unknown[0]!r}; {every}")
    flags = list(dict.fromkeys(word.split("=", 1)[0] for word in unknown if _FLAG.match(word)))
    known = [option for action in parser._actions for option in action.option_strings]
    explained = {flag: explain(flag) for flag in flags}
    lines = [why or f"unknown flag {flag}{suggest_name(flag, known)}" for flag, why in explained.items()]
    listed = f"{every}, {page} those of other clients" if page else every
    more = [listed] if None in explained.values() else []
    if len(flags) == 1:
        raise UsageError("; ".join([*lines, *more]))
    raise UsageError("\n  ".join([f"{len(flags)} flags are not taken:", *lines, *more]))


def suggest_name(word: str, names: Collection[str]) -> str:
    """Make a hint for a misspelt word: `, did you mean 'x'?` with the nearest name, "" if none is near."""
    name = find_nearest(word, names)
    return f", did you mean {name!r}?" if name else ""


def find_nearest(word: str, names: Collection[str]) -> str | None:
    """Find the known name that a misspelt word most likely means; None if there is none.

    Tried in turn: the same meaning, the same words in another order, the most alike by difflib, the only name
    that begins so.
    """
    stem = _normalize_name(word)
    stems = {_normalize_name(name): name for name in reversed(list(names))}
    same = [stem, *_MEANINGS.get(stem, ())]
    same += [one.removeprefix("random-") for one in same]
    if (known := next((stems[one] for one in same if one in stems), None)) is not None:
        return known
    if (known := next((name for one, name in stems.items() if _has_same_words(stem, one)), None)) is not None:
        return known
    alike = [one for one in stems if one[:1] == stem[:1]]  # few slips are in the first letter
    if close := difflib.get_close_matches(stem, alike, 1, _ALIKE):
        return stems[close[0]]
    meant = {word: stems[one] for word, ones in _MEANINGS.items() for one in ones if one in stems}
    if close := difflib.get_close_matches(stem, meant, 1, _ALIKE_IN_MEANING):
        return meant[close[0]]
    begins = stem if len(stem) >= _SHORTEST_BEGINNING else f"{stem}-"
    begun = [name for one, name in stems.items() if one.startswith(begins)]
    return begun[0] if len(begun) == 1 else None


def _normalize_name(name: str) -> str:
    return name.lstrip("-").replace("_", "-").casefold()


def _has_same_words(one: str, other: str) -> bool:
    """Whether two dashed names have the same words in any order, or as many words, each a beginning.

    A beginning, of the other name's word in that place, has three letters or more; a single word has none.
    """
    words, others = one.split("-"), other.split("-")
    if sorted(words) == sorted(others):
        return True
    pairs = [sorted(pair, key=len) for pair in zip(words, others, strict=False)]
    begun = all(len(short) >= _SHORTEST_WORD and long.startswith(short) for short, long in pairs)
    return begun and len(words) == len(others) > 1


def parse_with(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Make an argparse type of a parser function: its ValueError becomes the flag's error message."""

    def parse_flag(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_flag


def read_figure(value: object) -> float | None:
    """Read a number that a figure can be: 0 or ±1e-15 to ±1e15; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if value == 0 or _LEAST <= abs(value) <= _MOST else None


class Bounded(Generic[N]):
    """An argparse type: a number from `least` to `most`; calling it parses, or raises ArgumentTypeError."""

    def __init__(self, kind: Callable[[str], N], least: N, most: N, what: str, span: str) -> None:
        self.kind: Callable[[str], N] = kind
        self.least: N = least
        self.most: N = most
        self.what, self.span = what, span  # as messages name them

    def __call__(self, text: str) -> N:
        try:
            value = self.kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{quote_value(text)} is not {self.what}") from None
        if not self.least <= value <= self.most:  # false for NaN too
            raise argparse.ArgumentTypeError(f"{quote_value(text)}: give {self.what} from {self.span}")
        return value


def integer_between(least: int, most: int) -> Bounded[int]:
    """Make an argparse type that parses an integer from `least` to `most`."""

    def read(text: str) -> int:
        return int(text) if len(text) <= _LONGEST_NUMBER else most + 1

    return Bounded(read, least, most, "a whole number", f"{least} to {most}")


def number_between(least: float, most: float) -> Bounded[float]:
    """Make an argparse type that parses a number from `least` to `most`; never NaN."""
    return Bounded(float, least, most, "a number", f"{least:g} to {most:.12g}")


def parse_seconds(text: str) -> float:
    """Parse a time such as `60s`, `2m`, `1.5h` or `500ms`, in seconds; raises ValueError for any other."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        example = f"{text.strip()}s" if _TIME.fullmatch(f"{text.strip()}s") else "60s"
        raise ValueError(f"{quote_value(text)} is not a time: write it as {example}; units ms, s, m, h")
    return float(match[1]) * _UNITS_S[match[2]]


def parse_share(text: str, least: float, most: float = 1.0) -> float:
    """Parse a share such as `5%` or `0.05` as 0.05; raises ValueError if it is not in [least, most]."""
    match = _SHARE.fullmatch(text.strip())
    part = float(match[1]) / (100 if match[2] else 1) if match else math.nan
    if not least <= part <= most:
        raise ValueError(
            f"{quote_value(text)} is not a share from {100 * least:g}% to {100 * most:g}%: write 5% or 0.05"
        )
    return part


def parse_metadata(pairs: Iterable[str]) -> dict[str, str]:
    """Parse pairs of `--metadata KEY=VALUE`, stripped, the last of a key; raises UsageError without a `=`."""
    metadata: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--metadata {pair}: write KEY=VALUE")
        metadata[key.strip()] = value.strip()
    return metadata


def refuse_blank(form: str) -> Callable[[str], str]:
    """Make an argparse type that refuses a blank text (an unset variable); `form` names what to write."""

    def check_text(value: str) -> str:
        if not value.strip():
            raise argparse.ArgumentTypeError(f"is empty: write {form}, or leave the flag out")
        return value

    return check_text


def parse_instant_ns(text: str) -> int:
    """Parse a date with time, of ISO 8601 or as nginx writes it, to nanoseconds since 1970.

    One without a zone is UTC. Raises ValueError for a text that is none from 1970 to 2261.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = _parse_other(text)
    after = at - (_EPOCH if at.tzinfo else _NAIVE_EPOCH)
    whole_s = after.days * 86_400 + after.seconds
    if not 0 <= whole_s < _MOST_S or not (":" in text or "T" in text):
        raise _make_refusal(text)
    below = _BELOW_US.search(text) if len(text) > _US_LETTERS else None
    below_ns = int(below[1].ljust(3, "0")) if below else 0
    return whole_s * SECOND_NS + after.microseconds * 1000 + below_ns


@lru_cache(4096)  # many lines of a log are of one second
def _parse_other(text: str) -> datetime:
    """Parse a date as nginx writes it, or of ISO 8601 with blanks or UTC at its end; raises ValueError."""
    plain = text.strip().removesuffix("UTC").rstrip().replace(" +", "+").replace(" -", "-")
    try:
        return datetime.fromisoformat(plain)
    except ValueError:
        try:
            return datetime.strptime(plain, _NGINX)
        except ValueError:
            raise _make_refusal(text) from None


def _make_refusal(text: str) -> ValueError:
    return ValueError(f"{quote_value(text)} is not a date and time from 1970 to 2261")


def check_epoch_ns(value: int) -> int:
    """Return nanoseconds since 1970 as they are; raises ValueError for those before 1990 or after 2261."""
    if not _FIRST_NS <= value < 2**63:
        raise ValueError(f"{quote_value(value)} is not a time in nanoseconds since 1970")
    return value
