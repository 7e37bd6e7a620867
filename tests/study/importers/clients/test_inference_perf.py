"""llm-d's reports in YAML are read as those in JSON; damage, and a library that is missing, is one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.study.importers import result_sources

RESULTS = Path(__file__).parents[3] / "data" / "results"


@loop_over(
    ("text", "why"),
    [
        ("request_performance:\n" + "a: 1\n" * 220_000, "has more than 1 MiB of YAML: give it in parts, or"),
        ("request_performance: " + "[" * 9000, "is damaged: maximum recursion depth"),
        ("request_performance:\n  - a: {]", "is not valid YAML: while parsing a flow node"),
        ("request_performance: !!python/object:os.x {}", "could not determine a constructor"),
        ("results:\n  request_performance:\n    aggregate:\n      latency:\n        x: 1\n",
         "has no figures"),
        ("request_performance: 1\n", "has no known results"),
    ],
)  # fmt: skip
def test_a_broken_report_is_one_line(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "br.yaml").write_text(text, "utf-8")
    with pytest.raises(UsageError, match=why) as refused:
        result_sources.read_sources([str(tmp_path / "br.yaml")])
    assert "\n" not in str(refused.value)


def test_without_the_library_of_yaml_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UsageError, match="is YAML, which needs the compare extra"):
        result_sources.read_sources([str(RESULTS / "llm_d_0.2.1.yaml")])
