"""Planned requests: their content by index, turns, cancellations, and the facts of where they are from."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Annotated, Any, Protocol, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base import untrusted
from loadgen.base.arrays import Int64
from loadgen.settings.load_settings import CancelPoint
from loadgen.wire.openai import Dialect

DIGESTED_PROMPTS = 64
RECORDED = "messages"  # the format of requests with the messages that a trace recorded
UNKNOWN_LEN = -1  # tokens of a prompt that only the server counts, or of an answer without a limit
# A trace's limits leave rows out for these reasons, counted up to the last request, not in the whole file.
CAPS = ("longer than --trace-max-input-len", "longer than --trace-max-output-len")


class Requests(Protocol):
    """The requests of one plan, whose content is made by index when needed.

    `input_lens` and `output_lens` are int64[requests], in tokens: the client's count of the prompt and the
    length that is asked for; UNKNOWN_LEN where there is none.
    """

    @property
    def format(self) -> str: ...
    @property
    def input_lens(self) -> Int64: ...
    @property
    def output_lens(self) -> Int64: ...
    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        """Make the fields of request i, without those that all requests of the plan share.

        Some may be JSON already (msgspec.Raw).
        """

    def digest(self) -> str:
        """Return a hash that is equal for equal requests, in every process, on every machine."""


class TurnRequests:
    """The requests of sessions, which can have the server's own answers as history.

    A subclass defines `request_after`.
    """

    __slots__ = ()
    format: str
    input_lens: Int64
    output_lens: Int64

    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        """Make the fields of request i, with the plan's own answers in its history."""
        return self.request_after(i, (), dialect, model)

    def request_after(
        self, i: int, answers: Sequence[dict[str, Any]], dialect: Dialect, model: str
    ) -> dict[str, Any]:
        """Make the fields of request i with these answers in place of its history's first ones."""
        raise NotImplementedError


class PromptRequests:
    """Requests of a single prompt each; a subclass defines `prompt`."""

    __slots__ = ()
    format: str
    input_lens: Int64
    output_lens: Int64

    def prompt(self, i: int) -> list[int] | str:
        """Return the prompt of request i: token ids or text."""
        raise NotImplementedError

    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        """Make the fields of request i; raises UsageError if the API cannot take such a prompt."""
        fields = dialect.make_request(model, self.prompt(i), int(self.output_lens[i]))
        return self.add_fields(i, dialect, fields)

    def add_fields(self, i: int, dialect: Dialect, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of request i with those that it has besides its prompt and length."""
        return fields

    def digest(self) -> str:
        """Return a hash of all lengths and of the first 64 prompts."""
        first = min(len(self.input_lens), DIGESTED_PROMPTS)
        prompts = (msgspec.json.encode(self.prompt(i)) for i in range(first))
        return fingerprint(self.format, (self.input_lens, self.output_lens), prompts)


def fingerprint(form: str, columns: Iterable[Int64], contents: Iterable[bytes]) -> str:
    """Hash a format's name, int64 columns, and the requests' contents, in this order."""
    hashed = hashlib.blake2b(form.encode(), digest_size=16)
    for column in columns:
        hashed.update(column.astype("<i8").tobytes())
    for content in contents:
        hashed.update(content)
    return hashed.hexdigest()


class Waits(msgspec.Struct, frozen=True):
    """Which requests of its session each request waits for, and over which connection it goes.

    Request i waits for the requests `before[starts[i]:starts[i + 1]]`: plan indices of its own session, each
    below i, ascending; it is a root if there are none. `starts` is int64[requests + 1], the others
    int64[requests]. `lanes` are numbered within a session, 0 the main line: requests of one lane wait for one
    another, directly or not, so they never overlap and share a connection; the first of a session is of lane
    0. `depths` counts from the main line: 0, its sub-agents 1, theirs 2. `roles` are indices into
    `role_names`. `tool_ns` is the part of each delay in which tools worked, None where that is not recorded.
    """

    starts: Int64
    before: Int64
    lanes: Int64
    depths: Int64
    roles: Int64
    role_names: tuple[str, ...] = ("main",)
    tool_ns: Int64 | None = None

    def list_before(self, index: int) -> list[int]:
        """List the plan indices of the requests that a request waits for, ascending; [] of a root."""
        found: list[int] = self.before[self.starts[index] : self.starts[index + 1]].tolist()
        return found

    def check(self, begins: Int64) -> None:
        """Raise ValueError, which names a request, where sessions that begin at `begins` cannot wait so."""
        count = int(begins[-1])
        columns = (self.lanes, self.depths, self.roles, *(() if self.tool_ns is None else (self.tool_ns,)))
        if len(self.starts) != count + 1 or any(len(column) != count for column in columns):
            raise ValueError(f"waits are of {len(self.starts) - 1} requests, and there are {count}")
        if self.starts[0] != 0 or self.starts[-1] != len(self.before) or (np.diff(self.starts) < 0).any():
            raise ValueError("the requests waited for are not divided among all requests")
        own = np.repeat(np.arange(count), np.diff(self.starts))
        begin = np.repeat(begins[:-1], np.diff(begins))
        wrong = own[(self.before >= own) | (self.before < begin[own])]
        if len(wrong):
            raise ValueError(f"request {wrong[0]} waits for one that is not before it in its session")
        lowest = np.minimum.reduce(columns)
        wrong = np.flatnonzero((lowest < 0) | (self.roles >= len(self.role_names)))
        if len(wrong):
            raise ValueError(f"request {wrong[0]} has a lane, depth, role or tool time that there is not")
        wrong = begins[:-1][(self.lanes[begins[:-1]] != 0) | (np.diff(self.starts)[begins[:-1]] > 0)]
        if len(wrong):
            raise ValueError(f"request {wrong[0]} begins a session and is no root of its main line")

    def mark_dependents(self, marked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Mark the requests that wait, directly or through others, for one of the marked ones."""
        reached, found = marked.tolist(), np.zeros(len(marked), np.bool_)
        if not marked.any():  # of most runs, as none of their requests failed
            return found
        starts, before = self.starts.tolist(), self.before.tolist()
        for index in range(len(reached)):
            if any(reached[earlier] for earlier in before[starts[index] : starts[index + 1]]):
                reached[index] = found[index] = True
        return found

    def choose(self, requests: Int64, moved_by: Int64) -> Waits:
        """Return the waits of these requests, whole sessions or their beginnings, in another plan.

        `moved_by` is int64[requests chosen], what is added to each one's plan index.
        """
        counts = np.diff(self.starts)[requests]
        starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        at = np.arange(starts[-1]) + np.repeat(self.starts[requests] - starts[:-1], counts)
        tool_ns = None if self.tool_ns is None else self.tool_ns[requests]
        lanes, depths, roles = self.lanes[requests], self.depths[requests], self.roles[requests]
        before = self.before[at] + np.repeat(moved_by, counts)
        return Waits(starts, before, lanes, depths, roles, self.role_names, tool_ns)


def make_waits(
    before: Sequence[Sequence[int] | Int64],
    lanes: Sequence[int],
    depths: Sequence[int],
    roles: Sequence[int],
    role_names: tuple[str, ...],
    tool_ns: Sequence[int] | None = None,
) -> Waits:
    """Make the waits of requests from what each waits for, as plan indices, and from its other columns."""
    distinct = [np.unique(earlier) if len(earlier) > 1 else earlier for earlier in before]
    starts = np.concatenate(([0], np.cumsum([len(earlier) for earlier in distinct]))).astype(np.int64)
    flat = np.fromiter(chain.from_iterable(distinct), np.int64, int(starts[-1]))
    tools = None if tool_ns is None else np.array(tool_ns, np.int64)
    lane, depth, role = (np.array(column, np.int64) for column in (lanes, depths, roles))
    return Waits(starts, flat, lane, depth, role, role_names, tools)


_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 61)]


class WaitFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """What a run keeps of the order of its sessions' requests, one entry for each request of the plan."""

    before: tuple[tuple[_Number, ...], ...]  # the plan indices that each waits for
    lanes: tuple[_Number, ...]  # numbered within the session, 0 the main line
    depths: tuple[_Number, ...]  # 0 the main line, 1 its sub-agents, 2 theirs
    roles: tuple[_Number, ...]  # indices of `role_names`
    role_names: tuple[str, ...]
    tool_ns: tuple[_Number, ...] | None = None  # of the delay before each, in tools; None: not recorded

    @cached_property
    def waits(self) -> Waits:
        """The waits that these facts are of."""
        return make_waits(self.before, self.lanes, self.depths, self.roles, self.role_names, self.tool_ns)


class Turns(msgspec.Struct, frozen=True):
    """Which requests are the turns of which session, what each waits for, and the delay before it (ns).

    `begins` is int64[sessions + 1]: the plan index of each session's first turn, and then the number of
    requests: the turns of a session follow one another. `delays_ns` is int64[requests]: the pause before each
    turn, counted from the end of the last answer that it waits for, or of a later root from its session's
    begin; 0 of a first turn. `waits` None: each turn waits for the one before it, all on the main line.
    """

    begins: Int64
    delays_ns: Int64
    waits: Waits | None = None

    def __len__(self) -> int:
        """How many sessions there are."""
        return len(self.begins) - 1

    @property
    def counts(self) -> Int64:
        """The number of turns of each session, int64[sessions]."""
        return np.diff(self.begins)

    @property
    def has_branches(self) -> bool:
        """Whether a turn waits for others than the one before it, or is not on the main line."""
        if self.waits is None:
            return False
        chain = np.ones(int(self.begins[-1]), np.int64)
        chain[self.begins[:-1]] = 0
        if self.waits.lanes.any() or not np.array_equal(np.diff(self.waits.starts), chain):
            return True
        return not np.array_equal(self.waits.before, np.flatnonzero(chain) - 1)

    def list_sessions(self) -> Int64:
        """Return the session's number of each request, int64[requests]."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.counts)

    def end(self, session: int) -> int:
        """Return the plan index after a session's last turn."""
        return int(self.begins[session + 1])

    def take_first(self, sessions: int) -> Turns:
        """Return the turns of the first `sessions` sessions."""
        return self.cut(int(self.begins[: sessions + 1][-1]))

    def cut(self, requests: int) -> Turns:
        """Return the first `requests` turns; the last session may be cut short."""
        sessions = int(np.searchsorted(self.begins, requests))
        begins = np.append(self.begins[:sessions], requests)
        waits = self.waits
        if waits is not None:
            waits = waits.choose(np.arange(requests), np.zeros(requests, np.int64))
        return Turns(begins, self.delays_ns[:requests], waits)

    def choose(self, sessions: Int64) -> Turns:
        """Return the turns of these sessions in this order, one or more times each, as a plan of their own.

        Its requests are those of `list_chosen`.
        """
        requests, counts = self.list_chosen(sessions), self.counts[sessions]
        begins = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        moved_by = np.repeat(begins[:-1] - self.begins[sessions], counts)
        waits = None if self.waits is None else self.waits.choose(requests, moved_by)
        return Turns(begins, self.delays_ns[requests], waits)

    def list_chosen(self, sessions: Int64) -> Int64:
        """Return the plan indices of the turns of these sessions, session after session."""
        counts = self.counts[sessions]
        ends = np.cumsum(counts)
        begins = np.repeat(self.begins[sessions] - (ends - counts), counts)
        chosen: Int64 = np.arange(counts.sum()) + begins
        return chosen

    def scale_delays(self, factor: float) -> Turns:
        """Return the turns with delays, and tools' times, multiplied by a factor, rounded to nanoseconds."""
        waits = self.waits
        if waits is not None and waits.tool_ns is not None:
            waits = msgspec.structs.replace(waits, tool_ns=_scale(waits.tool_ns, factor))
        return Turns(self.begins, _scale(self.delays_ns, factor), waits)

    def describe_waits(self) -> WaitFacts | None:
        """Return the order of the turns as a run keeps it; None where each waits for the one before it.

        A chain is described too where tools' times or more roles than one are known of it.
        """
        waits = self.waits
        if waits is None or not (self.has_branches or waits.tool_ns is not None or waits.roles.any()):
            return None
        return WaitFacts(
            before=tuple(tuple(waits.list_before(index)) for index in range(int(self.begins[-1]))),
            lanes=tuple(waits.lanes.tolist()),
            depths=tuple(waits.depths.tolist()),
            roles=tuple(waits.roles.tolist()),
            role_names=waits.role_names,
            tool_ns=None if waits.tool_ns is None else tuple(waits.tool_ns.tolist()),
        )


def _scale(times_ns: Int64, factor: float) -> Int64:
    """Multiply times by a factor, rounded to whole ns."""
    scaled: Int64 = np.rint(times_ns * factor).astype(np.int64)
    return scaled


def make_turns(counts: Int64, delays_ns: Int64) -> Turns:
    """Make the turns of sessions, of which `counts`, int64[sessions], are at least 1 each."""
    return Turns(np.concatenate(([0], np.cumsum(counts))).astype(np.int64), delays_ns)


class Cancellations(msgspec.Struct, frozen=True):
    """The requests of a plan to cancel, bool[requests], and when: all at one point, or each at its own."""

    chosen: NDArray[np.bool_]
    point: CancelPoint = CancelPoint()
    own: Mapping[int, CancelPoint] = {}  # of every request chosen, by plan index, as a trace recorded it

    @property
    def count(self) -> int:
        """The number of requests to cancel."""
        return int(np.count_nonzero(self.chosen))

    @property
    def counts_tokens(self) -> bool:
        """Whether a request is cancelled by its tokens."""
        return any(point.after_tokens for point in self.own.values() or (self.point,))

    def find_point(self, index: int) -> CancelPoint:
        """Return when a request is cancelled, by its plan index; CancelPoint() if it is not."""
        return self.own.get(index, self.point) if self.chosen[index] else CancelPoint()

    def take_first(self, requests: int) -> Cancellations:
        """Return those of the first requests of a plan."""
        own = {index: point for index, point in self.own.items() if index < requests}
        return Cancellations(self.chosen[:requests], self.point, own)

    def list_own(self) -> tuple[tuple[int, int, int], ...]:
        """List (plan index, nanoseconds after sending, messages with text) of a trace's; else ()."""
        return tuple((index, point.after_ns, point.after_tokens) for index, point in sorted(self.own.items()))


def make_cancellations(own: Mapping[int, CancelPoint], requests: int) -> Cancellations:
    """Make the cancellations of as many requests, each at its own point, by plan index."""
    chosen = np.zeros(requests, np.bool_)
    chosen[list(own)] = True
    return Cancellations(chosen, own=own)


class ConcurrencySteps(msgspec.Struct, frozen=True):
    """A concurrency limit that changes at fixed times after the start; the first time is 0.

    `from_ns` is int64[steps], ascending; `limits` int64[steps], at least 1 each, for one of several processes
    at least 0. The last one holds to the end.
    """

    from_ns: Int64
    limits: Int64

    @property
    def most(self) -> int:
        """The highest limit of any step."""
        return int(self.limits.max())

    @property
    def opens_ns(self) -> int:
        """Nanoseconds after the start at which the limit is first above 0; 0 if it never is."""
        return int(self.from_ns[np.argmax(self.limits > 0)])

    def limit(self, elapsed_ns: int) -> int:
        """The concurrency limit in force `elapsed_ns` after the start."""
        return int(self.limits[max(int(np.searchsorted(self.from_ns, elapsed_ns, "right")) - 1, 0)])

    def divide(self, number: int, of: int) -> ConcurrencySteps:
        """Return process `number`'s share of the limits, of `of` processes; the shares add up."""
        return ConcurrencySteps(self.from_ns, np.maximum(self.limits - number + of - 1, 0) // of)

    def next_ns(self, elapsed_ns: int) -> int:
        """Nanoseconds after the start at which the limit changes next; -1: never again."""
        at = int(np.searchsorted(self.from_ns, elapsed_ns, "right"))
        return int(self.from_ns[at]) if at < len(self.from_ns) else -1


class LengthFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Statistics of the planned lengths that are known, in tokens."""

    known: int  # requests whose length is known before they are sent
    mean: float
    sd: float
    least: int
    p50: int
    p90: int
    p99: int
    most: int

    @classmethod
    def measure(cls, lens: Int64) -> Self | None:
        """Compute statistics of lengths, int64[requests], without unknown ones; None if none is known.

        A percentile is the smallest length that at least this share of the requests does not exceed.
        """
        known = lens[lens > 0]
        if not len(known):
            return None
        p50, p90, p99 = np.percentile(known, (50, 90, 99), method="inverted_cdf").tolist()
        return cls(
            known=len(known),
            mean=float(known.mean()),
            sd=float(known.std()),
            least=int(known.min()),
            p50=int(p50),
            p90=int(p90),
            p99=int(p99),
            most=int(known.max()),
        )


class ScheduleFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a trace's requests are due, after window, speed-up, idle cap and jitter."""

    format: str
    span_s: float  # first to last request
    rate_per_s: float  # (requests − 1) / span; 0 where all are due at once
    instants: int  # different times among the file's rows that are sent
    requests: int
    grid_s: float = 0.0  # the file's timestamps are all multiples of it, coarser than their unit; 0: none
    spread: bool = False  # --trace-jitter spread the requests of one instant over its grid
    speed_up: float = 1.0
    start_s: float = 0.0  # of the window, in the file's time
    end_s: float | None = None
    idle_cap_s: float | None = None
    idle_cut_s: float = 0.0  # what the cap took out


class ImageFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The images that a plan's requests carry."""

    format: str  # jpeg, png; of files "as they are"
    sizes: tuple[tuple[int, int, int], ...]  # width and height in pixels, and how many images have them
    counts: tuple[int, ...]  # images of each request, in the plan's order; a single one: of every request
    distinct: int  # images that are not equal to an earlier one
    mean_bytes: int  # of an image as it is sent, without base64
    digest: str  # of the images that all are made of
    source: str = ""  # the directory of the files, as it was given; "": made here
    maker: str = ""  # what encoded them, with its version; "": files

    def count_images(self, indices: Int64) -> Int64:
        """Count the images of requests by their plan index, int64[requests]."""
        counts = np.array(self.counts, np.int64)
        return counts[indices % len(counts)]

    @property
    def planned(self) -> int:
        """The images of the whole plan."""
        return sum(count for _, _, count in self.sizes)


class DataFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The source of a plan's requests, and which of its rows were left out."""

    kind: str = "random"  # a key of SOURCES; of a file without a name, what its rows are
    file: str = ""  # as it was named
    file_digest: str = ""  # blake2b of its bytes, or of those of all files of a directory
    rows: int = 0  # of the file
    sent: int = 0  # different rows of it that the plan sends
    repeated: int = 0  # requests that send a row which an earlier one sends too
    skipped: dict[str, int] = {}  # rows left out, by why
    clipped: int = 0  # requests cut down to a length that was asked for
    text: str = ""  # where the words of the prompts come from
    categories: tuple[str, ...] = ()  # of the rows sent, in the order of the plan; empty where rows have none
    category_of_row: tuple[int, ...] = ()  # the index in `categories` of each different row, in that order
    input: LengthFacts | None = None
    output: LengthFacts | None = None
    # Prompt tokens that a prefix cache without a limit and empty at the start would hold already, in the
    # order of the plan; None where that is not known before the run.
    reusable_tokens: int | None = None
    schedule: ScheduleFacts | None = None  # of a trace that is sent at its own times
    images: ImageFacts | None = None  # None: requests carry none that were added here

    def rate_per_s(self, request_rate_per_s: float) -> float:
        """Return requests per second: a trace's mean at its own times, else the given rate."""
        return request_rate_per_s if self.schedule is None else self.schedule.rate_per_s or math.inf

    def list_categories(self, indices: Int64) -> list[str]:
        """List the category of each of these requests, numbered as in the plan; [] where rows have none."""
        if not self.categories:
            return []
        numbers = np.array(self.category_of_row)[indices % len(self.category_of_row)]
        return [self.categories[number] for number in numbers.tolist()]

    def count_categories(self, requests: int) -> dict[str, int]:
        """Count the first `requests` requests of each category; {} where rows have none."""
        return dict(Counter(self.list_categories(np.arange(requests))))

    @property
    def reuse(self) -> float | None:
        """The share of prompt tokens, 0 to 1, that an empty, unlimited prefix cache could reuse."""
        if self.reusable_tokens is None or self.input is None:
            return None
        return self.reusable_tokens / (self.input.mean * self.input.known)


def merge_fields(fields: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay the fields `over` over others; tables under the same name are merged, one level deep."""
    tables = {
        name: {**_read_table(fields[name]), **table}
        for name, table in over.items()
        if isinstance(table, dict) and name in fields
    }
    return {**fields, **over, **tables}


def _read_table(value: Any) -> Mapping[str, Any]:
    """Decode a table, also one that is still JSON, its values as bytes; {} for anything else."""
    if isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value, type=dict[str, msgspec.Raw]) if bytes(value)[:1] == b"{" else {}
    return untrusted.read_mapping(value)
