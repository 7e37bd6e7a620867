"""Load identity: whether two runs sent the same load: files by their bytes, every key that makes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from loadgen.plan.data_facts import LengthFacts
from loadgen.plan.sources import RANDOM
from loadgen.settings.request_class import RequestClass
from loadgen.settings.setting import Identity, Makes
from loadgen.settings.table import PROFILE_KEYS, join_rows
from loadgen.verdict.run_facts import Facts

_DIGEST = 12  # characters of one that are shown
_AS_GIVEN = {
    row.name: row
    for row in join_rows(*PROFILE_KEYS)
    if row.makes is Makes.LOAD and row.compared is Identity.AS_GIVEN
}
_COLUMNS = ("num_sessions", "users")  # that tables have anyway, as requests and concurrency


class Load(msgspec.Struct, frozen=True):
    """The load as requested; None where unknown."""

    name: str = ""  # high-load, low, "input 6144"
    requests: int | None = None  # asked for
    input_len: float | None = None  # tokens of a prompt, mean, as counted
    output_len: float | None = None  # tokens of an answer, mean, as counted
    asked_output_len: int | None = None
    max_concurrency: int | None = None
    request_rate_per_s: float | None = None  # inf: as soon as the concurrency allows
    asked_input_len: int | None = None
    seed: int | None = None  # of the prompts, if known
    duration_s: float | None = None  # sent for a time; `requests` is then at most
    shape: str = ""  # the data, how lengths and arrivals vary, what prompts share; "": all alike, or unknown
    timed: bool = False  # at the times of a trace, of which `request_rate_per_s` is then the mean


def short_digest(facts: Facts) -> str:
    """The first characters of the file's digest; "" without a file."""
    return facts.data.file_digest[:_DIGEST]


def keys(facts: Facts) -> dict[str, Any]:
    """What makes the load, as far as it is not usual, by name; empty of plain random prompts.

    Not in it: lengths, counts, concurrency, rate and duration, which a run has as planned, and `spread`.
    """
    return dict(_keys(facts))


def _keys(facts: Facts) -> Iterator[tuple[str, Any]]:
    data, profile = facts.data, facts.profile
    if data.kind != RANDOM:
        form = data.schedule.format if data.schedule is not None else ""
        yield "data", " ".join(filter(None, (data.kind, form, short_digest(facts))))
    if data.text and data.kind == RANDOM:
        yield "text", short_digest(facts) or data.text  # of one's own file the digest, not the name
    unlike = profile.range_ratio in ("0.0", "0") or data.kind != RANDOM
    for name, row in _AS_GIVEN.items():
        value = getattr(profile, name)
        if value != row.default and not (name == "compat" and unlike):
            yield name, classes(value) if name == "classes" else value


def words(facts: Facts) -> list[str]:
    """The same in words, each with its flag's name; the data's kind and text stand alone.

    What a table has a column for is left out, so that the loads of a sweep have the same words.
    """
    return [
        value if name in ("data", "text") else f"{name.replace('_', '-')} {_word(value)}"
        for name, value in keys(facts).items()
        if name not in _COLUMNS
    ]


def spread(facts: Facts) -> str:
    """How lengths and arrivals vary, and what prompts share, usual or not."""
    profile = facts.profile
    return f"range {profile.range_ratio}, prefix {profile.prefix_len}, burstiness {profile.burstiness:g}"


def classes(classes: Sequence[RequestClass]) -> str:
    """Each class with its share and lengths, as `long 30 % 8000/200`."""
    return ", ".join(f"{kind.name} {kind.share:g} % {kind.input_len}/{kind.output_len}" for kind in classes)


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def asked_input(facts: Facts) -> int | None:
    """The tokens that every prompt was asked to have; None where they differ, or only a file knows them."""
    data, profile = facts.data, facts.profile
    known = data.kind == RANDOM and not (profile.input_dist or profile.classes)
    return profile.input_len if known else _alike(facts, data.input)


def asked_output(facts: Facts) -> int | None:
    """The tokens that every answer was asked to have; None where they differ, or only a file knows them."""
    data, profile = facts.data, facts.profile
    known = data.kind == RANDOM and not (profile.output_dist or profile.classes)
    return profile.output_len if known else _alike(facts, data.output)


def _alike(facts: Facts, lengths: LengthFacts | None) -> int | None:
    whole = lengths is not None and lengths.known >= facts.requests and lengths.least == lengths.most
    return lengths.most if lengths is not None and whole else None
