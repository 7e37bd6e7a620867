"""Subject: a published run under audit: its page, its figures as intervals, and the prompts it had.

vLLM's random texts of 2025 are consecutive ids, decoded; encoded again, some of them come out short, and
which ones follows from the seed alone. So the total of input tokens identifies the seed, the length, and
which prompts they were. `workloads.json` has what each of the first 1000 prompts lacks, by client and
length, for the tokenizer of Qwen 2 to 3 (151643 ids) and seed 0: derived with its ranks, 204169, 408281 and
1021646 among the totals. A prompt's offset does not depend on how many prompts there are (lengths without a
range draw nothing), so a smaller run has the first prompts of a greater one.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources
from typing import Any, TypeVar

import msgspec

from loadgen.facts.ceiling import Ceiling
from loadgen.features.roofline import bound
from loadgen.figures.figure_table import COMMON
from loadgen.study.importers.pasted.numbers import find_last_digit
from loadgen.study.run_summary import Reported, group_by, strip_load

Value = TypeVar("Value", bound=Hashable)
_MOST_PEERS = 100  # runs that one is compared with
ONE_TOKEN = 0.1  # mean ITL and mean TPOT apart by no more: messages carry one token each
# A source calls speculative decoding like this in a name, heading, column or flag; then a switch that is off.
_DRAFT = re.compile(
    r"(?<!\bno )(?<!\bwithout )(?<!\bw/o )(?:"
    r"\b(?:eagle|medusa|dflash|hydra|n-?gram|lookahead)-?\d*\b|\b(?:mtp|nextn)(?:[-_ ]?\d+)?\b"
    r"|\bspec(?:ulative|ulation)?[-_ ]?(?:dec(?:od(?:e|ing))?|config|algorithm|tokens|model)\b"
    r"|\bspeculati\w+|^spec\b|\bdraft\w*)",
    re.IGNORECASE,
)
_NOT_GIVEN = frozenset(
    {"", "-", "–", "0", "none", "null", "off", "no", "false", "n/a", "without", "disabled"}
)
SHORT_ANSWER = 16  # tokens, of answers of unknown length
SATURATED = 0.85  # of the requested concurrency
# Clients whose keys mean what vLLM's mean, so that one figure follows from another.
ALIKE = ("loadgen", "vllm", "sglang", "page", "table", "evalscope")


class Page:
    """Runs that are published together."""

    def __init__(self, runs: Sequence[Reported]) -> None:
        self.runs = tuple(runs)
        self._usual: dict[tuple[str, Callable[[Reported], Hashable]], Any] = {}
        self.audited: dict[int, AuditedRun] = {}  # each without page and ceiling, by its identity
        self.names = group_by(runs, lambda run: run.name)  # of checkpoints
        self._loads = group_by(runs, lambda run: strip_load(run.load.name))

    def select_load(self, name: str) -> Sequence[Reported]:
        """Select the runs under the load of this name, as `strip_load` reads it; none without a name."""
        return self._loads.get(strip_load(name), ()) if name else ()

    def find_usual_value(self, load: str, value: Callable[[Reported], Value | None]) -> Value | None:
        """Find the value of more than half of the runs under a load, of at least three; else None."""
        load = strip_load(load)
        if (load, value) not in self._usual:
            self._usual[load, value] = find_usual(value(run) for run in self.select_load(load))
        most: Value | None = self._usual[load, value]
        return most

    @cached_property
    def alike(self) -> dict[tuple[tuple[str, float], ...], list[Reported]]:
        """The runs by their times as `list_fractions` has them, which two runs do not share by chance."""
        return group_by(self.runs, list_fractions)


def find_usual(values: Iterable[Value | None]) -> Value | None:
    """Return the value of over half of three or more values, None counted as one; else None."""
    counted = Counter(values)
    if not counted:
        return None
    value, count = counted.most_common(1)[0]
    return value if counted.total() >= 3 and 2 * count > counted.total() else None


def list_fractions(reported: Reported) -> tuple[tuple[str, float], ...]:
    """List the duration and the latencies above 0 as (key, value), sorted by key."""
    kinds = (*(f"_{figure.suffix}" for figure in COMMON), "duration")
    figures = ((key, reported.figure(key)) for key in sorted(reported.figures) if key.endswith(kinds))
    return tuple((key, value) for key, value in figures if value)


@dataclass(frozen=True)
class AuditedRun:
    """One run, the page it is on, and what its machine could do at best."""

    reported: Reported
    page: Page = field(default_factory=lambda: Page(()), repr=False, compare=False)
    ceiling: Ceiling | None = None

    def figure(self, key: str) -> float | None:
        """Return a figure that is a number; None if it is absent, or no measurement gives it."""
        return self.reported.figure(key)

    def interval(self, key: str) -> Interval | None:
        """Return the values that a printed figure may stand for; None if it is absent or below zero."""
        if (value := self.figure(key)) is None or value < 0:
            return None
        return Interval.of_printed(self.reported.figures[key], count=key in COUNTS)

    @property
    def requests(self) -> float | None:
        """How many requests were answered; None if it is not known."""
        return self.figure("completed")

    @property
    def alike(self) -> bool:
        """Whether the client defines its figures as vLLM does."""
        return self.reported.told_by in ALIKE

    @property
    def limit(self) -> float | None:
        """The concurrency limit, at most the number of requests; without a limit that number, else None."""
        limit = self.reported.load.max_concurrency
        return self.requests if limit is None else min(float(limit), self.requests or float(limit))

    @property
    def paced(self) -> bool:
        """Whether requests were due at a finite rate."""
        rate = self.reported.load.request_rate_per_s
        return rate is not None and rate != float("inf")

    @property
    def one_token_a_message(self) -> bool:
        """Whether messages carry a token each, as far as mean ITL and mean TPOT show."""
        itl, tpot = self.figure("mean_itl_ms"), self.figure("mean_tpot_ms")
        return bool(itl and tpot and abs(itl / tpot - 1) <= ONE_TOKEN)

    @property
    def accepted(self) -> float:
        """The tokens a pass over the weights gives, by the reported acceptance length; 1 without one."""
        return bound.find_accepted_tokens(self.reported.figures)

    @property
    def named_draft(self) -> str:
        """The draft that a name or label mentions, if no acceptance length is reported; else "".

        "" too if messages carry one token each, unless the client divides gaps by tokens.
        """
        if self.accepted > 1 or (self.one_token_a_message and not self.shares_gaps):
            return ""
        labels = self.reported.unread.items()
        given = (f"{key} {text}" for key, text in labels if text.strip().lower() not in _NOT_GIVEN)
        texts = [self.reported.name, *given]
        found = (match[0] for text in texts if (match := _DRAFT.search(text)) is not None)
        return next(found, "")

    @property
    def unstated_draft(self) -> float:
        """The mean tokens per message, if several and no draft is reported; else 1."""
        itl, tpot = self.figure("mean_itl_ms"), self.figure("mean_tpot_ms")
        if not itl or not tpot or self.accepted > 1:
            return 1.0
        return max(1.0, itl / tpot) if itl > bound.SEVERAL * tpot else 1.0

    @property
    def shares_gaps(self) -> bool:
        """Whether the client divides each gap by its message's tokens (SGLang's), so that ITL is TPOT."""
        return "sglang" in (self.reported.told_by, str(self.reported.figures.get("backend", "")))

    @cached_property
    def workload(self) -> Workload | None:
        """The known prompts that the number of input tokens identifies; None if none, or a request failed."""
        n, tokens = self.requests, self.figure("total_input_tokens")
        return recognise_workload(int(n), int(tokens)) if n and tokens and not self.figure("failed") else None

    @cached_property
    def least_seconds(self) -> float | None:
        """The least sum of all requests' times that the printed figures allow; None where they allow none.

        n · E2EL, else n · TTFT + (tokens − n) · the smaller of TPOT and ITL: mean TPOT weighs requests alike,
        mean ITL tokens.
        """
        n, tokens = self.requests, self.figure("total_output_tokens")
        if n and (whole := self.interval("mean_e2el_ms")) is not None:
            return n * whole.low / 1e3
        ttft = self.interval("mean_ttft_ms")
        steps = [gap.low for key in ("tpot", "itl") if (gap := self.interval(f"mean_{key}_ms")) is not None]
        if not n or tokens is None or ttft is None or not steps:
            return None
        return (n * ttft.low + max(tokens - n, 0.0) * min(steps)) / 1e3

    @cached_property
    def least_concurrency(self) -> float | None:
        """The least mean concurrency that the printed rates and latencies allow; None where they allow none.

        Requests per second · E2EL, else · TTFT, and the other tokens per second · the smaller of TPOT and
        ITL (Little's law). Without requests per second, as if answers were as long as requested.
        """
        rate, speed = self.interval("request_throughput"), self.interval("output_throughput")
        whole, ttft = self.interval("mean_e2el_ms"), self.interval("mean_ttft_ms")
        steps = [gap.low for key in ("tpot", "itl") if (gap := self.interval(f"mean_{key}_ms")) is not None]
        if rate is not None and whole is not None:
            return rate.low * whole.low / 1e3
        if speed is None or not steps:
            return None
        if rate is None:
            return speed.low * (1 - 1 / max(self.most_tokens or SHORT_ANSWER, 1)) * min(steps) / 1e3
        first_ms = 0.0 if ttft is None else rate.low * ttft.low
        return (first_ms + max(speed.low - rate.high, 0.0) * min(steps)) / 1e3

    @property
    def most_tokens(self) -> float | None:
        """The tokens of the longest answer that was asked for, else of a mean one; None if unknown."""
        return self.reported.load.asked_output_len or self.reported.output_len

    @property
    def concurrency(self) -> float | None:
        """The least mean concurrency: `least_seconds` ÷ the duration (Little's law); None if not known."""
        duration = self.figure("duration")
        return self.least_seconds / duration if self.least_seconds and duration else None

    @cached_property
    def prefill_left_ms(self) -> float | None:
        """The milliseconds that a full load leaves for each prompt; None of any other load.

        (duration − tokens ÷ concurrency · median ITL) ÷ requests, the median gap taken for a step without
        prefill. Full is a closed loop at 2 or more, held to 85 %, with messages of one token.
        """
        n, tokens, duration = self.requests, self.figure("total_output_tokens"), self.figure("duration")
        step, limit = self.figure("median_itl_ms"), self.reported.load.max_concurrency
        if not (n and tokens and duration and step and limit) or limit < 2 or self.paced:
            return None
        if not self.one_token_a_message or (self.concurrency or 0.0) < SATURATED * limit:
            return None
        return (duration * 1e3 - tokens / limit * step) / n

    @property
    def same_checkpoint(self) -> tuple[AuditedRun, ...]:
        """The others of the page of this name, a hundred at most, most likely from one server."""
        return self._audit_others(self.page.names.get(self.reported.name, ()))

    @property
    def same_load(self) -> tuple[AuditedRun, ...]:
        """The others of the page under the load of this name, a hundred at most."""
        return self._audit_others(self.page.select_load(self.reported.load.name))

    def _audit_others(self, runs: Sequence[Reported]) -> tuple[AuditedRun, ...]:
        """Return the first hundred of these runs but this one, each as the same AuditedRun at each call."""
        audited, others = self.page.audited, (run for run in runs[:_MOST_PEERS] if run is not self.reported)
        return tuple(audited.setdefault(id(run), AuditedRun(run)) for run in others)


def group_pages(reported: Sequence[Reported]) -> list[Page]:
    """List for each run the page that it was published on; runs that have a file each are one page."""
    count = Counter(run.file or run.source for run in reported)

    def file(run: Reported) -> str:
        name = run.file or run.source
        return name if count[name] > 1 else ""

    pages = {name: Page(runs) for name, runs in group_by(reported, file).items()}
    return [pages[file(run)] for run in reported]


COUNTS = ("completed", "failed", "total_input_tokens", "total_output_tokens", "num_prompts")
_EXACT = 1e-9  # of its own, for figures that were summed in another order


class Interval(msgspec.Struct, frozen=True):
    """All values that a printed figure may stand for; for non-negative figures."""

    low: float
    high: float

    @classmethod
    def of_printed(cls, value: float, *, count: bool = False) -> Interval:
        """Make the values that print as this one: one unit of its last digit either way, cut or rounded."""
        unit = 0.0 if count else find_last_digit(value)
        if not unit:
            return cls(value * (1 - _EXACT), value * (1 + _EXACT))
        return cls(max(0.0, value - unit), value + unit)

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __mul__(self, other: Interval) -> Interval:
        return Interval(self.low * other.low, self.high * other.high)

    def meets(self, other: Interval) -> bool:
        """Whether two intervals have a value in common."""
        return self.low <= other.high and other.low <= self.high


PROMPTS = 1000  # derived of each workload
LEAST_MISSING = 20  # tokens: a total that lacks fewer may be of any prompts
_CLIENTS = {
    "mid-2025": "vLLM of May to August 2025 (0.9 to 0.10.1)",
    "september-2025": "vLLM of August and September 2025",
}
SEED, TOKENIZER = 0, "Qwen 2 to 3"

Missing = Mapping[int, int]  # index of a prompt → tokens that it lacks


class Workload(msgspec.Struct, frozen=True):
    """The first prompts of one client's seed at one length."""

    client: str
    input_len: int
    requests: int
    short: int  # prompts that lack tokens
    total_input_tokens: int

    def count_shared(self, other: Workload) -> int:
        """Count the first prompts that this workload shares with another; 0 of another client or length."""
        alike = (self.client, self.input_len) == (other.client, other.input_len)
        return min(self.requests, other.requests) if alike else 0

    def has_first(self, requests: int, total_input_tokens: int) -> bool:
        """Whether a run with these requests and input tokens may have sent this workload's first prompts."""
        missing = _read_workloads().get(self.client, {}).get(self.input_len, {})
        return requests <= PROMPTS and _count_tokens(missing, self.input_len, requests) == total_input_tokens


def recognise_workload(requests: int, total_input_tokens: int) -> Workload | None:
    """Recognise a workload by requests and input tokens; None if unknown, or under 20 tokens are missing."""
    if not 0 < requests <= PROMPTS:
        return None
    for client, lengths in _read_workloads().items():
        for input_len, missing in lengths.items():
            lacking = requests * input_len - total_input_tokens
            if lacking >= LEAST_MISSING and _count_tokens(missing, input_len, requests) == total_input_tokens:
                short = sum(index < requests for index in missing)
                return Workload(client, input_len, requests, short, total_input_tokens)
    return None


def _count_tokens(missing: Missing, input_len: int, requests: int) -> int:
    return requests * input_len - sum(lack for index, lack in missing.items() if index < requests)


@cache
def _read_workloads() -> dict[str, dict[int, dict[int, int]]]:
    """Read the tokens that each prompt lacks, by client, length and the prompt's index; once."""
    text = resources.files(__package__).joinpath("workloads.json").read_text("utf-8")
    return {
        _CLIENTS[client]: {
            int(length): {int(index): int(lack) for index, lack in missing.items()}
            for length, missing in lengths.items()
        }
        for client, lengths in json.loads(text).items()
    }
