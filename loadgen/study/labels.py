"""Labels: settings and names that a source has and no figure or fact is read from: they tell its runs apart.

What a measurement gives, and what differs between any two runs (times, identifiers, seeds, where a result was
written), is no label.
"""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any

from loadgen.base import secrecy

_WORD = re.compile(r"[^\W\d_]+|\d+|%|°")
_MEASURED_WORDS = frozenset({
    "acceptance", "accepted", "accuracy", "average", "avg", "change", "completed", "cost", "cv", "delta",
    "diff", "difference", "drafts", "duration", "elapsed", "energy", "error", "errors", "failed", "failures",
    "gain", "generated", "goodput", "hits", "improvement", "increase", "itl", "latency", "mean", "median",
    "overhead", "peak", "percentile", "power", "price", "qps", "rps", "score", "speed", "speedup", "std",
    "stddev", "stdev", "succeeded", "successful", "throughput", "total", "tpot", "tps", "ttft", "usage",
    "util", "utilisation", "utilization", "vs", "watts", "%",
})  # fmt: skip
# These are settings, though named like measurements: a power limit, the memory an engine may use.
_SET_WORDS = frozenset({"budget", "cap", "fraction", "limit", "mode", "policy", "target", "threshold"})
_MEASURED_TITLE = re.compile(
    r"\bp\d\d(?:\.\d+)?\b|(?:/|_per_| per )(?:s|sec|second|w|joule|token|dollar|\$)\b"
    r"|[(\[](?:m|u|µ|μ)?s(?:ec(?:onds)?)?[)\]]|\bmax(?:imum)? (?:ttft|tpot|itl|latency)",
    re.IGNORECASE,
)
_SET = re.compile(r".*mem(?:ory)?[ _-]util(?:i[sz]ation)?", re.IGNORECASE)
_TIMES = frozenset({
    "at", "began", "begin", "created", "date", "datetime", "end", "ended", "finished", "start", "started",
    "time", "timestamp", "updated",
})  # fmt: skip
_COUNTERS = frozenset({
    "#", "attempt", "id", "idx", "index", "iter", "iteration", "job", "no", "nr", "pid", "port", "repeat",
    "repetition", "round", "run", "sample", "seed", "seq", "sequence", "trial", "try", "uuid",
})  # fmt: skip
_LENGTHS = frozenset({"len", "length", "lengths", "tokens"})  # of a sequence, which is no counter then
_WRITTEN = frozenset({
    "artifact", "artifacts", "dir", "directory", "export", "file", "filename", "folder", "log", "logs",
    "output", "path", "result", "results", "save", "tmp", "workdir",
})  # fmt: skip
# A path to one of these is what was measured, wherever it lies.
_SENT = frozenset({
    "adapter", "checkpoint", "config", "corpus", "data", "dataset", "draft", "input", "lora", "model",
    "prompt", "prompts", "template", "tokenizer", "trace",
})  # fmt: skip
_OF_FIGURES = frozenset({
    "benchmarks", "metrics", "records", "requests", "responses", "samples", "statistics", "stats", "summary",
    "telemetry",
})  # fmt: skip
_STATISTICS = frozenset({"avg", "mean", "p50", "p99"})
_TIME = re.compile(
    r"(?:19|20)\d\d[-/.]\d\d?[-/.]\d\d?.*|(?:19|20)\d{6}[-_T ]?\d{4,6}.*|\d{1,2}:\d\d(?::\d\d)?.*"
    r"|1[5-9]\d{8}(?:\.\d+)?|1[5-9]\d{11}|1[5-9]\d{17}"
)
_DATE = re.compile(r"(?:19|20)\d{6}|\d{1,2}[/.]\d{1,2}[/.](?:19|20)?\d\d")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}", re.IGNORECASE)
_COUNTED = re.compile(r"(?:[^\W\d_]{0,12}[ #._-]{0,2})?\d{1,20}(?:\s*/\s*\d+)?|[0-9a-f]{6,64}", re.IGNORECASE)
_PATH = re.compile(r".*[/\\].*|[^ ]+\.[A-Za-z]\w{1,5}")
_FIGURE = re.compile(
    r"([-+]?\d[\d,]*(?:\.(\d+))?)\s*(ms|s|sec|us|µs|μs|%|tok(?:en)?s?/s|t/s|req(?:uest)?s?/s|w|j|°c|x|×|/s)?",
    re.IGNORECASE,
)
_MEASURED_DIGITS = 3  # of a fraction: 0.85 is set, 0.853 is measured
_MEASURED_WHOLE = 4  # of a whole number, without the zeros at its end
_ROUND = 64  # whole numbers of which settings are multiples: 8192
# A page says in these words that a result is one more repeat, in the languages of its authors.
_NUMERAL = r"(?:#|no\.?|nr\.?|number)?\s?#?\d{1,4}(?:\s?(?:/|of)\s?\d{1,4})?|one|two|three|four|five"
_REPEAT = (
    r"runs?|repeats?|reps?|repetitions?|trials?|attempts?|iterations?|iter|rounds?|pass|seed|lauf|durchlauf"
    r"|wiederholung|essai|répétition|exécution|ejecución|repetición|execução|esecuzione|прогон|запуск|실행|회차"
)
_ONE_MORE = re.compile(
    rf"\b(?:{_REPEAT})[\s:=._\"'-]{{0,4}}(?:{_NUMERAL})(?![\w.])"
    rf"|\b(?:\d{{1,3}}(?:st|nd|rd|th|\.)|first|second|third|fourth|fifth|another|one more|last)"
    rf"\s(?:{_REPEAT})\b"
    r"|\b(?:once (?:more|again)|same again|again|re-?run)\b|[#№]\s?\d{1,4}\b"
    r"|第\s?[\d一二三四五六七八九十]{1,3}\s?[次轮回遍輪](?:运行|测试|実行|運行|測試|結果|结果)?"
    r"|[\d一二三四五]{1,3}\s?回目|\b\d{1,3}\s?회차?"
    r"|(?:运行|実行|運行|重复|重複)\s?\d{1,3}\b",
    re.IGNORECASE,
)
# Any run prints these, as a progress bar; and a log's line, whose numbers are of its run.
_PRINTED = re.compile(
    r"\d%\||(?:it/s|s/it)\]|^\s*(?:real|user|sys)\s+\d{1,4}m[\d.]+s\s*$|^#(?:Input|Output) tokens: \d+\s*$"
)
_LOGGED = re.compile(
    r"^\W{0,3}(?:\([^()]{1,60}\)\s)?(?:\[[^\[\]]{1,40}\]\s?)?(?:INFO|DEBUG|WARN(?:ING)?|ERROR)\b"
    r"|\b\d{1,2}:\d\d:\d\d\b|\b(?:19|20)\d\d[-/]\d\d[-/]\d\d\b"
)
_TAKING = frozenset({"took", "loaded", "finished", "elapsed", "seconds"})
_WEB_PORT = re.compile(r"(?<=[\w\]]):\d{2,5}(?=/|$)")
_AROUND = ".,:;*_`'\"()[]{}|~"
_COMMAND = re.compile(r"(?:\S+ ){1,4}?-[A-Za-z]\w* \S")  # with flags of one dash alone
_LONG_FLAG = re.compile(r"--")
_FLAG = re.compile(r"--|-(?=[A-Za-z])")  # --tp 2, and -tp 2
_SWITCHES = frozenset({"true", "false", "on", "off", "yes", "no", "none", "null"})
_DEEPEST, _MOST, _LONGEST, _LONGEST_LIST = 4, 300, 200, 16


def read_labels(document: Mapping[str, Any], figures: Container[str] = ()) -> dict[str, str]:
    """Read the labels of a JSON object by their keys, dotted where they lie deeper, 300 at most.

    `figures` are keys that are figures already; these and secrets are left out. A command line has the labels
    of its flags.
    """
    found = ((key, value) for key, value in _flatten(document, figures, 0) if is_label(key, [value]))
    return dict(islice(found, _MOST))


def read_flag_labels(command: str) -> dict[str, str]:
    """Read the labels of a command line by its flags: `--temperature 0.7`; of a flag without a value "on"."""
    return {key: value for key, value in _list_flag_labels(command) if is_label(key, [value])}


def strip_flags(command: str) -> str:
    """Strip a command line of its flags and their values: `vllm serve m`."""
    words, before = list[str](), ""
    for word in _split_command(command):
        is_value = _FLAG.match(before) is not None and "=" not in before
        if _FLAG.match(word) is None and not is_value:
            words.append(word)
        before = word
    return " ".join(words)


def split_flags(command: str) -> Iterator[tuple[str, str | None]]:
    """Yield each flag of a command line, underscores for its dashes, and its value; None of one without."""
    return pair_flags(_split_command(command), short=True)


def _split_command(command: str) -> list[str]:
    try:
        return shlex.split(command, comments=True)
    except ValueError:  # a quote that is not closed
        return command.split()


def pair_flags(words: Sequence[str], *, short: bool = False) -> Iterator[tuple[str, str | None]]:
    """Yield each flag among words, also of one dash if `short`, with underscores, and its value or None."""
    begins = _FLAG if short else _LONG_FLAG
    for word, following in pairwise([*words, "--"]):
        if (flag := begins.match(word)) is not None:
            name, equals, value = word[flag.end() :].partition("=")
            is_next = following.startswith("--") or begins.match(following) is not None
            yield name.replace("-", "_"), value if equals else None if is_next else following


def is_label(title: str, cells: Sequence[str]) -> bool:
    """Whether cells under a title are labels: below half were measured, and not all are of their run.

    Empty cells do not count, and without others there is no label; a secret is none.
    """
    return is_measured(title, cells) is False


def counts_runs(title: str, cells: Sequence[str]) -> bool:
    """Whether every cell only tells runs apart, as a number or a time, and two differ: rows are repeats."""
    words = _split_words(title)
    each = [
        bool(cell) and (_is_of_its_run(words, cell) or not strip_run(cell)) for cell in map(str.strip, cells)
    ]
    return len({*cells}) > 1 and all(each)


def is_measured(title: str, cells: Sequence[str]) -> bool | None:
    """Whether at least half of the cells were measured; None of a secret, and where all are of their run."""
    words, every = _split_words(title), [cell.strip() for cell in cells if cell.strip()]
    if secrecy.is_secret(title) or all(_is_of_its_run(words, cell) or not strip_run(cell) for cell in every):
        return None
    plain = title.replace("_per_", " per ").replace("_", " ")
    is_set = not words.isdisjoint(_SET_WORDS) or _SET.fullmatch(title) is not None
    measured = not words.isdisjoint(_MEASURED_WORDS) or _MEASURED_TITLE.search(plain) is not None
    by_title = measured and not is_set
    figures = sum((by_title and _FIGURE.match(cell) is not None) or _is_measured(cell) for cell in every)
    return 2 * figures >= len(every)


def strip_run(line: str) -> str:
    """Strip a line of text of what differs between any two runs of one thing: it is "" if nothing is left.

    That is the number of a run, times, identifiers, where a result was written, what was measured, every
    number of a log's line, and progress bars. Blanks, signs of a sentence and capitals do not count.
    """
    if _PRINTED.search(line) is not None:
        return ""
    plain = _ONE_MORE.sub(" ", unicodedata.normalize("NFKC", line)).lower()
    words, logged = _split_words(plain), _LOGGED.search(line) is not None
    timed = words - {"%"} if words.isdisjoint(_SET_WORDS) else frozenset[str]()
    measured = not timed.isdisjoint(_MEASURED_WORDS | _TAKING)
    kept = []
    for part in plain.split():
        word = _WEB_PORT.sub("", part) if "://" in part else part.strip(_AROUND)
        own = _is_of_its_run(words - _COUNTERS, word) or (measured and _is_measured(word))
        if word and not own and not (logged and any(map(str.isdigit, word))):
            kept.append(word)
    return " ".join(kept) if any(not set(word) <= {*"-=+#<>|/\\"} for word in kept) else ""


def format_label_values(key: str, values: Iterable[str]) -> list[str]:
    """Write a label's values as names of rows have them: texts alone, numbers and switches behind the key."""
    texts = [" ".join(value.split()) for value in values]
    alone = all(
        not text or (sum(map(str.isalpha, text)) > 1 and text.lower() not in _SWITCHES) for text in texts
    )
    return [text if alone or not text else f"{key.rpartition('.')[2]} {text}" for text in texts]


def _split_words(title: str) -> frozenset[str]:
    plain = unicodedata.normalize("NFKC", title)
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", plain).lower()
    return frozenset(_WORD.findall(apart)) | ({"#"} if plain.strip() == "#" else set())


def _is_of_its_run(words: frozenset[str], value: str) -> bool:
    """Whether a value is another in every run: a time, an identifier, a number of the run, a place."""
    if _TIME.fullmatch(value) or _UUID.fullmatch(value):
        return True
    if not words.isdisjoint(_TIMES) and _DATE.fullmatch(value):
        return True
    if words.isdisjoint(_LENGTHS) and not words.isdisjoint(_COUNTERS) and _COUNTED.fullmatch(value):
        return True
    written = not words.isdisjoint(_WRITTEN) and words.isdisjoint(_SENT)
    return written and _PATH.fullmatch(value) is not None


def _is_measured(value: str) -> bool:
    """Whether a value is a figure: by its unit, three digits with a fraction, or four of a whole number.

    Zeros at the end do not count; a whole number that is a multiple of 64 is none.
    """
    match = _FIGURE.fullmatch(value)
    if match is None:
        return False
    if match[3]:
        return True
    digits = match[1].lstrip("+-").replace(",", "")
    if match[2]:
        return len(digits.replace(".", "").lstrip("0")) >= _MEASURED_DIGITS
    return len(digits.rstrip("0")) >= _MEASURED_WHOLE and int(digits[:18]) % _ROUND != 0


def _flatten(value: Mapping[str, Any], figures: Container[str], depth: int) -> Iterator[tuple[str, str]]:
    """Yield the texts, numbers and switches of an object by dotted key; none of a part that has statistics.

    Keys in `figures`, secrets, parts of figures and what is below the fifth level are left out.
    """
    if depth > _DEEPEST or (depth and not _STATISTICS.isdisjoint(value)):
        return
    for key, item in value.items():
        if not isinstance(key, str) or key in figures or secrecy.is_secret(key):
            continue
        if isinstance(item, Mapping):
            if _split_words(key).isdisjoint(_OF_FIGURES):
                yield from ((f"{key}.{name}", text) for name, text in _flatten(item, (), depth + 1))
        elif isinstance(item, str) and (" --" in item or _COMMAND.match(item) is not None):
            yield from ((f"{key}.{name}", text) for name, text in _list_flag_labels(item))
        elif isinstance(item, list) and not _split_words(key).isdisjoint(_OF_FIGURES):
            continue
        elif (text := _format_label(item)) is not None:
            yield key, text


def _format_label(item: object) -> str | None:
    """Write a value as a text, a list with commas; None of null, of an object, and of what is too long."""
    if isinstance(item, list):
        parts = [_format_label(part) for part in item[: _LONGEST_LIST + 1]]
        return None if None in parts or len(parts) > _LONGEST_LIST else ",".join(filter(None, parts)) or None
    if item is None or isinstance(item, bool):
        return None if item is None else str(item).lower()
    if isinstance(item, int | float):
        return f"{item:.12g}" if math.isfinite(item) else None
    return secrecy.hide_secrets(item.strip()) if isinstance(item, str) and 0 < len(item) <= _LONGEST else None


def _list_flag_labels(command: str) -> Iterator[tuple[str, str]]:
    for name, value in split_flags(secrecy.hide_secrets(command)):
        if name:
            yield name, "on" if value is None else value[:_LONGEST]
