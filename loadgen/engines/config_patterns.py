"""Config patterns: the form of an engine's, which find a field in its log or its answer about itself.

Of several matches the last counts for words, the largest for sizes: draft models and the other ranks of a
group log theirs in the same words.

A log may be one line of megabytes, so no pattern may scan the same text again from each of its possible
beginnings: a pattern with a gap in it is written as two, `after` and `pattern`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any

import msgspec

from loadgen.base import untrusted
from loadgen.base.secrecy import hide_secrets
from loadgen.base.text import GIB

LONGEST_FLAGS = 8192  # characters; about the length of SGLang's arguments, all of which it logs
_MOST_ITEMS = 1000  # of a list in an answer
_ABSENT = object()

Value = Callable[[str], Any]


def join_distinct(values: list[Any]) -> Any:
    """Join the distinct values, in their order, by ` + `."""
    return " + ".join(dict.fromkeys(values))


class LogPattern(msgspec.Struct, frozen=True):
    """A pattern of a log for one field, whose value is made from the first group that matched.

    With `after` the pattern is searched once in what follows the first `after` of a line, to the end of
    that line, or of `lines` lines.
    """

    field: str
    pattern: str
    value: Value = str
    pick: Callable[[list[Any]], Any] = itemgetter(-1)
    after: str = ""
    lines: int = 1

    def read(self, log: str) -> dict[str, Any]:
        """Return {field: value}, of several matches as `pick` chooses; {} if the log does not show it."""
        texts = (next(filter(None, match.groups()), "") for match in self._find_matches(log))
        values = [value for text in texts if not is_empty(value := self.value(text))]
        return {self.field: self.pick(values)} if values else {}

    def _find_matches(self, log: str) -> Iterator[re.Match[str]]:
        """Yield every match in the log; with `after`, at most one behind the first `after` of a line."""
        if not self.after:
            yield from re.finditer(self.pattern, log)
            return
        pattern, after, at = re.compile(self.pattern), re.compile(self.after), 0
        while (start := after.search(log, at)) is not None:
            at = end = _find_line_end(log, start.end())
            for _ in range(self.lines - 1):
                end = _find_line_end(log, end + 1)
            if (match := pattern.search(log[start.end() : end])) is not None:
                yield match


def _find_line_end(log: str, at: int) -> int:
    end = log.find("\n", at)
    return len(log) if end < 0 else end


def is_empty(value: object) -> bool:
    """Whether a value is empty: None, "" or ()."""
    return value is None or value in ("", ())


class InfoField(msgspec.Struct, frozen=True):
    """Where an engine's answer about itself has one field: a dotted path to its value.

    With `prefix` the value is a table, of which the keys that begin so are read as `key=value`, without it.
    """

    field: str
    path: str
    value: Value = str
    prefix: str | None = None

    def read(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Return {field: value} as the engine's answer has it; {} if it is missing or its value empty."""
        item = _find_value(info, self.path) if self.path else info
        if self.prefix is not None:
            prefix, table = self.prefix, untrusted.read_mapping(item)
            text = " ".join(
                f"{key.removeprefix(prefix)}={_format_value(value)}"
                for key, value in table.items()
                if key.startswith(prefix)
            )
        elif item is _ABSENT:
            return {}
        else:
            text = _format_value(item)
        return {} if is_empty(value := self.value(text)) else {self.field: value}


def _format_value(value: object) -> str:
    """Format a JSON value as a log would print it; of a list the items, joined by ", " (1000 at most).

    A table is "", and a list within a list is left out.
    """
    if isinstance(value, list):
        return ", ".join(_format_value(item) for item in value[:_MOST_ITEMS] if not isinstance(item, list))
    return "" if isinstance(value, dict) else str(value)


def _find_value(info: object, path: str) -> object:
    """Return the value at a dotted path of nested tables and lists; _ABSENT if it is missing."""
    for step in path.split("."):
        if isinstance(info, list) and step.isdecimal() and int(step) < len(info):
            info = info[int(step)]
        elif isinstance(info, Mapping) and step in info:
            info = info[step]
        else:
            return _ABSENT
    return info


# These functions convert the text of a match to the value of the field.


def read_word(text: str) -> str:
    """Read a word, dropping quotes and `torch.`; "" for None and auto."""
    word = text.strip("'\" ").removeprefix("torch.")
    return "" if word in ("None", "auto", "") else word


def read_method(text: str) -> str:
    """Read the name of a quantization method; `none` for "", None and auto."""
    return read_word(text) or "none"


def read_kv_dtype(text: str) -> str:
    """Read the type of the KV cache; `auto` is kept."""
    return text.strip("'\" ").removeprefix("torch.")


def read_backend(text: str) -> str:
    """Read an attention backend's name in capitals with `_`, without its module; "" for None and auto."""
    name = read_word(text).rpartition(".")[2].upper().replace(" ", "_")
    return {"FLASH_ATTENTION": "FLASH_ATTN"}.get(name, name)


def map_words(words: Mapping[str, str], other: str | None = None) -> Value:
    """Make a function that translates the words in a table; any other word becomes `other`, or itself."""
    return lambda text: words.get(text, text if other is None else other)


read_switch = map_words({"True": "on", "False": "off"}, "")
read_opposite = map_words({"True": "off", "False": "on"}, "")
read_off_if_true = map_words({"True": "off"}, "")
read_on, read_off = map_words({}, "on"), map_words({}, "off")  # of any text
read_graph_mode = map_words({"NONE": "off", "disabled": "off"})
read_chunk = map_words({"-1": "off", "None": "off"})


def read_sizes(text: str) -> str:
    """Summarize a list of sizes as their number and the greatest; "" without any."""
    sizes = [size for word in re.findall(r"\d+", text) if (size := untrusted.read_digits(word)) is not None]
    return f"{len(sizes)} sizes up to {max(sizes)}" if sizes else ""


def read_engine_flags(text: str) -> str:
    """Read an engine's command line without secrets, cut between words to 8192 characters."""
    flags = read_word(text)
    if len(flags) > LONGEST_FLAGS:
        flags = flags[:LONGEST_FLAGS]
        flags = flags[: max(flags.rfind(sign) for sign in " ,\n\t") + 1]
    return hide_secrets(flags)


def read_kernel(text: str) -> str:
    """Read the name of a quantization kernel; "" for any other word."""
    return text if text.find("Kernel") > 0 else ""


def read_count(text: str) -> int | None:
    """Parse a count, with or without thousands separators; None for anything else."""
    return untrusted.read_digits(text.replace(",", ""))


def read_seconds(text: str) -> float | None:
    """Parse seconds, rounded to a hundredth; None for anything else."""
    seconds = untrusted.read_number(text)
    return None if seconds is None else round(seconds, 2)


def _read_numbers(text: str) -> list[float]:
    words = re.findall(r"\d+\.?\d*", text[:LONGEST_FLAGS])
    return [number for word in words if (number := untrusted.read_number(word)) is not None]


def read_gib(text: str) -> int | None:
    """Read the sum of sizes in a text, GiB each (also where it says GB), as bytes; None unless above 0."""
    size = sum(_read_numbers(text))
    return round(size * GIB) if size > 0 and not text.startswith("-") else None


def read_blocks(text: str) -> int | None:
    """Read the KV cache's tokens from `BLOCKS … for LENGTH tokens per request: TIMESx`, by whole blocks.

    None with fewer than three numbers or no blocks.
    """
    numbers = _read_numbers(text)
    if len(numbers) < 3 or not numbers[0]:
        return None
    blocks, (length, times) = numbers[0], numbers[-2:]
    return round(blocks * round(length * times / blocks))


def read_speculative(text: str) -> str:
    """Read `method, N tokens` of vLLM's SpeculativeConfig or SGLang's arguments; "" if off."""
    method = re.search(r"(?:method|algorithm)(?:=|': )['\"]?([\w.-]+)", text)
    tokens = re.search(r"(?:num_spec_tokens|num_speculative_tokens|num_draft_tokens)(?:=|': )(\d+)", text)
    name = "on" if method is None or method[1] == "None" else method[1]
    return f"{name}, {tokens[1]} tokens" if tokens else name if name != "on" else ""
