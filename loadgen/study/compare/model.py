"""Model: the options of a comparison, and its result: a table per load, a row per checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.base.parsing import read_figure
from loadgen.base.text import GIB
from loadgen.base.untrusted import read_list, read_mapping
from loadgen.facts.run_facts import Fingerprint
from loadgen.report.load_identity import Load
from loadgen.study.bundle import reading
from loadgen.study.consistency.ceilings import Hardware
from loadgen.study.importers import json_fields
from loadgen.study.load_table import mark_simulated
from loadgen.study.quality import quality_record
from loadgen.study.quality.quality_record import Quality
from loadgen.study.repeats import Mean
from loadgen.study.run_summary import Reported

RECORD = "campaign.json"
MARGIN = 0.02  # within ± 2 % two speeds are one
ALONE = "one row under this load, nothing to compare it with: pass another run"


class CampaignSettings(msgspec.Struct, frozen=True):
    """What a campaign decides of comparisons; empty or None if no campaign sets it."""

    baseline: str = ""
    margin: float | None = None
    hardware: str | None = None
    kl_margin: float | None = None  # nats a token
    directory: Path | None = None  # that has its record
    answer: Mapping[str, Any] = {}  # its table [answer]
    reference: str = ""  # the checkpoint or arm that qualities are measured against
    description: str = ""
    arms: Mapping[str, Mapping[str, Any]] = {}  # flags of `loadgen bench` by "checkpoint on server"


def read_campaign_settings(places: Iterable[str]) -> CampaignSettings:
    """Read the settings in the first valid campaign.json of the places; empty settings if there is none.

    The record lies in a place, or in the only directory of a place that has one. A record that cannot be read
    is passed over; a margin that is not between 0 and 1 counts as None.
    """
    for given in places:
        directory = reading.find_directory(expand_path(given))
        own = directory / RECORD
        records = [own] if own.is_file() else list(directory.glob(f"*/{RECORD}"))
        if len(records) != 1:
            continue
        try:
            contents = json.loads(json_fields.read_bounded(records[0]))
        except (UsageError, ValueError, RecursionError):
            continue
        if isinstance(contents, dict):
            margin = read_figure(contents.get("margin"))
            return CampaignSettings(
                baseline=json_fields.read_word(contents.get("baseline")),
                margin=margin if margin is not None and 0 < margin < 1 else None,
                hardware=json_fields.read_word(contents.get("hardware")) or None,
                kl_margin=read_figure(read_mapping(contents.get("quality")).get("margin")),
                directory=records[0].parent,
                answer=read_mapping(contents.get("answer")),
                reference=json_fields.read_word(read_mapping(contents.get("quality")).get("reference")),
                description=json_fields.read_word(contents.get("description")),
                arms={
                    f"{arm.get('checkpoint')} on {arm.get('server')}": read_mapping(arm.get("flags"))
                    for arm in map(read_mapping, read_list(contents.get("arms")))
                },
            )
    return CampaignSettings()


class ComparisonOptions(msgspec.Struct, frozen=True):
    """The options of a comparison; raises UsageError where margin or alpha is not between 0 and 1."""

    baseline: str = ""  # a row; "": the campaign's, else the first unquantized one, else the first
    margin: float | None = None  # of equivalence; None: the campaign's, else MARGIN
    alpha: float = 0.05
    headline: str = ""  # a figure's key; "": the throughput, or latency where a rate fixes the throughput
    allow_unlike: bool = False
    hardware: Hardware = Hardware()
    campaign: CampaignSettings = CampaignSettings()  # its baseline is used if there is such a row
    acceptance_length: float | None = None  # tokens a step at which speeds are compared; None: as measured

    def __post_init__(self) -> None:
        if self.margin is not None and not 0 < self.margin < 1:
            raise UsageError(f"--margin {100 * self.margin:g}: give percent, above 0 and below 100")
        if not 0 < self.alpha < 1:
            raise UsageError(f"--alpha {self.alpha:g}: give a probability, as 0.05")

    @property
    def equivalence(self) -> float:
        """The margin within which two speeds are one: the option, else the campaign's, else MARGIN."""
        margins = (self.margin, self.campaign.margin)
        return next((margin for margin in margins if margin is not None), MARGIN)

    @property
    def kl_margin(self) -> float:
        """The KL (nats a token) within which two distributions are one: the campaign's, else 0.01."""
        return self.campaign.kl_margin or quality_record.MARGIN

    @property
    def machine(self) -> Hardware:
        """The option's hardware; without a machine in it, with the one that the campaign recorded."""
        return self.hardware.add_recorded_machine(self.campaign.hardware)


class Decision(StrEnum):
    """The verdict on a difference."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUIVALENT = "equivalent"  # within the margin
    UNDECIDED = "undecided"
    NONE = "no verdict"  # one run a side, not comparable, no scipy: see `why`


class ComparedFigure(msgspec.Struct, frozen=True):
    """One column: a key of Reported.figures (or memory_bytes, joules_per_token) and how it is read."""

    key: str
    label: str
    higher_is_faster: bool | None  # None: nothing is faster by it (memory, energy)
    digits: int = 2

    def scale(self, value: float) -> float:
        """Convert a value to the unit that it is written in: bytes of memory to GiB, others unchanged."""
        return value / GIB if self.key == "memory_bytes" else value


class Effect(msgspec.Struct, frozen=True):
    """A row against the baseline in one figure; ratios are row ÷ baseline, geometric."""

    call: Decision
    ratio: float  # NaN if there is no ratio
    low: float = float("nan")  # 95 % interval of the ratio
    high: float = float("nan")
    p: float = float("nan")  # of no difference, two-sided
    p_adjusted: float = float("nan")  # by Holm over the rows of the figure, and for three analyses
    p_equivalent: float = float("nan")  # the larger of the two one-sided tests
    units: int = 0  # pairs, or the smaller side where nothing is paired
    paired: bool = False
    detectable: float = float("nan")  # least difference found in 80 % of campaigns of this size: 0.03 is 3 %
    more_runs: int | None = None  # about how many more a side would decide it; None: decided, or unknown
    unlike: bool = False  # no verdict: the load or the machine was not the baseline's
    why: str = ""  # of no verdict, or what limits this one
    p_equivalent_adjusted: float = float("nan")  # as p_adjusted
    error: float = float("nan")  # standard error of ln(ratio)
    freedom: float = float("nan")  # its degrees of freedom
    floor: float = 0.0  # the least such error that digits and clocks allow
    higher_is_faster: bool | None = None
    in_blocks: bool = False  # one side was measured before the other: the ratio is apart from a trend


class Factor(msgspec.Struct, frozen=True):
    """By how many times a row is as fast as the baseline, with its interval; NaN with one run on a side."""

    mean: float  # geometric
    low: float = float("nan")
    high: float = float("nan")


class Split(msgspec.Struct, frozen=True):
    """A row's speed-up by TPOT, and its parts: that of its steps times that of its drafts."""

    speed: Factor  # the baseline's TPOT ÷ the row's, each over all tokens
    steps: Factor  # the baseline's step time ÷ the row's
    drafts: Factor  # the row's acceptance length ÷ the baseline's
    units: int  # pairs, or the smaller side where nothing is paired
    paired: bool
    computed: bool = False  # a client reports no step time: it is TPOT × acceptance length


class ComparedRow(msgspec.Struct, frozen=True):
    """One checkpoint and its runs, in a comparison of runs or of limits."""

    name: str
    runs: tuple[Reported, ...]

    @property
    def quality(self) -> Quality | None:
        """How far the server of its runs is from the reference: the first that is known; None without any."""
        return next((run.quality for run in self.runs if run.quality is not None), None)

    @property
    def fingerprints(self) -> list[Fingerprint]:
        """The answers to the greedy prompts of its runs that asked them."""
        return [run.fingerprint for run in self.runs if run.fingerprint is not None]

    @property
    def simulated(self) -> bool:
        """Whether the embedded engine answered at least one of its runs."""
        return any(run.simulated for run in self.runs)

    @property
    def shown_name(self) -> str:
        """The name as tables and charts have it, with a mark if the row is simulated."""
        return mark_simulated(self.name, self.simulated)


class Line(ComparedRow, frozen=True):
    """One checkpoint under one load."""

    summaries: Mapping[str, Mean]  # by the figure's key; absent if no run has it
    effects: dict[str, Effect]  # against the baseline, by the figure's key; empty for the baseline itself
    roofline: float | None = None  # share of the ceiling that decoding reached
    marks: tuple[str, ...] = ()  # unlike the baseline, doubts of its runs, fast because broken
    failures: tuple[str, ...] = ()  # cells that failed, and why
    answers: str = ""  # where those to the greedy prompts first differ from the baseline's
    split: Split | str | None = None  # or why there is none; None: no drafts, or not compared
    broken: str = ""  # the mark that asks whether it is fast because it is broken; "": none does


class ComparedLoad(msgspec.Struct, frozen=True):
    """One load: its rows compared with the baseline."""

    load: Load
    baseline: str
    figures: tuple[ComparedFigure, ...]
    headline: str  # the key of the figure that decides a row
    lines: tuple[Line, ...]  # the baseline first, then as they came
    margin: float  # of equivalence: 0.02 is ± 2 %
    alpha: float
    remarks: tuple[str, ...] = ()
    kl_margin: float = quality_record.MARGIN  # nats a token, below which two distributions are one
