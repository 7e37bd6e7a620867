"""Labels: what tells runs apart although nothing is read from it, and what differs between any two runs."""

from __future__ import annotations

from builders.loops import loop_over, read_tables
from loadgen.study import labels

TABLES = read_tables("labels")


@loop_over(("title", "cells"), TABLES["labels"])
def test_a_setting_or_a_name_is_a_label(title: str, cells: list[str]) -> None:
    assert labels.is_label(title, cells)


@loop_over(("title", "cells"), TABLES["others"])
def test_what_is_measured_or_of_its_run_alone_is_none(title: str, cells: list[str]) -> None:
    assert not labels.is_label(title, cells)


def test_the_labels_of_a_document_are_its_settings_at_any_depth() -> None:
    assert labels.read_labels(TABLES["document"], {"max_concurrency"}) == TABLES["of_document"]


def test_short_flags_of_a_command_are_labels_and_leave_its_words() -> None:
    command = "vllm serve m -tp 2 --eager -x=1 --low -1"
    assert labels.read_flag_labels(command) == {"tp": "2", "eager": "on", "x": "1", "low": "-1"}
    assert labels.strip_flags(command) == "vllm serve m"
    assert dict(labels.pair_flags(command.split())) == {"eager": "-x=1", "low": "-1"}
    assert labels.read_labels({"cmd": "vllm serve m -tp 2", "note": "a -b"}) == {
        "cmd.tp": "2",
        "note": "a -b",
    }
