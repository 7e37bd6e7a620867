"""Grid: what is varied as the points of a sweep, in the order in which they are measured."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from typing import Any, TypeVar

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.parsing import suggest_name
from loadgen.features.data import data_conflicts
from loadgen.features.data.data_settings import READ_OUTPUT_LENS
from loadgen.plan import sources
from loadgen.plan.profile import SUBJECTS, Profile
from loadgen.plan.server_settings import flag_of
from loadgen.report.sweep_lines import label, shown_value
from loadgen.report.sweep_record import AXES, LoadAxis
from loadgen.settings.table import join_rows
from loadgen.study.series.sweep import value_lists

T = TypeVar("T")
Build = Callable[[Mapping[str, Any]], Profile]  # a profile of these keys over the others
CONCURRENCY, RATE = AXES
_LOADS = ("--rate", "--concurrency", "rate", "concurrency")  # flags and keywords of a load alone
FIELDS = tuple(row.name for row in join_rows(*SUBJECTS) if row.swept)
_MOST_POINTS = 10_000
_LEAST_REQUESTS = 50  # of a point: the P90's bound at 99 % confidence needs 44
_A_SLOT = 10  # requests for each that is in flight at a time
_RATE_S = 60.0
_LONGEST_NAME = 80


class Dimension(msgspec.Struct, frozen=True):
    """Keys that vary together, and their values, a row for each step."""

    flag: str
    keys: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def steps(self) -> Iterator[dict[str, Any]]:
        """The keys with the values of one row after the other."""
        for row in self.rows:
            yield dict(zip(self.keys, row, strict=True))


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

    def combinations(self) -> Iterator[tuple[dict[str, str], int, dict[str, Any]]]:
        """Server flags, the repeat and the keys of the profile of each point, in order.

        All repeats of a server's settings come before the next settings, one whole pass after the other.
        """
        for serve in product(*(dimension.steps() for dimension in self.serve)):
            for repeat in range(self.repeats):
                for settings in product(*(dimension.steps() for dimension in self.fields)):
                    yield _merged(serve), repeat, _merged(settings)


def _merged(tables: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return dict(chain.from_iterable(table.items() for table in tables))


class GridPoint(msgspec.Struct, frozen=True):
    """A point to be measured."""

    number: int
    settings: dict[str, Any]
    serve: dict[str, str]
    repeat: int
    workload: Profile

    @property
    def label(self) -> str:
        """What was varied, in words."""
        return label(self.settings, self.serve, self.repeat)

    @property
    def directory_name(self) -> str:
        """The name of its directory: 003-concurrency-8."""
        plain = re.sub(r"[^\w.]+", "-", self.label, flags=re.ASCII).strip("-")
        return f"{self.number:03d}-{plain}"[:_LONGEST_NAME]


def loads(flag: str, key: str, text: str) -> Dimension:
    """The dimension of `--concurrency` or `--rate`; raises UsageError."""
    return loads_of(flag, key, _read(flag, value_lists.numbers, text))


def loads_of(flag: str, key: str, values: Sequence[float]) -> Dimension:
    """The dimension of these loads; raises UsageError."""
    given = ",".join(map(shown_value, values))
    if key == CONCURRENCY and any(type(value) is not int or value < 1 for value in values):
        raise UsageError(f"{flag} {given}: give whole numbers of requests in flight, 1 or more")
    if not all(0 < value < math.inf for value in values):
        raise UsageError(f"{flag} {given}: give requests per second, more than 0")
    return columns(flag, {key: values})


def varied(text: str) -> Dimension:
    """The dimension of one `--vary`; raises UsageError."""
    return linked([text], "--vary")


def linked(texts: Iterable[str], flag: str = "--link") -> Dimension:
    """The dimension of lists that vary together, `--link`; raises UsageError."""
    lists: dict[str, Sequence[Any]] = {}
    for text in texts:
        name, values = _read(flag, value_lists.named, text)
        key = _field(flag, name)
        if key in lists:
            raise UsageError(f"{flag}: {key} is given twice")
        lists[key] = _read(flag, value_lists.of_field, key, values)
    return columns(flag, lists)


def columns(flag: str, lists: Mapping[str, Sequence[Any]]) -> Dimension:
    """The dimension of keys of a profile whose values vary together; raises UsageError."""
    lists = {_field(flag, key): values for key, values in lists.items()}
    if len({len(values) for values in lists.values()}) > 1:
        counts = ", ".join(f"{key} has {len(values)}" for key, values in lists.items())
        raise UsageError(f"{flag}: linked lists are of one length: {counts}")
    return _dimension(flag, tuple(lists), tuple(zip(*lists.values(), strict=True)))


def _field(flag: str, name: str) -> str:
    key = name.replace("-", "_")
    if key not in FIELDS:
        known = suggest_name(key, FIELDS) or ": docs/profiles.md lists them, as input_len or temperature"
        raise UsageError(f"{flag} {name}: no key of a profile that can vary{known}")
    return key


def served(text: str) -> Dimension:
    """The dimension of one `--serve-param`; raises UsageError."""
    flag = "--serve-param"
    name, values = _read(flag, value_lists.named, text)
    words = _read(flag, value_lists.words, values)
    return _dimension(flag, (name.lstrip("-"),), tuple((word,) for word in words))


def _dimension(flag: str, keys: tuple[str, ...], rows: tuple[tuple[Any, ...], ...]) -> Dimension:
    if not rows:
        raise UsageError(f"{flag}: a list is empty")
    if twice := next((row for at, row in enumerate(rows) if row in rows[:at]), None):
        again = ",".join(map(shown_value, twice))
        raise UsageError(f"{flag}: {again} is listed twice: give a number of repeats to measure it again")
    return Dimension(flag, keys, rows)


def _read(flag: str, read: Callable[..., T], *given: str) -> T:
    """What is read of a flag's value; raises UsageError that names the flag."""
    try:
        return read(*given)
    except ValueError as error:
        raise UsageError(f"{flag} {error}") from None


def check(variation: Variation, given: Mapping[str, Any], launched: bool) -> None:
    """Raise UsageError where the lists make no sweep; `given` are the keys that have one value by a flag."""
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


def points(variation: Variation, given: Mapping[str, Any], build: Build) -> tuple[GridPoint, ...]:
    """The points in order, each with its workload.

    A point lasts as `given` or its profile's duration has it, else as `requests` does.
    Raises UsageError for a value that the profile does not take, or that changes nothing.
    """
    made = []
    for number, (serve, repeat, settings) in enumerate(variation.combinations()):
        try:
            workload = _workload(given, settings, build)
        except UsageError as error:
            raise UsageError(_as_passed(str(error), variation)) from None
        name = _name(workload.name, settings, serve)
        made.append(GridPoint(number, settings, serve, repeat, workload.model_copy(update={"name": name})))
    return tuple(made)


def _workload(given: Mapping[str, Any], settings: Mapping[str, Any], build: Build) -> Profile:
    """The workload of a point: output_len is that of every data set, as --output-len is."""
    keys = {**given, **settings}
    workload = build(keys)
    source = sources.of(workload)
    if "output_len" in settings and source not in (sources.RANDOM, sources.RANDOM_TURNS):
        keys = {**keys, **dict.fromkeys(READ_OUTPUT_LENS, settings["output_len"])}
        workload = build(keys)
    unheeded = data_conflicts.unheeded(workload.__dict__, settings)
    unheeded += [flag_of("output_len")] * (source in sources.TRACES)
    for key in (key for key in settings if flag_of(key) in unheeded):
        raise UsageError(f"{key} is varied, and the data set of these points has none of it: leave it out")
    limited = {"num_prompts", "num_sessions", "duration"} & keys.keys()
    if not limited and (count := requests(workload)) is not None:
        workload = build({**keys, "num_sessions" if workload.own_session_keys else "num_prompts": count})
    return workload


def _as_passed(message: str, variation: Variation) -> str:
    """A message about a load, with the flag that varies it in place of that of `bench`."""
    for dimension in variation.fields:
        if dimension.flag in _LOADS:
            message = message.replace(flag_of(dimension.keys[0]), dimension.flag)
    return message


def requests(workload: Profile) -> int | None:
    """How many requests, or sessions, a point has where that is not given; None: as its profile has it.

    At a rate as many as are due in 60 s, in a closed loop 10 for each in flight, and 50 at least.
    """
    if workload.timed or workload.duration is not None:
        return None
    if math.isfinite(workload.request_rate):
        return max(_LEAST_REQUESTS, math.ceil(_RATE_S * workload.request_rate))
    if workload.max_concurrency is None:
        return None
    return max(_LEAST_REQUESTS, _A_SLOT * workload.max_concurrency)


def _name(name: str, settings: Mapping[str, Any], serve: Mapping[str, str]) -> str:
    """The workload's name with what no column of a table shows: two such points are no repeats."""
    shown_elsewhere = (CONCURRENCY, RATE, "input_len", "output_len", "num_prompts", "duration")
    more = {key: value for key, value in settings.items() if key not in shown_elsewhere}
    return " ".join(
        [name, *(f"{key}={shown_value(value)}" for key, value in {**serve, **more}.items())]
    ).strip()
