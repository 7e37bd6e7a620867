"""Conflicts: keys of a profile that do not go together, or lack what they need, refused by their flags."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from loadgen.base.errors import UsageError
from loadgen.settings.data_settings import ANSWER_LENS, DATA_SETS, SOURCES
from loadgen.settings.setting import Given, Requirement, SettingRow, Values

_MADE = (None, "random")
_TRACES = ("trace", "timed_trace")


def check_conflicts(rows: Iterable[SettingRow], values: Values, typed: Collection[str] = ()) -> None:
    """Raise UsageError for the first of `rows` that lacks a setting it needs, or contradicts another.

    `values` are a profile's, by key; `typed` are the keys that were given as flags or keywords.
    """
    by_name = {row.name: row for row in rows}
    for row in by_name.values():
        is_set, is_typed = values[row.name] != row.default, row.name in typed
        given = {Given.SET: is_set, Given.TYPED: is_typed, Given.WRITTEN: is_set or is_typed}
        for rule in row.rules:
            if not given[rule.given]:
                continue
            if callable(rule.other):
                found = rule.other(values)
            else:
                found = values[rule.other] != by_name[rule.other].default
            if bool(found) is not isinstance(rule, Requirement):
                other = "" if callable(rule.other) else by_name[rule.other].option
                flag = row.option
                if row.default is True and not values[row.name]:
                    flag = f"--no-{flag[2:]}"
                words = {"flag": flag, "other": other, "found": found, "data": find_data(values)[1]}
                raise UsageError(rule.message.format_map({**values, **words}))


def list_unheeded(rows: Sequence[SettingRow], values: Values, typed: Collection[str]) -> list[str]:
    """List the typed flags of other data sets than the one in use, which have no effect, as in vLLM.

    Of answers' lengths that are all typed, as by --output-len, only that is listed. --dataset-path counts as
    typed if the profile gives it.
    """
    kind, _ = find_data(values)
    every = set(ANSWER_LENS) if set(ANSWER_LENS) <= set(typed) else set()  # --output-len
    given = {*typed, "dataset_path"} if values["dataset_path"] else {*typed} - {"dataset_path"}
    lengthened = {name for name, source in SOURCES.items() if source.takes_output_len}
    lengthened = lengthened.union(*(DATA_SETS[name] for name in ANSWER_LENS))
    unheeded = ["--output-len"] if "output_len" in given and kind not in lengthened else []
    return unheeded + [
        row.option
        for row in rows
        if row.name in DATA_SETS
        and row.name in given
        and kind not in DATA_SETS[row.name]
        and row.name not in every
    ]


def find_data(values: Values) -> tuple[str, str]:
    """Return the data set's name and flag: --trace's, else --dataset-name's, else --dataset-path's, named "".

    ("random", "") if none of them is given, or the name is `random`.
    """
    name = values["dataset_name"]
    if values["trace"]:
        return "trace", "--trace"
    if name not in _MADE:
        return str(name), f"--dataset-name {name}"
    return ("", "--dataset-path") if values["dataset_path"] and name is None else ("random", "")


def reads_data(values: Values) -> bool:
    """Whether the requests come from a data set rather than random prompts."""
    return find_data(values)[0] != "random"


def replays_trace(values: Values) -> bool:
    """Whether the requests come from a trace."""
    return find_data(values)[0] in _TRACES


def is_timed(values: Values) -> bool:
    """Whether requests are sent at the times of a trace."""
    own = values["self_timed"] is not False and values["trace_replay"] != "closed"
    return replays_trace(values) and own


def is_stepped(values: Values) -> bool:
    """Whether the schedule's stages are concurrency levels rather than rates."""
    return str(values.get("schedule") or "").strip().startswith("concurrency")
