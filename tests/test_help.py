"""The help: each text is a phrase that a stranger understands alone, and none is cut."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import pytest

from builders.loops import loop_over
from loadgen.run.command.options import render_help
from loadgen.settings.table import TABLE
from test_docs_commands import PARSERS

# Words that lean on something else: the flag's name, its value or the line before.
LEANING = re.compile(
    "(?:above|after|also|as|at|before|below|between|by|default|during|for|from|how|if|in|instead|into|it|its|"
    "of|on|only|or|over|per|since|than|that|their|them|then|there|these|this|those|to|under|until|unless|what|"
    r"when|where|whether|which|while|who|whose|why|with|within|without)\b|the same\b|[^\w<]",
    re.IGNORECASE,
)


def shown(verb: str) -> Iterator[tuple[str, str | None]]:
    """The flags and places of a verb that its help lists, each with its text."""
    for action in PARSERS[verb]()._actions:
        if action.help != argparse.SUPPRESS:
            yield "/".join(action.option_strings) or action.dest, action.help


@loop_over("verb", PARSERS)
def test_each_text_of_a_help_is_understood_alone(verb: str) -> None:
    texts = dict(shown(verb))
    assert [flag for flag, text in texts.items() if not text] == []
    assert {flag: text for flag, text in texts.items() if text and LEANING.match(text)} == {}


@loop_over("width", [60, 80, 200])
def test_the_short_help_has_each_texts_first_phrase(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    printed = re.sub(r"\s", "", render_help(["--help"]) or "")
    common = {row.option: (row.help or "").partition("; ")[0] for row in TABLE if row.common}
    assert len(common) > 20
    assert [flag for flag, text in common.items() if re.sub(r"\s", "", text) not in printed] == []


@pytest.mark.parametrize(("text", "leans"), [
    ("that has loadgen", True),
    ("how many", True),
    ("default 8000", True),
    ("of the job, and of the directory of its runs", True),
    ("as --quiet", True),
    ("container image with loadgen installed", False),
    ("wait S seconds for the server", False),
])  # fmt: skip
def test_a_text_that_leans_on_another_is_found(text: str, leans: bool) -> None:
    assert bool(LEANING.match(text)) is leans
