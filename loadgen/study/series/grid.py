"""Grid: what is varied as the points of a sweep, in the order in which they are measured."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import chain, pairwise, product
from typing import Any, TypeVar

import msgspec

from loadgen.base import parsing
from loadgen.base.errors import UsageError
from loadgen.base.parsing import suggest_name
from loadgen.base.text import quote_value
from loadgen.features.data import row_kinds
from loadgen.plan import request_sources
from loadgen.plan.profile import SUBJECTS, Profile
from loadgen.settings import data_settings
from loadgen.settings.data_settings import ANSWER_LENS, list_unheeded
from loadgen.settings.setting import Makes, list_rows
from loadgen.settings.table import PROFILE_KEYS
from loadgen.settings.validation import find_flag
from loadgen.study.series.point_runs import parse_value
from loadgen.study.sweep_record import AXES, LoadAxis, SweepPoint, format_value

T = TypeVar("T")
Build = Callable[[Mapping[str, Any]], Profile]  # a profile of these keys over the others
CONCURRENCY, RATE = AXES
_LOADS = ("--rate", "--concurrency", "rate", "concurrency")  # flags and keywords of a load alone
# A setting that changes nothing in a run is not varied, but objectives are; nor are tables, and stages.
_FIXED = ("schedule", "classes", "extra_body", "chat_template_kwargs")
FIELDS = tuple(
    row.name
    for row in list_rows(*SUBJECTS)
    if row.name == "slo" or (row.makes is not Makes.NOTHING and row.name not in _FIXED)
)
# Settings that a column of a table shows.
_SHOWN = (CONCURRENCY, RATE, "input_len", "output_len", "num_prompts", "duration")
_MOST_POINTS = 10_000
_LEAST_REQUESTS = 50  # of a point: the P90's bound at 99 % confidence needs 44
_A_SLOT = 10  # requests for each that is in flight at a time
_RATE_S = 60.0


class Dimension(msgspec.Struct, frozen=True):
    """Keys that vary together, and their values, a row for each step."""

    flag: str
    keys: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


class Variation(msgspec.Struct, frozen=True):
    """All that a sweep varies; the last dimension of `fields` varies fastest, `serve` slowest."""

    fields: tuple[Dimension, ...] = ()
    serve: tuple[Dimension, ...] = ()
    repeats: int = 1

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the profile that vary."""
        return tuple(key for dimension in self.fields for key in dimension.keys)

    @property
    def axis(self) -> LoadAxis | None:
        """The load that varies fastest; None where only other keys do."""
        return next((AXES[key] for key in reversed(self.keys) if key in AXES), None)


def _list_combinations(dimensions: Sequence[Dimension]) -> Iterator[dict[str, Any]]:
    """Yield every combination of values, by key; the last dimension varies fastest. {} without any."""
    keys = [key for dimension in dimensions for key in dimension.keys]
    for rows in product(*(dimension.rows for dimension in dimensions)):
        yield dict(zip(keys, chain.from_iterable(rows), strict=True))


GridPoint = tuple[SweepPoint, Profile]  # with its workload


def parse_loads(flag: str, key: str, text: str) -> Dimension:
    """Parse a list of loads, where … continues it, to the dimension of `key`; raises UsageError."""
    return make_load_dimension(flag, key, _parse_flag(flag, parse_numbers, text))


def make_load_dimension(flag: str, key: str, values: Sequence[float]) -> Dimension:
    """Make a dimension of distinct loads above 0, concurrencies whole; raises UsageError for any others."""
    given = ",".join(map(format_value, values))
    if key == CONCURRENCY and any(type(value) is not int or value < 1 for value in values):
        raise UsageError(f"{flag} {given}: give whole numbers of requests in flight, 1 or more")
    if not all(0 < value < math.inf for value in values):
        raise UsageError(f"{flag} {given}: give requests per second, more than 0")
    return make_linked_dimension(flag, {key: values})


def parse_link(texts: Iterable[str], flag: str = "--link") -> Dimension:
    """Parse texts KEY=LIST, whose values vary together, to one dimension; raises UsageError."""
    lists: dict[str, Sequence[Any]] = {}
    for text in texts:
        name, values = _parse_flag(flag, split_name, text)
        key = _parse_key(flag, name)
        if key in lists:
            raise UsageError(f"{flag}: {key} is given twice")
        lists[key] = _parse_flag(flag, parse_field_values, key, values)
    return make_linked_dimension(flag, lists)


def make_linked_dimension(flag: str, lists: Mapping[str, Sequence[Any]]) -> Dimension:
    """Make the dimension of profile keys, each with its values, that vary together; `-` in a key is `_`.

    Raises UsageError for a key that cannot vary, and lists of several lengths, empty, or with one row twice.
    """
    lists = {_parse_key(flag, key): values for key, values in lists.items()}
    if len({len(values) for values in lists.values()}) > 1:
        counts = ", ".join(f"{key} has {len(values)}" for key, values in lists.items())
        raise UsageError(f"{flag}: linked lists are of one length: {counts}")
    return _make_dimension(flag, tuple(lists), tuple(zip(*lists.values(), strict=True)))


def _parse_key(flag: str, name: str) -> str:
    """Return a profile's key, with _ for -; raises UsageError if it cannot vary."""
    key = name.replace("-", "_")
    if key not in FIELDS:
        known = suggest_name(key, FIELDS) or ": docs/profiles.md lists them, as input_len or temperature"
        raise UsageError(f"{flag} {name}: no key of a profile that can vary{known}")
    return key


def parse_serve_param(text: str) -> Dimension:
    """Parse one `--serve-param`, FLAG=LIST, to a dimension of texts; raises UsageError."""
    flag = "--serve-param"
    name, values = _parse_flag(flag, split_name, text)
    words = _parse_flag(flag, split_words, values)
    return _make_dimension(flag, (name.lstrip("-"),), tuple((word,) for word in words))


def _make_dimension(flag: str, keys: tuple[str, ...], rows: tuple[tuple[Any, ...], ...]) -> Dimension:
    """Make a dimension; raises UsageError without rows, or where one is listed twice."""
    if not rows:
        raise UsageError(f"{flag}: a list is empty")
    if twice := next((row for at, row in enumerate(rows) if row in rows[:at]), None):
        again = ",".join(map(format_value, twice))
        raise UsageError(f"{flag}: {again} is listed twice: give a number of repeats to measure it again")
    return Dimension(flag, keys, rows)


def _parse_flag(flag: str, read: Callable[..., T], *given: str) -> T:
    """Return `read(*given)`, with its ValueError turned into a UsageError that names the flag."""
    try:
        return read(*given)
    except ValueError as error:
        raise UsageError(f"{flag} {error}") from None


def check_variation(variation: Variation, given: Mapping[str, Any], launched: bool) -> None:
    """Raise UsageError where the lists make no sweep; `given` are the keys that have one value by a flag.

    A sweep has 2 to 10,000 points, varies no key twice and none of `given`, and server flags only if the
    server is `launched`.
    """
    seen: dict[str, str] = {}
    for dimension in (*variation.serve, *variation.fields):
        for key in (name.replace("-", "_") for name in dimension.keys):
            if key in seen:
                raise UsageError(f"{key} is varied twice, by {seen[key]} and {dimension.flag}: keep one")
            seen[key] = dimension.flag
    if both := next((key for key in variation.keys if key in given), None):
        raise UsageError(f"{both} has one value by its own flag, and is varied by {seen[both]}: keep one")
    if variation.serve and not launched:
        raise UsageError("--serve-param needs a server that is started here: add --launch ENGINE")
    dimensions = (*variation.serve, *variation.fields)
    if not dimensions:
        raise UsageError("nothing is varied: pass --concurrency 1,2,4…64, --rate 1,2,4…16, --vary or --link")
    count = math.prod(len(dimension.rows) for dimension in dimensions)
    if count == 1:
        raise UsageError(
            "a sweep of one point is one run: use `loadgen bench`, or give several values, as 1,2,4…64"
        )
    if count * variation.repeats > _MOST_POINTS:
        raise UsageError(f"{count * variation.repeats} points: a sweep has {_MOST_POINTS} at most")


def list_points(variation: Variation, given: Mapping[str, Any], build: Build) -> tuple[GridPoint, ...]:
    """List the points in order, each with the workload that `build` makes of `given` and its own values.

    All repeats of a server's settings come before the next settings, one whole pass after the other.
    A point lasts as `given` or its profile's duration has it, else as `count_requests` does. The workload's
    name has the varied values that no column of a table shows. Raises UsageError for a value that the profile
    does not take, or that changes nothing.
    """
    made = []
    servers, every = _list_combinations(variation.serve), _list_combinations(variation.fields)
    combinations = product(servers, range(variation.repeats), every)
    for number, (serve, repeat, settings) in enumerate(combinations):
        try:
            workload = _make_workload(given, settings, build)
        except UsageError as error:
            message = str(error)
            for dimension in variation.fields:
                if dimension.flag in _LOADS:  # the flag that varies the load, in place of that of `bench`
                    message = message.replace(find_flag(dimension.keys[0]), dimension.flag)
            raise UsageError(message) from None
        # Two points that differ in what no column of a table shows are no repeats.
        more = {**serve, **{key: value for key, value in settings.items() if key not in _SHOWN}}
        words = [workload.name, *(f"{key}={format_value(value)}" for key, value in more.items())]
        workload = workload.model_copy(update={"name": " ".join(words).strip()})
        point = SweepPoint(number=number, settings=settings, repeat=repeat, serve=serve)
        made.append((point, workload))
    return tuple(made)


def _make_workload(given: Mapping[str, Any], settings: Mapping[str, Any], build: Build) -> Profile:
    """Make the workload of a point; if `output_len` varies, a data set's length of answers is set too.

    Without a number of requests, of sessions or a duration among the keys, `count_requests` sets one. Raises
    UsageError for a varied key that the workload's data has no use for.
    """
    keys = {**given, **settings}
    workload = build(keys)
    source = request_sources.find_source(workload)
    if "output_len" in settings and not data_settings.SOURCES[source].plans_lens:
        keys = {**keys, **dict.fromkeys(ANSWER_LENS, settings["output_len"])}
        workload = build(keys)
    unheeded = list_unheeded(list_rows(*PROFILE_KEYS), workload.__dict__, settings)
    if source in request_sources.TRACES:
        unheeded.append(find_flag("output_len"))
    for key in (key for key in settings if find_flag(key) in unheeded):
        raise UsageError(f"{key} is varied, and the data set of these points has none of it: leave it out")
    limited = {"num_prompts", "num_sessions", "duration"} & keys.keys()
    if not limited and (count := count_requests(workload)) is not None:
        of_file = source == data_settings.FILE and row_kinds.is_of_conversations(workload.dataset_path)
        is_sessions = workload.sends_sessions or of_file
        workload = build({**keys, "num_sessions" if is_sessions else "num_prompts": count})
    return workload


def count_requests(workload: Profile) -> int | None:
    """Return how many requests, or sessions, a point has if no limit is given: at least 50.

    At a rate those due in 60 s, in a closed loop 10 for each in flight. None if the workload has times or a
    duration of its own, or neither rate nor concurrency.
    """
    if workload.timed or workload.duration is not None:
        return None
    if math.isfinite(workload.request_rate):
        return max(_LEAST_REQUESTS, math.ceil(_RATE_S * workload.request_rate))
    if workload.max_concurrency is None:
        return None
    return max(_LEAST_REQUESTS, _A_SLOT * workload.max_concurrency)


_ELLIPSIS = re.compile(r"\s*,?\s*(?:…|\.\.\.)\s*,?\s*")
_MOST_VALUES = 1000
_LEAST_STEPPED = 3  # numbers whose equal distances mean steps; of two the ratio is continued
_LONGEST_NUMBER = 40  # characters
# Keys of which one value may hold commas.
_WITH_COMMAS = ("input_dist", "output_dist", "slo")
_BETWEEN = ";"  # values that hold commas; then … is a text as any other
_OPENING, _CLOSING = "[{", "]}"  # of JSON, inside which a comma parts no values


def parse_numbers(text: str) -> tuple[int | float, ...]:
    """Parse the numbers of a list; `…` continues it up to the number behind it, which is the last.

    Three numbers or more at one distance go on in such steps, all others by their ratio: 1,2,4…512 doubles,
    8,16,24…64 adds 8. Whole numbers stay whole. Raises ValueError.
    """
    begun, *rest = _ELLIPSIS.split(text.strip())
    if len(rest) > 1:
        raise ValueError(f"{quote_value(text)}: one … is enough: write 1,2,4…512")
    if rest and not begun:
        raise ValueError(f"{quote_value(text)}: two numbers before the … show how it goes on, as in 1,2…64")
    if rest and not rest[0]:
        raise ValueError(
            f"{quote_value(text)}: the last number is missing: write it behind the …, as in 1,2…64"
        )
    first = [_parse_number(word, text) for word in _split_list(begun, text, ",")]
    found = first if not rest else _extend_numbers(first, _parse_number(rest[0], text), text)
    if twice := next((value for at, value in enumerate(found) if value in found[:at]), None):
        raise ValueError(
            f"{quote_value(text)}: {_simplify_number(twice)} is listed twice: --repeat measures points again"
        )
    return tuple(map(_simplify_number, found))


def _extend_numbers(first: Sequence[Fraction], end: Fraction, text: str) -> list[Fraction]:
    """Continue numbers to before `end`, and add that: two by their ratio, more by a step they share."""
    if len(first) < 2:
        raise ValueError(f"{quote_value(text)}: two numbers before the … show how it goes on, as in 1,2…64")
    if any(value <= 0 for value in (*first, end)):
        raise ValueError(f"{quote_value(text)}: give numbers above 0")
    steps = {after - before for before, after in pairwise(first)}
    ratios = {after / before for before, after in pairwise(first)}
    stepped = len(first) >= _LEAST_STEPPED and len(steps) == 1
    if not stepped and len(ratios) > 1:
        raise ValueError(
            f"{quote_value(text)}: the numbers before the … have neither one ratio nor one distance"
        )
    step, ratio = steps.pop(), ratios.pop()
    up = step > 0
    if step == 0 or (end > first[-1]) is not up:
        raise ValueError(
            f"{quote_value(text)}: {_simplify_number(end)} is never reached from "
            f"{_simplify_number(first[-1])}"
        )
    whole = all(value.denominator == 1 for value in (*first, end))
    found, exact = list(first), first[-1]
    while True:
        exact = exact + step if stepped else exact * ratio
        value = Fraction(round(exact)) if whole else exact
        if (value >= end) is up or value == end:
            return [*found, end]
        if value != found[-1]:
            found.append(value)
        if len(found) >= _MOST_VALUES:
            raise ValueError(f"{quote_value(text)}: has more than {_MOST_VALUES} numbers")


def _split_list(listed: str, text: str, between: str) -> list[str]:
    """Split `listed` at each `between` and strip the parts; raises ValueError if it or one is empty."""
    if not listed.strip():
        raise ValueError(f"{quote_value(text)}: the list is empty: write values, as 1,2,4")
    parts = [part.strip() for part in listed.split(between)]
    if not all(parts):
        sign = {",": "comma", _BETWEEN: "semicolon"}[between]
        raise ValueError(f"{quote_value(text)}: a value is missing before or behind a {sign}")
    return parts


def _parse_number(word: str, text: str) -> Fraction:
    """Parse a number as a fraction; raises ValueError, quoting `text`, unless it is 0 or 1e-15 to 1e15."""
    try:
        value = Decimal(word if len(word) <= _LONGEST_NUMBER else "")
        plain = float(value)
    except (ArithmeticError, ValueError):
        is_range = any(sign in word for sign in ("..", "-", ":"))
        how = ": two numbers before a … show how it goes on, as in 1,2…64" if is_range else ""
        raise ValueError(f"{quote_value(text)}: {quote_value(word)} is not a number{how}") from None
    if not value:
        return Fraction(0)
    if not parsing.read_figure(plain):  # a larger one, as 1e999999999, would fill the memory
        raise ValueError(f"{quote_value(text)}: {quote_value(word)}: give numbers from 1e-15 to 1e15")
    return Fraction(value)


def _simplify_number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def split_name(text: str) -> tuple[str, str]:
    """Split the name and the list of `NAME=V1,V2`; raises ValueError where it is written otherwise."""
    name, equals, values = text.partition("=")
    if not equals or not name.strip() or not values.strip():
        raise ValueError(f"{quote_value(text)}: write NAME=VALUE,VALUE, as input_len=512,2048")
    return name.strip(), values


def parse_field_values(name: str, text: str) -> tuple[Any, ...]:
    """Parse the values of a profile's key: texts if its type is str, else numbers, switches or words.

    `…` continues numbers. Raises ValueError.
    """
    if name in _WITH_COMMAS and "," in text and _BETWEEN not in text:
        raise ValueError(
            f"{name}: its values may hold commas: write {_BETWEEN} between them, as {_BETWEEN.join('AB')}, "
            f"and behind a single one"
        )
    if Profile.model_fields[name].annotation is str:
        return split_words(text)
    if _ELLIPSIS.search(text):
        return parse_numbers(text)
    return tuple(map(parse_value, split_words(text)))


def split_words(text: str) -> tuple[str, ...]:
    """Split a list into texts at its semicolons, else at its commas; `…` continues a list of numbers.

    Raises ValueError for an empty value, and a comma inside the brackets of JSON.
    """
    if _BETWEEN in text:
        return tuple(_split_list(text.strip().removesuffix(_BETWEEN), text, _BETWEEN))
    if _ELLIPSIS.search(text):
        return tuple(map(str, parse_numbers(text)))
    found = _split_list(text, text, ",")
    # A comma inside JSON has torn it where its brackets do not close.
    if any(sum(map(word.count, _OPENING)) != sum(map(word.count, _CLOSING)) for word in found):
        raise ValueError(f"{quote_value(text)}: a value holds a comma: write {_BETWEEN} between the values")
    return tuple(found)
