"""Checkpoint keys: a campaign's checkpoints may differ in what a request asks, and in no key of the load."""

from __future__ import annotations

import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.run.options import bench_parser
from loadgen.settings.setting import Makes
from loadgen.settings.table import profile_keys
from loadgen.study.series import keys

PARSER = bench_parser()
NAMES = {
    action.dest: option[2:].replace("-", "_")
    for action in PARSER._actions
    for option in action.option_strings
    if option.startswith("--") and not option.startswith("--no-")
}


@loop_over("key", [key for key in profile_keys(*set(Makes) - {Makes.REQUEST}) if key in NAMES])
def test_all_but_the_request_belongs_in_a_profile(key: str) -> None:
    with pytest.raises(UsageError, match="belongs in a profile: all checkpoints get the same requests"):
        keys.words({NAMES[key]: "1"}, PARSER)


@loop_over(
    ("flags", "words"),
    [
        ({"temperature": 0.5}, ["--temperature=0.5"]),
        ({"backend": "openai-chat"}, ["--backend=openai-chat"]),
        ({"extra_body": {"a": 1}}, ['--extra-body={"a": 1}']),
        ({"prompt_format": "corpus"}, ["--prompt-format=corpus"]),
    ],
)
def test_what_a_request_asks_may_differ(flags: dict[str, object], words: list[str]) -> None:
    assert keys.words(flags, PARSER) == words
