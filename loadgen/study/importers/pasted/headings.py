"""Headings: the titles above a line of a page, and the checkpoint, storage and load that a title names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import takewhile

import msgspec

from loadgen.features.roofline import models
from loadgen.study import labels
from loadgen.study.run_summary import shorten_name

_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^)]{0,300}\)")
_TAG = re.compile(r"<[^<>]+>")
BOLD_LEVEL, ITEM_LEVEL = 20, 30


class PageLine(msgspec.Struct, frozen=True):
    """One line of a page: `level` is 0 of text, a heading's depth from 1 on, an item's from 30 on."""

    text: str
    level: int = 0

    @property
    def is_heading(self) -> bool:
        """Whether it is a heading: neither text nor an item of a list."""
        return 0 < self.level < ITEM_LEVEL


class Subject(msgspec.Struct, frozen=True):
    """The parts that the headings above a place name; "" for a part that they do not."""

    name: str = ""
    model: str = ""  # the checkpoint, where one is recognized
    load: str = ""
    quantization: str = ""  # of headings that name no checkpoint
    heading: str = ""  # the nearest, where none names anything


class Outline:
    """The headings above where a page is read."""

    def __init__(self) -> None:
        self._open: list[_Heading] = []

    def enter(self, line: PageLine) -> bool:
        """Open the heading of the next line of a page, after closing those that end there; whether it names.

        One that names a model and one that names a load stand side by side at one level.
        """
        name = strip_marks(line.text)
        title = parse_title(name)
        is_name = title.name != "" and (line.is_heading or (title.exact and title.model != ""))
        kept = list[_Heading]()
        for own in self._open:
            closes = own.is_name is is_name if own.level >= BOLD_LEVEL else is_name or not own.title.model
            if own.level == line.level and closes:
                break
            kept += [own] if own.level <= line.level else []
        self._open = [*kept, _Heading(line.level, name, title, is_name)]
        return bool(title.name or title.quantization or title.exact)

    @property
    def names(self) -> list[str]:
        """The headings themselves, the nearest first."""
        return [own.name for own in reversed(self._open)]

    @property
    def subject(self) -> Subject:
        """The nearest heading that names something, with its load, and how its weights are stored.

        The load is of that heading and those below it, else of the nearest above it.
        """
        at = max((at for at, own in enumerate(self._open) if own.is_name), default=-1)
        titles = [own.title for own in self._open]
        stored = next((title.quantization for title in reversed(titles) if title.quantization), "")
        loads = [title.load for title in titles[max(at, 0) :] if title.load]
        loads = loads or [title.load for title in reversed(titles[: max(at, 0)]) if title.load][:1]
        if at < 0:
            others = (
                own.name for own in reversed(self._open) if own.level < ITEM_LEVEL and not own.title.exact
            )
            return Subject(quantization=stored, load=", ".join(loads), heading=next(others, ""))
        name, model = titles[at].name, titles[at].model and add_storage(titles[at].model, stored)
        if model != titles[at].model or (stored and not model):
            name = model if titles[at].exact else f"{name}, {stored}"
        return Subject(name, model, load=", ".join(loads))


def strip_marks(marked: str) -> str:
    """Return a title without the marks of links, tags and emphasis, and without a colon at its end."""
    text = _TAG.sub("", _LINK.sub(r"\1", marked))
    return re.sub(r"(\*\*|__|``?|(?<!\w)[*_]|[*_](?!\w))", "", text).strip().rstrip(":").strip()


_LONGEST_TITLE = 200  # characters of a title that is taken apart; a longer one is a name as it stands
_MOST_WORDS = 5  # of a model's name that is written with blanks: Llama 3.1 8B Instruct
_MOST_KEPT = 4096  # titles that are not taken apart twice
_MOST_TRIED = 12  # words of a title that a model's name may begin at
# What separates the parts of a title: brackets, a comma, a dash between blanks.
_BETWEEN = re.compile(r"[()\[\]{}|·•;—]|,(?=\s|$)|:(?=\s+\D|$)|(?:^|\s)[-–/@](?=\s|$)")
_AT_ONCE = re.compile(
    r"\b(?:(?:max(?:imum)?[ -])?concurrency|conc|batch(?:[ -]size)?|bs|c)\s{0,2}[=:]?\s{0,2}(\d{1,6})\b"
    r"|\b(\d{1,6})[ -](?:concurrent|users?|clients?|streams?|parallel|at (?:a time|once))\b",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"[^\W\d_]+|\d+")
_SIZED = re.compile(r"\S*[A-Za-z]\S*?\d(?:\.\d+)?[BM]\b\S*", re.IGNORECASE)
# Words that tell one load from another; and those that do so together with a number.
_TELLING = frozenset({
    "burst", "concurrency", "concurrent", "full", "heavy", "high", "idle", "inf", "infinite", "light",
    "load", "loads", "long", "low", "max", "maximum", "medium", "mid", "min", "moderate", "peak", "qps",
    "rps", "saturated", "saturation", "short", "single", "stress", "sustained",
})  # fmt: skip
_COUNTED = frozenset({
    "batch", "bs", "c", "clients", "conc", "in", "input", "k", "length", "lengths", "out", "output",
    "parallel", "prompt", "prompts", "qps", "rate", "req", "reqs", "request", "requests", "rps",
    "stream", "streams", "time", "tok", "tokens", "user", "users", "x",
})  # fmt: skip
# A title of only such words and numbers describes the load, or what follows; it names no model.
_LOAD_WORDS = _TELLING | _COUNTED | frozenset({
    "a", "and", "at", "by", "for", "from", "in", "of", "on", "the", "under", "with",
    "benchmark", "benchmarking", "benchmarks", "case", "client", "cpu", "gpu", "latency", "level", "mode",
    "once", "online", "optimized", "per", "performance", "query", "result", "results", "run", "running", "s",
    "scenario", "second", "seconds", "serving", "sglang", "size", "speed", "test", "testing", "tests",
    "throughput", "traffic", "vllm", "workload",
})  # fmt: skip
_ABOUT_STORING = frozenset({
    "dtype", "precision", "quant", "quantization", "quantized", "weight", "weights",
})  # fmt: skip
_AS_TRAINED = frozenset({"BF16"})  # which is no part of a name
_OF_THE_CACHE = frozenset({
    "activation", "activations", "attention", "cache", "kv", "kvcache", "kv-cache",
})  # fmt: skip


class Title(msgspec.Struct, frozen=True):
    """The parts that a heading names; "" for a part that it does not."""

    name: str = ""  # as it is written, without the load and how the weights are stored where that is apart
    model: str = ""  # the checkpoint that is recognized in it: Qwen3-8B-FP8
    quantization: str = ""  # of a title that is nothing else: FP8, AWQ
    load: str = ""
    exact: bool = False  # there is nothing in it but a checkpoint and a load


class _Heading(msgspec.Struct, frozen=True):
    level: int
    name: str
    title: Title
    is_name: bool  # of what stands below it: an item is one where it is a model's name


@lru_cache(_MOST_KEPT)
def parse_title(text: str) -> Title:
    """Parse the parts of a title; a title of which nothing is recognized is a name as it stands.

    `Qwen3-8B-FP4 (high)`, `Low load: Qwen3-8B FP4` and `Qwen3-8B-FP4 – 8 users` have a name and a load; a
    run's number, as `Run 2`, names nothing. Where several models are named it belongs to no single one.
    """
    plain = " ".join(text.split())
    if len(plain) > _LONGEST_TITLE:
        return Title(name=plain)
    if plain and not labels.strip_run(plain):
        return Title()
    names, found, loads, stored = list[str](), list[str](), list[str](), ""
    for words in filter(None, map(str.split, _BETWEEN.split(plain))):
        at, end, model = _find_model(words)
        others = [*words[:at], *words[end:]]
        if model and (_find_model(others)[2] or (_is_of_weights(words) and any(map(_is_storage, others)))):
            return Title(name=plain)
        if model:
            found.append(model)
            names.append(" ".join((*words[:at], model, *words[end:])))
        elif all(map(_is_storage, words)):
            stored = stored or _join_words([word for word in words if word.lower() not in _ABOUT_STORING])
        elif all(word in _LOAD_WORDS or word.isdecimal() for word in _TOKEN.findall(" ".join(words).lower())):
            loads += [" ".join(words)] if _is_telling(words) else []
        else:
            names.append(" ".join(words))
    name, load = ", ".join(names), ", ".join(loads)
    if len({*found}) > 1:
        return Title(name=plain)
    if found:
        model, exact = add_storage(found[0], stored), {*names} == {found[0]}
        return Title(model if exact else name, model, load=load, exact=exact)
    # Without a model that is recognized its load stands apart, or it has none.
    if not names:
        return Title(quantization=stored, load=load if stored else plain if load else "", exact=bool(load))
    if not load and not stored:
        return Title(name=plain)
    return Title(name=add_storage(name, stored) if " " not in name else f"{name} {stored}".strip(), load=load)


def find_concurrency(load: str) -> int | None:
    """Find the requests at once in a load's words: `high (c=8)`, `8 users`, `batch size 1`; else None."""
    match = _AT_ONCE.search(load[:_LONGEST_TITLE])
    return None if match is None else int(match[1] or match[2])


def add_storage(model: str, quantization: str) -> str:
    """Return a name with a quantization appended, unless it has one or that is BF16; GGUF gets its kind."""
    if not model or quantization.upper() in _AS_TRAINED:
        return model or quantization
    stored = models.find_suffix(model).upper()
    apart = not stored or (stored == "GGUF" and quantization.upper() != stored)
    return f"{model}-{quantization}" if quantization and apart else model


def _is_telling(words: Sequence[str]) -> bool:
    """Whether words of a load distinguish it from another load, by themselves or with a number."""
    tokens = _TOKEN.findall(" ".join(words).lower())
    return not _TELLING.isdisjoint(tokens) or (
        not _COUNTED.isdisjoint(tokens) and any(token.isdecimal() for token in tokens)
    )


def _is_of_weights(words: Iterable[str]) -> bool:
    """Whether a type among words is of weights, as it is without a word of the KV cache or attention."""
    return _OF_THE_CACHE.isdisjoint(map(str.lower, words))


def _find_model(words: Sequence[str]) -> tuple[int, int, str]:
    """Return begin, end and text of a model's name in a part's words, with its storage; 0, 0, "" without."""
    tried = 0
    for at, word in enumerate(words):
        own = word.strip("`'\"*")
        is_sized = _SIZED.fullmatch(own) is not None
        if not is_sized and own.rpartition("/")[2].partition("-")[0].lower() not in _list_first_words():
            continue
        tried += 1
        ends = range(min(len(words), at + _MOST_WORDS), at, -1) if tried <= _MOST_TRIED else ()
        for end in (
            end for end in ends if end == at + 1 or _is_of_weights(words) or not _is_storage(words[end - 1])
        ):
            if models.find_model(joined := _join_words(words[at:end])) is not None:
                return at, end, shorten_name(joined)
        if is_sized:
            stored = [*takewhile(_is_storage, words[at + 1 :])] if _is_of_weights(words) else []
            return at, at + 1 + len(stored), shorten_name(_join_words([own, *stored]))
    return 0, 0, ""


def _join_words(words: Sequence[str]) -> str:
    """Join words by dashes: `4-bit` becomes 4bit, GGUF stands before its kind, BF16 at the end is dropped."""
    plain = [
        re.sub(r"^([48])-(bits?)$", r"\g<1>bit", word.strip("`'\"*"), flags=re.IGNORECASE) for word in words
    ]
    last = plain[-1:]
    if len(plain) > 1 and last[0].upper() == "GGUF":
        plain = [*plain[:-2], *last, plain[-2]] if _is_storage(plain[-2]) else plain
    if len(plain) > 1 and plain[-1].upper() in _AS_TRAINED:
        plain.pop()
    return "-".join(plain)


def _is_storage(word: str) -> bool:
    plain = _join_words([word])
    return plain.lower() in _ABOUT_STORING or models.find_suffix(f"x-{plain}").lower() == plain.lower()


@cache
def _list_first_words() -> frozenset[str]:
    names: Iterator[str] = (name for key, row in models.read_rows().items() for name in (key, *row.names))
    return frozenset(name.partition("-")[0].lower() for name in names)
